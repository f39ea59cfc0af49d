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

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// floating is a service whose VIPs are for HAProxy of the host that has them.
const floating = `[[service]]
name = "lb"
vips = [%q, %q]
forward = "host"
ports = [{ port = 80 }]
health = { type = "tcp", interval = "200ms", fast_interval = "200ms", timeout = "5s", fall = 1 }
`

// newFloating starts hosts that float the first VIPs for HAProxy, with one service of another kind beside them.
func newFloating(t testing.TB, hosts int, extra string) (*lab, []*process.Process) {
	t.Helper()
	bin := need.Program(t, "haproxy")
	l := prepareLab(t, hosts)
	var programs []*process.Process
	for _, h := range l.hosts {
		other := services(2, l.backends)
		h.configure(fmt.Sprintf(floating, vip4(0), vip6(0))+other[strings.LastIndex(other, "[[service]]"):], l.config(h, "l2", l.peers()+extra))
		config := filepath.Join(h.dir, "haproxy.cfg")
		must.Succeed(t, os.WriteFile(config, []byte("listen lb\n  mode tcp\n  timeout connect 5s\n  timeout client 10s\n  timeout server 10s\n  bind :::80 v4v6\n  server s 127.0.0.1:9000\n"), 0o600))
		p := process.New(bin, filepath.Join(h.dir, "haproxy.log"), h.Node, "-db", "-q", "-f", config)
		programs = append(programs, p)
		t.Cleanup(p.Kill)
		h.start()
	}
	return l, programs
}

// awaitFloating waits until all hosts agree that one of them has the floating VIPs; nil: none has.
func (l *lab) awaitFloating(owner *host) {
	l.t.Helper()
	what := "the VIPs nowhere"
	if owner != nil {
		what = "the VIPs on " + owner.Name
	}
	wait.For(l.t, what, func() error {
		for _, h := range l.hosts {
			all, err := h.announcements()
			if err != nil {
				return err
			}
			for _, vip := range []netip.Addr{vip4(0), vip6(0)} {
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
	l.awaitFloating(nil)
	wait.For(t, "the reason", func() error {
		out, err := a.run("announce", "explain", vip4(0).String())
		if err == nil && !strings.Contains(out, "the check of this host has not passed") {
			err = errors.New(out)
		}
		return err
	})

	must.Succeed(t, programs[0].Start())
	l.awaitFloating(a)
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
	l.awaitFloating(b)
	for _, vip := range []netip.Addr{vip4(0), vip6(0)} {
		load := startLoad(t, l.client, vip, 10*time.Millisecond)
		load.awaitAnswers(10)
		b.agent.Kill()
		must.Succeed(t, b.agent.Start())
		l.awaitFloating(b)
		load.awaitAnswers(10)
		if o := load.end(); o.lost > 0 {
			t.Errorf("%s, while the agent restarts: %s", vip, o)
		}
	}
	programs[1].Kill()
	l.awaitFloating(nil)
	must.Succeed(t, programs[0].Start())
	l.awaitFloating(a)
	expect.Contains(t, a.must("service", "get", "lb"), "host")
}

// awaitPassed waits until the check of a host has passed.
func (h *host) awaitPassed() {
	h.t.Helper()
	wait.For(h.t, h.Name+" is ready", func() error {
		out, err := h.run("service", "get", "lb")
		if err == nil && !strings.Contains(out, " healthy") {
			err = errors.New(out)
		}
		return err
	})
}

// programKilled is a scene in which HAProxy is killed on the host that has the VIP of IPv4.
func programKilled(b *testing.B) *scene {
	l, programs := newFloating(b, 2, "")
	owner := func() int {
		all, err := l.hosts[0].announcements()
		must.Succeed(b, err)
		return slices.IndexFunc(l.hosts, func(h *host) bool { return h.Name == all[vip4(0)].Owner })
	}
	started := func(i int) {
		must.Succeed(b, programs[i].Start())
		l.hosts[i].awaitPassed()
	}
	started(0)
	started(1)
	time.Sleep(2 * time.Second) // settle
	killed := 0
	return &scene{client: l.client, vips: []netip.Addr{vip4(0)},
		happen: func() {
			killed = owner()
			programs[killed].Kill()
			l.awaitFloating(l.hosts[1-killed])
		},
		undo: func() { started(killed); time.Sleep(2 * time.Second) }}
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
