//go:build system || vm

package program

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
)

// inDirector runs commands, with a semicolon in between, in the director's namespace.
func inDirector(t *testing.T, l *netlab.Lab, commands string) string {
	t.Helper()
	var all []byte
	for command := range strings.SplitSeq(commands, ";") {
		args := strings.Fields(command)
		var out []byte
		var err error
		l.Director.Do(func() { out, err = exec.Command(args[0], args[1:]...).CombinedOutput() })
		must.Succeed(t, err, "%s: %s", command, out)
		all = append(all, out...)
	}
	return string(all)
}

// listKernel prints what dataplanes have in the kernel.
func listKernel() string {
	if mode == "ipvs" {
		return "ipvsadm -Sn; nft list tables"
	}
	return "nft list tables"
}

// inKernel waits until the nftables tables and the services of IPVS in the director's namespace, as "nft list tables" and
// "ipvsadm -Sn" print them, contain all of has, and nothing of lacks.
func inKernel(t *testing.T, h *host, l *netlab.Lab, has, lacks []string) {
	t.Helper()
	h.eventually(fmt.Sprintf("the kernel has %v and not %v", has, lacks), func() error {
		now := inDirector(t, l, listKernel())
		for _, s := range has {
			if !strings.Contains(now, s) {
				return errors.New(now)
			}
		}
		for _, s := range lacks {
			if strings.Contains(now, s) {
				return errors.New(now)
			}
		}
		return nil
	})
}

// opened opens a connection. Lives fails the test if the backend that answered first no longer does.
func opened(t *testing.T, l *netlab.Lab, to netip.AddrPort) (c *netlab.Conn, lives func(when string)) {
	t.Helper()
	c = must.Get(l.Client.Dial("tcp", to))(t)
	first := must.Get(c.Ask())(t)
	return c, func(when string) {
		t.Helper()
		if a, err := c.Ask(); err != nil || a.Name != first.Name {
			t.Errorf("%s: an open connection is answered by %q, %v", when, a.Name, err)
		}
	}
}

// keepAsking asks both services, one after the other, until stop is called. It returns the first failure.
func keepAsking(l *netlab.Lab, tcp, udp netip.AddrPort) (stop func() error) {
	end, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-end:
				done <- nil
				return
			default:
			}
			network, to := "tcp", tcp
			if n%2 > 0 {
				network, to = "udp", udp
			}
			_, err := l.Client.Ask(network, to)
			if err != nil && network == "udp" { // a datagram on its way may be lost
				_, err = l.Client.Ask(network, to)
			}
			if err != nil {
				done <- fmt.Errorf("%s: client %d by %s: %w", time.Now().Format(time.TimeOnly+".000"), n, network, err)
				return
			}
		}
	}()
	return func() error {
		close(end)
		return <-done
	}
}

// bothServe waits until both backends serve both services.
func bothServe(t *testing.T, h *host, l *netlab.Lab, tcp, udp netip.AddrPort) {
	t.Helper()
	names := []string{l.Backends[0].Name, l.Backends[1].Name}
	h.reaches(l.Client, "tcp", tcp.Addr().String(), int(tcp.Port()), names...)
	h.reaches(l.Client, "udp", udp.Addr().String(), int(udp.Port()), names...)
}

// drains sets the backend of the open connection c to drain, and expects that this is counted. Count is a regular expression
// for the number of connections. With end, it closes c and expects that nothing is left. Then the drain ends.
func drains(t *testing.T, h *host, l *netlab.Lab, c *netlab.Conn, count string, end bool) {
	t.Helper()
	a := must.Get(c.Ask())(t)
	addr := l.Backends[slices.IndexFunc(l.Backends, func(b *netlab.Node) bool { return b.Name == a.Name })].Addr4.String()
	h.ok("backend", "drain", "web", addr) // until the dataplane has it, however long that takes
	r := h.cli("backend", "drain", "web", addr, "--wait", "--timeout", "1s")
	for r.code == 6 { // no answer within a second, on a loaded machine
		r = h.cli("backend", "drain", "web", addr, "--wait", "--timeout", "5s")
	}
	if r.code != 3 || !regexp.MustCompile("still has "+count+" open connection").MatchString(r.stderr) {
		t.Errorf("drain with a connection: exit %d\n%s", r.code, r.stderr)
	}
	list := regexp.MustCompile(`(?m)^web +` + regexp.QuoteMeta(addr) + ` +drain .* ` + count + ` +- +- +- *$`)
	out := h.ok("backend", "list", "web")
	expect.True(t, list.MatchString(out), "the list of backends doesn't count the connection:\n%s", out)
	if end {
		c.Close()
		if r := h.cli("backend", "drain", "web", addr, "--wait", "--timeout", "1m"); r.code != 0 {
			t.Errorf("drain without a connection: exit %d\n%s", r.code, r.stderr)
		}
	}
	h.ok("override", "clear", "web", addr)
}

// twoServices writes a service of TCP and one of UDP with the lab's backends, and returns their addresses.
func twoServices(t *testing.T, h *host, l *netlab.Lab) (tcp, udp netip.AddrPort) {
	t.Helper()
	tcp, udp = netip.MustParseAddrPort(h.pool+".20:80"), netip.MustParseAddrPort(h.pool+".20:53")
	var backends []string
	for _, b := range l.Backends {
		b.Serve("tcp", netip.AddrPortFrom(b.Addr4, 80))
		b.Serve("udp", netip.AddrPortFrom(b.Addr4, 53))
		backends = append(backends, fmt.Sprintf("{ address = %q }", b.Addr4))
	}
	write := func(name, port string) string {
		return fmt.Sprintf("[[service]]\nname = %q\nvips = [%q]\nshare_key = \"one\"\nscheduler = \"rr\"\nports = [ { %s } ]\nbackends = [ %s ]\nhealth = { type = \"none\" }\n",
			name, tcp.Addr(), port, strings.Join(backends, ", "))
	}
	h.write("services.d/all.toml", write("web", "port = 80")+write("dns", `port = 53, protocol = "udp"`))
	return tcp, udp
}

// happened waits for events with these words: an event comes after what it tells.
func happened(t *testing.T, h *host, words ...string) {
	t.Helper()
	h.eventually("the events", func() error {
		events := h.ok("events")
		for _, w := range words {
			if !strings.Contains(events, w) {
				return fmt.Errorf("%q is not said:\n%s", w, events)
			}
		}
		return nil
	})
}
