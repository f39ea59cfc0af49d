//go:build linux && vm

package probepath

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// town is a director with two real servers that serve a VIP only.
type town struct {
	*netlab.Lab
	t        *testing.T
	frontend vip.Frontend
	plane    *vips.Plane
	paths    *Target
}

// own returns a node's address of the VIP's family.
func (w *town) own(n *netlab.Node) netip.Addr {
	if w.frontend.Key.Addr.Is6() {
		return n.Addr6
	}
	return n.Addr4
}

func newTown(t *testing.T, at string, p vip.Protocol, way vip.Forward) *town {
	need.Module(t, "ipip")
	need.Module(t, "ip6_tunnel")
	w := &town{Lab: netlab.New(t), t: t}
	to := netip.MustParseAddrPort(at)
	w.frontend = vip.Frontend{Key: vip.FrontendKey{Addr: to.Addr(), Port: to.Port(), Protocol: p}, Kind: vip.OnVIP,
		Scheduler: vip.WeightedRoundRobin, Forward: way, Masquerade: vip.MasqueradeNever}
	for _, b := range w.Backends {
		w.frontend.Backends = append(w.frontend.Backends, vip.Endpoint{Addr: netip.AddrPortFrom(w.own(b), to.Port()), Weight: 1})
	}
	for i, b := range w.Backends {
		f := w.frontend
		f.Kind, f.Backends = vip.OnRealServer, f.Backends[i:i+1]
		w.program(b, &f)
		b.Serve(p.String(), to)
		// As on hosts that were not made for probes.
		w.Director.Sysctl("ipv4/conf/"+b.Name+"/accept_local", "0")
		w.Director.Sysctl("ipv4/conf/"+b.Name+"/rp_filter", "1")
	}
	w.Director.Sysctl("ipv4/conf/all/rp_filter", "1")
	w.plane = w.program(w.Director, &w.frontend)
	w.paths = w.newTarget()
	return w
}

// program starts a dataplane in a node with one frontend.
func (w *town) program(n *netlab.Node, f *vip.Frontend) (plane *vips.Plane) {
	w.t.Helper()
	n.Do(func() {
		target := must.Get(ipvs.New(ipvs.Options{Owns: func(a netip.Addr) bool { return a == f.Key.Addr }}))(w.t)
		plane = must.Get(vips.New(vips.Options{Plane: target}))(w.t)
		w.t.Cleanup(func() { plane.Close(); target.Close() })
	})
	w.set(n, plane, nil, f)
	return plane
}

func (w *town) set(n *netlab.Node, plane *vips.Plane, old, new *vip.Frontend) {
	w.t.Helper()
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: w.frontend.Key, Old: old, New: new}}
	n.Do(func() {
		if err := plane.Apply(w.t.Context(), batch); err != nil || batch[0].Err != nil {
			w.t.Fatal(err, batch[0].Err)
		}
	})
}

func (w *town) newTarget() (target *Target) {
	w.t.Helper()
	w.Director.Do(func() {
		var err error
		if target, err = New(Options{Table: "ironvip_probes"}); err != nil {
			w.t.Fatal(err)
		}
	})
	w.t.Cleanup(func() { target.Close() })
	return target
}

// path returns the path to a backend.
func (w *town) path(n *netlab.Node) vip.ProbePath {
	return vip.ProbePath{VIP: w.frontend.Key.Addr, Backend: w.own(n), Forward: w.frontend.Forward}
}

func (w *town) put(batch []updateOf) {
	w.t.Helper()
	w.Director.Do(func() { put(w.t, w.paths, batch) })
}

// mark returns the mark of a path.
func (w *town) mark(p vip.ProbePath) (mark uint32) {
	w.t.Helper()
	w.Director.Do(func() {
		var err error
		if mark, err = w.paths.Mark(p); err != nil {
			w.t.Fatal(err)
		}
	})
	return mark
}

// probe asks a backend along its path as the director's agent does, and returns the answer.
func (w *town) probe(n *netlab.Node, port uint16, patience time.Duration) (string, error) {
	w.t.Helper()
	mark := w.mark(w.path(n))
	var answer string
	var err error
	w.Director.Do(func() {
		answer, err = ask(w.t.Context(), w.frontend.Key.Protocol, w.own(n).Prev(), netip.AddrPortFrom(w.frontend.Key.Addr, port), int(mark), patience)
	})
	return answer, err
}

// silence is how long no answer comes, when answers have come just before.
const silence = 500 * time.Millisecond

func ask(ctx context.Context, p vip.Protocol, from netip.Addr, to netip.AddrPort, mark int, patience time.Duration) (string, error) {
	var own net.Addr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	if p == vip.UDP {
		own = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	d := net.Dialer{LocalAddr: own, Timeout: patience, Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) })
	}}
	c, err := d.DialContext(ctx, p.String(), to.String())
	if err != nil {
		return "", err
	}
	defer c.Close()
	if tcp, is := c.(*net.TCPConn); is {
		_ = tcp.SetLinger(0)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintln(c, "hello"); err != nil {
		return "", err
	}
	b := make([]byte, 100)
	n, err := c.Read(b)
	return strings.TrimSpace(string(b[:n])), err
}

// answers checks that a backend answers probes, and sees the director as their client.
func (w *town) answers(when string, n *netlab.Node) {
	w.t.Helper()
	for range 2 {
		answer, err := w.probe(n, w.frontend.Key.Port, wait.Reply)
		name, client, _ := strings.Cut(answer, " ")
		at, _ := netip.ParseAddrPort(client)
		if err != nil || name != n.Name || at.Addr() != w.own(n).Prev() {
			w.t.Fatalf("%s: %s is answered by %q, %v\n%s", when, n.Name, answer, err, w.state())
		}
	}
}

// silent checks that a backend answers no probe.
func (w *town) silent(when string, n *netlab.Node) {
	w.t.Helper()
	if answer, err := w.probe(n, w.frontend.Key.Port, silence); err == nil {
		w.t.Errorf("%s: %s is answered by %q\n%s", when, n.Name, answer, w.state())
	}
}

// run runs a program in a node and returns its output.
func (w *town) run(n *netlab.Node, args ...string) string {
	w.t.Helper()
	var out []byte
	var err error
	n.Do(func() { out, err = exec.Command(args[0], args[1:]...).CombinedOutput() })
	must.Succeed(w.t, err, "%v: %v: %s", args, err, out)
	return string(out)
}

// state describes the director for failures.
func (w *town) state() string {
	return w.run(w.Director, "ipvsadm", "-Ln") + w.run(w.Director, "ipvsadm", "-Lcn") + w.run(w.Director, "nft", "list", "table", "inet", "ironvip_probes")
}

// everyWay runs a test for each way in each family, and with each protocol.
func everyWay(t *testing.T, test func(t *testing.T, w *town)) {
	for _, x := range []struct {
		way vip.Forward
		at  string
		p   vip.Protocol
	}{
		{vip.ForwardDirect, "10.96.0.1:80", vip.TCP}, {vip.ForwardDirect, "[fd96::1]:80", vip.UDP},
		{vip.ForwardTunnel, "10.96.0.1:80", vip.UDP}, {vip.ForwardTunnel, "[fd96::1]:80", vip.TCP},
	} {
		t.Run(fmt.Sprintf("%s %s %s", x.way, x.at, x.p), func(t *testing.T) { test(t, newTown(t, x.at, x.p, x.way)) })
	}
}

// A probe reaches its one backend at the VIP, although this host has the VIP and refuses packets
// from its own addresses. It fails if the backend lost its tunnel, which a connection to
// the backend's own address does not notice.
func TestProbesTakeThePathOfClients(t *testing.T) {
	everyWay(t, func(t *testing.T, w *town) {
		before := w.run(w.Director, "ipvsadm", "-Sn") + w.run(w.Director, "nft", "list", "ruleset")
		for _, b := range w.Backends {
			w.put(additions(w.path(b)))
		}
		for _, b := range w.Backends {
			w.answers("at first", b)
		}
		answer, err := w.probe(w.Backends[0], 81, wait.Reply)
		expect.Is(t, err, unix.ECONNREFUSED, "a closed port: %q", answer)
		// The service refuses clients, because its checks failed. Probes must find that it works again.
		down := w.frontend
		down.Backends = nil
		for _, e := range w.frontend.Backends {
			e.Weight = 0
			down.Backends = append(down.Backends, e)
		}
		w.set(w.Director, w.plane, &w.frontend, &down)
		w.answers("while clients are refused", w.Backends[0])
		w.set(w.Director, w.plane, &down, &w.frontend)

		if w.frontend.Forward == vip.ForwardTunnel {
			w.run(w.Backends[0], "ip", "link", "del", host.NewTunnels(ipvs.DefaultDevice, nil).Name(w.own(w.Backends[0])))
			w.silent("without the tunnel", w.Backends[0])
		}

		for _, b := range w.Backends {
			// IPVS lowers the MTU of the route of a socket by what a tunnel takes. The lowered route
			// must not be the one to the backend.
			if route := w.run(w.Director, "ip", "route", "get", w.own(b).String()); strings.Contains(route, "mtu") {
				t.Errorf("probes changed the route to %s: %s", b.Name, route)
			}
			w.put(removals(w.path(b)))
		}
		expect.Equal(t, w.run(w.Director, "ipvsadm", "-Sn")+w.run(w.Director, "nft", "list", "ruleset"), before, "the kernel at the end")
	})
}

// A restart adopts the paths without a change. A change by another program is found and repaired.
func TestRestartAndDriftInTheKernel(t *testing.T) {
	for at, way := range map[string]vip.Forward{"10.96.0.1:80": vip.ForwardDirect, "[fd96::1]:80": vip.ForwardTunnel} {
		t.Run(way.String()+" "+at, func(t *testing.T) {
			w := newTown(t, at, vip.TCP, way)
			all := []vip.ProbePath{w.path(w.Backends[0]), w.path(w.Backends[1])}
			w.put(additions(all...))
			s := w.paths.Stats()
			expect.Equal(t, s.Services, 4, "two paths took %+v", s)
			read := func() (have, damaged []vip.ProbePath) {
				w.Director.Do(func() { have, damaged = actual(t, w.paths) })
				return have, damaged
			}
			w.paths = w.newTarget()
			if have, damaged := read(); len(have) != 2 || len(damaged) > 0 {
				t.Errorf("after a restart: %v, damaged %v", have, damaged)
			}
			expect.Equal(t, w.paths.Stats(), (Stats{}), "the writes of a restart")
			w.answers("after a restart", w.Backends[0])

			mark := w.mark(all[0])
			family := []string{"-4"}[:0]
			if w.frontend.Key.Addr.Is6() {
				family = []string{"-6"}
			}
			for _, change := range [][]string{
				append([]string{"ipvsadm", "-D", "-f", fmt.Sprint(mark)}, family...),
				append([]string{"ipvsadm", "-E", "-s", "sed", "-f", fmt.Sprint(mark)}, family...),
				{"nft", "delete", "table", "inet", "ironvip_probes"},
				{"nft", "flush", "chain", "inet", "ironvip_probes", "answers"},
			} {
				w.run(w.Director, change...)
				w.repair(all)
				w.answers(fmt.Sprint("after ", change), w.Backends[0])
				if _, damaged := read(); len(damaged) > 0 {
					t.Errorf("after %v: damaged %v", change, damaged)
				}
			}
		})
	}
}

// repair does what the reconciler does at a resync.
func (w *town) repair(want []vip.ProbePath) {
	w.t.Helper()
	w.Director.Do(func() {
		have, damaged := actual(w.t, w.paths)
		var batch []updateOf
		for i := range want {
			switch p := &want[i]; {
			case slices.Contains(damaged, *p):
				batch = append(batch, updateOf{Key: *p, Old: p, New: p, Repair: true})
			case !slices.Contains(have, *p):
				batch = append(batch, updateOf{Key: *p, New: p, Repair: true})
			}
		}
		expect.True(w.t, len(batch) > 0, "the damage was not found")
		put(w.t, w.paths, batch)
	})
}
