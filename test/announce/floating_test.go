//go:build system

package announce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// lb4 and lb6 are the VIPs of HAProxy in docs/recipes.md.
var lb4, lb6 = netip.MustParseAddr("10.78.0.200"), netip.MustParseAddr("fd78::1:200")

// newFloating starts hosts that float VIPs for HAProxy, as docs/recipes.md says, with one service of another kind beside them.
func newFloating(t testing.TB, hosts int, extra string) (*lab, []*process.Process) {
	t.Helper()
	return newFloatingBy(t, dataplane, hosts, extra)
}

// newFloatingBy is newFloating with a dataplane.
func newFloatingBy(t testing.TB, mode string, hosts int, extra string) (*lab, []*process.Process) {
	t.Helper()
	bin := need.Program(t, "haproxy")
	l := prepareLab(t, hosts)
	p := readPage(t)
	var programs []*process.Process
	for _, h := range l.hosts {
		l.follow(h, p, "lb.toml", extra)
		h.edit(fmt.Sprintf("mode = %q", dataplane), fmt.Sprintf("mode = %q", mode))
		config := filepath.Join(h.dir, "haproxy.cfg")
		must.Succeed(t, os.WriteFile(config, []byte(p.file("/etc/haproxy/haproxy.cfg")), 0o600))
		p := process.New(bin, filepath.Join(h.dir, "haproxy.log"), h.Node, "-db", "-q", "-f", config)
		programs = append(programs, p)
		t.Cleanup(p.Kill)
		h.start()
	}
	return l, programs
}

// awaitFloating waits until all hosts agree that one of them has the VIPs; nil: none has.
func (l *lab) awaitFloating(owner *host, vips ...netip.Addr) {
	l.t.Helper()
	must.True(l.t, len(vips) > 0, "no VIPs to wait for")
	what := fmt.Sprint(vips, " nowhere")
	if owner != nil {
		what = fmt.Sprint(vips, " on ", owner.Name)
	}
	wait.For(l.t, what, func() error {
		for _, h := range l.hosts {
			all, err := h.announcements()
			if err != nil {
				return err
			}
			for _, vip := range vips {
				a, ok := all[vip]
				if owner == nil && (a.Owner != "" || a.Here) || owner != nil && (a.Owner != owner.Name || a.Here != (h == owner)) {
					return fmt.Errorf("%s: %s: known %t, owner %q, here %t: %s", h.Name, vip, ok, a.Owner, a.Here, a.Why)
				}
			}
		}
		return nil
	})
}

// A VIP floats between the hosts whose program passes its check. Nobody has it before a check has passed. It leaves a host
// whose program is killed, and is nowhere without any. A restart of the agent, also after kill -9, moves nothing.
func TestFloatingAddress(t *testing.T) {
	t.Parallel()
	l, programs := newFloating(t, 2, patient)
	a, b := l.hosts[0], l.hosts[1]
	l.awaitFloating(nil, lb4, lb6)
	wait.For(t, "the reason", func() error {
		out, err := a.run("announce", "explain", lb4.String())
		if err == nil && !strings.Contains(out, "the check of this host has not passed") {
			err = errors.New(out)
		}
		return err
	})

	must.Succeed(t, programs[0].Start())
	l.awaitFloating(a, lb4, lb6)
	// A host that joins does not take the answers of another one for those of its own program.
	b.agent.Kill()
	must.Succeed(t, os.RemoveAll(filepath.Join(b.dir, "state")))
	must.Succeed(t, b.Netlink.LinkDel(must.Get(b.Netlink.LinkByName("ironvip0"))(t))) // with the VIPs
	l.device(b)
	must.Succeed(t, b.agent.Start())
	wait.For(t, "lb2 has checked itself", func() error {
		out, err := b.run("service", "get", "lb")
		if err == nil && !strings.Contains(out, "unhealthy") {
			err = errors.New(out)
		}
		return err
	})
	for line := range strings.Lines(b.metrics()) {
		if strings.Contains(line, `outcome="ok"`) && !strings.HasSuffix(line, " 0\n") {
			t.Errorf("a check of lb2 has passed: %s", line)
		}
	}
	must.Succeed(t, programs[1].Start())
	b.awaitPassed()
	programs[0].Kill()
	l.awaitFloating(b, lb4, lb6)
	for _, vip := range []netip.Addr{lb4, lb6} {
		load := startLoad(t, l.client, vip, 10*time.Millisecond)
		load.awaitAnswers(10)
		b.agent.Kill()
		must.Succeed(t, b.agent.Start())
		l.awaitFloating(b, lb4, lb6)
		load.awaitAnswers(10)
		if o := load.end(); o.lost > 0 {
			t.Errorf("%s, while the agent restarts: %s", vip, o)
		}
	}
	programs[1].Kill()
	l.awaitFloating(nil, lb4, lb6)
	must.Succeed(t, programs[0].Start())
	l.awaitFloating(a, lb4, lb6)
	expect.Contains(t, a.must("service", "get", "lb"), "host")
	a.commands()
}

// Hosts without a dataplane float addresses, also while the agent is away. A service with backends is refused with a reason,
// and nothing but that is a problem. The kernel has no rules but those of the announcer.
// Slow: 3 s without an agent.
func TestFloatingWithoutDataplane(t *testing.T) {
	t.Parallel()
	l, programs := newFloatingBy(t, "off", 2, patient)
	a := l.hosts[0]
	must.Succeed(t, programs[0].Start())
	l.awaitFloating(a, lb4, lb6)
	loads := []*load{startLoad(t, l.client, lb4, 10*time.Millisecond), startLoad(t, l.client, lb6, 10*time.Millisecond)}
	answered := func() {
		for _, load := range loads {
			load.awaitAnswers(10)
		}
	}
	answered()
	var problems []string
	for _, c := range must.Get(a.api.Status(t.Context()))(t).Checks {
		if c.Level != v1.LevelOK {
			problems = append(problems, c.Name+": "+c.Message)
		}
	}
	must.Len(t, problems, 2, "problems of a host that refuses a service: %q", problems)
	expect.Equal(t, problems[0], "services: 1 of 2 healthy, 1 refused")
	expect.Contains(t, problems[1], `dataplane: off, 2 of 4 frontends refused: dataplane.mode "off" serves no backends`)
	for line := range strings.Lines(a.Run("nft", "list", "tables")) {
		if !strings.Contains(line, "ironvip_l2") {
			t.Errorf("%s has the table %s", a.Name, line)
		}
	}
	for _, h := range l.hosts {
		if all, err := h.announcements(); err != nil || all[vip4(1)].Owner != "" {
			t.Errorf("%s: the VIP of the refused service: %+v, %v", h.Name, all[vip4(1)], err)
		}
	}
	a.stop(a.agent)
	time.Sleep(3 * time.Second) // longer than a proxy in the agent is given
	must.Succeed(t, a.agent.Start())
	l.awaitFloating(a, lb4, lb6)
	answered()

	// A switch to a dataplane and back concerns the service with backends alone.
	a.edit(`mode = "off"`, `mode = "auto"`)
	a.must("dataplane", "switch", "nft")
	expect.Contains(t, a.must("status"), "1 of 2 healthy, 1 unchecked")
	answered()
	a.must("dataplane", "switch", "off", "--force")
	if out, err := a.run("status"); err == nil || !strings.Contains(out, "1 refused") {
		t.Errorf("%v: %s", err, out)
	}
	l.awaitFloating(a, lb4, lb6)
	answered()
	for _, load := range loads {
		if o := load.end(); o.lost > 0 {
			t.Errorf("%s: %s", load.to, o)
		}
	}
}

// With a panic threshold, the last owner keeps the VIPs when no program runs, also after a restart of its agent, until a program
// runs on another host.
func TestLastOwnerKeepsFloatingAddress(t *testing.T) {
	t.Parallel()
	l, programs := newFloating(t, 2, patient)
	a, b := l.hosts[0], l.hosts[1]
	l.awaitFloating(nil, lb4, lb6)
	for _, h := range l.hosts {
		path := filepath.Join(h.dir, "services.d/s.toml")
		text := must.Get(os.ReadFile(path))(t)
		must.Succeed(t, os.WriteFile(path, []byte(strings.Replace(string(text), "forward = \"host\"", "forward = \"host\"\npanic_threshold = 1", 1)), 0o600))
		h.must("reload")
	}
	l.awaitFloating(nil, lb4, lb6)
	must.Succeed(t, programs[0].Start())
	l.awaitFloating(a, lb4, lb6)
	programs[0].Kill()
	kept := func(h *host) {
		t.Helper()
		wait.For(t, h.Name+" keeps the VIPs", func() error {
			out, err := h.run("announce", "explain", lb4.String())
			if err == nil && !strings.Contains(out, h.Name+": keeps it until another host is eligible") {
				err = errors.New(out)
			}
			return err
		})
		l.awaitFloating(h, lb4, lb6)
	}
	kept(a)
	must.Succeed(t, a.agent.Stop())
	must.Succeed(t, a.agent.Start())
	kept(a)
	a.agent.Kill()
	must.Succeed(t, a.agent.Start())
	kept(a)
	must.Succeed(t, programs[1].Start())
	l.awaitFloating(b, lb4, lb6)
	programs[1].Kill()
	kept(b)
	must.Succeed(t, programs[0].Start())
	l.awaitFloating(a, lb4, lb6)
}

// awaitPassed waits until the check of a host has passed.
func (h *host) awaitPassed() {
	h.t.Helper()
	wait.For(h.t, h.Name+" is ready", func() error {
		out, err := h.run("backend", "list")
		if err == nil && (!strings.Contains(out, " healthy") || strings.Contains(out, "unhealthy")) {
			err = errors.New(out)
		}
		return err
	})
}

// floating is a pair with a program of docs/recipes.md on both hosts. Something happens to the one that has the VIP, and to its
// program.
func floating(start func(b *testing.B) *floats, happen, undo func(*host, *process.Process)) func(b *testing.B) *scene {
	return func(b *testing.B) *scene {
		f := start(b)
		hosts, vip := f.lab.hosts, f.vips[0]
		for _, p := range f.programs {
			must.Succeed(b, p.Start())
		}
		f.ready(b)
		owner := 0
		return &scene{client: f.lab.client, vips: f.vips[:1], query: f.query,
			happen: func() {
				all, err := hosts[0].announcements()
				must.Succeed(b, err)
				owner = slices.IndexFunc(hosts, func(h *host) bool { return h.Name == all[vip].Owner })
				happen(hosts[owner], f.programs[owner])
				f.lab.awaitFloating(hosts[1-owner], f.vips...)
			},
			undo: func() { undo(hosts[owner], f.programs[owner]); f.ready(b) }}
	}
}

// floats are hosts with a program, each of which can have the VIPs.
type floats struct {
	lab      *lab
	programs []*process.Process
	vips     []netip.Addr
	query    []byte // a datagram for the program; nil: it takes connections
}

// ready waits until the checks of all hosts have passed, and for the time of announce.settle.
func (f *floats) ready(b *testing.B) {
	b.Helper()
	for _, h := range f.lab.hosts {
		h.awaitPassed()
	}
	time.Sleep(2 * time.Second)
}

// metrics returns the lines about finished health checks.
func (h *host) metrics() string {
	h.t.Helper()
	web := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(h.dir, "api.sock"))
	}}}
	answer := must.Get(web.Get("http://host/metrics"))(h.t)
	defer answer.Body.Close()
	var out []string
	for line := range strings.Lines(string(must.Get(io.ReadAll(answer.Body))(h.t))) {
		if strings.HasPrefix(line, "ironvip_health_checks_total{") {
			out = append(out, line)
		}
	}
	must.True(h.t, len(out) > 0, "no metrics of health checks")
	return strings.Join(out, "")
}
