//go:build linux && vm

package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/kernelplane/conntrack"
	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// town is a lab with servers on port 8080 of each backend, for both protocols and families, and
// on a port of every address of the director.
type town struct {
	*netlab.Lab
	*planeIn
}

const hostPort = 2222

func newTown(t *testing.T, change ...func(*Options)) *town {
	lab := newTownLab(t)
	return &town{lab, newPlane(t, lab.Director, change...)}
}

// newTownLab returns a lab with servers on every backend and on the director, without a Target.
func newTownLab(t *testing.T) *netlab.Lab {
	lab := netlab.New(t)
	for _, n := range lab.Backends {
		for _, network := range []string{"tcp", "udp"} {
			n.Serve(network, netip.AddrPortFrom(n.Addr4, 8080))
			n.Serve(network, netip.AddrPortFrom(n.Addr6, 8080))
		}
	}
	// Disable the rate limit of ICMP errors. Backends that reach each other through the director
	// cause ICMP redirects, which count against the limit as refusals do.
	lab.Director.Sysctl("ipv4/icmp_ratelimit", "0")
	lab.Director.Serve("tcp", netip.AddrPortFrom(netip.IPv6Unspecified(), hostPort))
	lab.Director.Serve("udp", netip.AddrPortFrom(netip.IPv6Unspecified(), hostPort))
	return lab
}

func pods(prefixes ...string) func(*Options) {
	var all []netip.Prefix
	for _, p := range prefixes {
		all = append(all, netip.MustParsePrefix(p))
	}
	return func(o *Options) { o.PodCIDRs = func() []netip.Prefix { return all } }
}

// backends returns the servers of the first n backends, of an address's family.
func (w *town) backends(at string, n int) []netip.AddrPort {
	var all []netip.AddrPort
	for _, b := range w.Backends[:n] {
		own := b.Addr4
		if netip.MustParseAddrPort(at).Addr().Is6() {
			own = b.Addr6
		}
		all = append(all, netip.AddrPortFrom(own, 8080))
	}
	return all
}

func (w *town) serve(t *testing.T, at string, p vip.Protocol, n int) *vip.Frontend {
	t.Helper()
	f := frontend(at, p, w.backends(at, n)...)
	w.Create(t, f)
	return f
}

func gateway(a netip.Addr) netip.Addr { return a.Prev() }

// every calls f for each protocol and family.
func every(t *testing.T, f func(t *testing.T, at string, p vip.Protocol)) {
	for _, p := range []vip.Protocol{vip.TCP, vip.UDP} {
		for _, at := range []string{"10.96.0.1:80", "[fd96::1]:80"} {
			t.Run(p.String()+" "+at, func(t *testing.T) { f(t, at, p) })
		}
	}
}

// Clients outside, this host and the backends themselves reach every backend. The address that
// the backend sees depends on the client.
func TestTrafficAndMasquerade(t *testing.T) {
	const clientNet4, clientNet6 = "10.77.0.0/24", "fd77::/64"
	cases := []struct {
		name       string
		pods       []string
		masquerade vip.Masquerade
		keeps      bool // the backend sees the client's address
	}{
		{"auto, client is no pod", nil, vip.MasqueradeAuto, false},
		{"auto, client is a pod", []string{clientNet4, clientNet6, "10.77.1.0/24", "fd77:1::/64"}, vip.MasqueradeAuto, true},
		{"always, client is a pod", []string{clientNet4, clientNet6}, vip.MasqueradeAlways, false},
		{"never", nil, vip.MasqueradeNever, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			every(t, func(t *testing.T, at string, p vip.Protocol) {
				w := newTown(t, pods(c.pods...))
				f := frontend(at, p, w.backends(at, 2)...)
				f.Masquerade = c.masquerade
				w.Create(t, f)
				seen := map[string]int{}
				for range 6 {
					a, err := w.Client.Ask(p.String(), f.Key.AddrPort())
					if err != nil {
						t.Fatal(err)
					}
					seen[a.Name]++
					from := w.node4or6(w.Client, at)
					if kept := a.Client.Addr() == from; kept != c.keeps {
						t.Errorf("%s saw the client %s as %s", a.Name, from, a.Client.Addr())
					}
				}
				if seen["backend1"] != 3 || seen["backend2"] != 3 {
					t.Errorf("six questions were answered by %v", seen)
				}
				if c.masquerade == vip.MasqueradeNever {
					return // then replies to the host itself and to a backend that is its own client have no way back
				}
				a, err := w.Director.Ask(p.String(), f.Key.AddrPort())
				if err != nil {
					t.Fatalf("from the director: %v", err)
				}
				if !owns(a.Client.Addr()) && a.Client.Addr().IsValid() {
					t.Logf("the director is seen as %s", a.Client.Addr())
				} else {
					t.Errorf("a backend sees the director as %s, a virtual address", a.Client.Addr())
				}
				hairpin := with(f, func(f *vip.Frontend) { f.Backends = f.Backends[:1] })
				w.change(t, f, hairpin)
				if a, err = w.Backends[0].Ask(p.String(), f.Key.AddrPort()); err != nil || a.Name != "backend1" {
					t.Errorf("a backend that reaches itself: %v, %v", a, err)
				}
			})
		})
	}
}

func (w *town) node4or6(n *netlab.Node, at string) netip.Addr {
	if netip.MustParseAddrPort(at).Addr().Is6() {
		return n.Addr6
	}
	return n.Addr4
}

func TestNodePort(t *testing.T) {
	w := newTown(t, pods("10.77.0.0/16", "fd77::/16"))
	for _, at := range []string{"10.77.0.1:30080", "[fd77::1]:30080"} {
		for _, p := range []vip.Protocol{vip.TCP, vip.UDP} {
			f := frontend(at, p, w.backends(at, 2)...)
			f.Kind = vip.OnHost
			w.Create(t, f)
			a, err := w.Client.Ask(p.String(), f.Key.AddrPort())
			if err != nil {
				t.Fatalf("%s: %v", f.Key, err)
			}
			if from := w.node4or6(w.Client, at); a.Client.Addr() == from {
				t.Errorf("%s: %s saw the client's own address", f.Key, a.Name)
			}
			if _, err := w.Director.Ask(p.String(), f.Key.AddrPort()); err != nil {
				t.Errorf("%s from the director: %v", f.Key, err)
			}
			// The host's other listeners on that address are not affected.
			if a, err := w.Client.Ask(p.String(), netip.AddrPortFrom(f.Key.Addr, hostPort)); err != nil || a.Name != "director" {
				t.Errorf("the host's own %s listener: %v, %v", p, a, err)
			}
			empty := with(f, func(f *vip.Frontend) { f.Backends = nil })
			w.change(t, f, empty)
			w.refused(t, w.Client, p, f.Key.AddrPort())
			w.remove(t, empty)
		}
	}
	if out := run(t, w.Director, "ip", "-o", "addr", "show", "dev", DefaultDevice, "scope", "global"); out != "" {
		t.Errorf("node ports put an address on the device: %s", out)
	}
}

// refused checks that a request is refused immediately. On a busy machine some refusals may be
// late, but not ten in a row.
func (w *town) refused(t *testing.T, from *netlab.Node, p vip.Protocol, at netip.AddrPort) {
	t.Helper()
	var took time.Duration
	for range 10 {
		start := time.Now()
		a, err := from.Ask(p.String(), at)
		took = time.Since(start)
		// In its own output, the kernel answers the sender of a refused datagram with EPERM before the ICMP error arrives.
		ownDatagram := p == vip.UDP && from.Name == "director" && errors.Is(err, syscall.EPERM)
		if !errors.Is(err, syscall.ECONNREFUSED) && !ownDatagram {
			t.Errorf("%s asking %s/%s: %v, %v, want a refusal", from.Name, at, p, a, err)
			return
		}
		if took < 900*time.Millisecond { // a lost SYN is sent again after 1 s
			return
		}
	}
	t.Errorf("%s asking %s/%s was refused only after %v", from.Name, at, p, took)
}

// A virtual address refuses ports without a service. Listeners on all addresses of the host are
// not reachable through it.
func TestRefusals(t *testing.T) {
	every(t, func(t *testing.T, at string, p vip.Protocol) {
		w := newTown(t)
		f := w.serve(t, at, p, 1)
		if _, err := w.Client.Ask(p.String(), f.Key.AddrPort()); err != nil {
			t.Fatal(err)
		}
		for _, from := range []*netlab.Node{w.Client, w.Director, w.Backends[0]} {
			w.refused(t, from, p, netip.AddrPortFrom(f.Key.Addr, hostPort))
			w.refused(t, from, p, netip.AddrPortFrom(f.Key.Addr, 81))
			host := netip.AddrPortFrom(w.node4or6(w.Director, at), hostPort)
			if from != w.Director {
				host = netip.AddrPortFrom(gateway(w.node4or6(from, at)), hostPort) // the source of a UDP answer
			}
			if a, err := from.Ask(p.String(), host); err != nil || a.Name != "director" {
				t.Errorf("%s asking the host itself: %v, %v", from.Name, a, err)
			}
			ping(t, from, f.Key.Addr)
		}
		quiet := with(f, func(f *vip.Frontend) { f.Backends[0].Weight = 0 })
		w.change(t, f, quiet)
		for _, from := range []*netlab.Node{w.Client, w.Director} {
			w.refused(t, from, p, f.Key.AddrPort())
		}
		empty := with(f, func(f *vip.Frontend) { f.Backends = nil })
		w.change(t, quiet, empty)
		for _, from := range []*netlab.Node{w.Client, w.Director} {
			w.refused(t, from, p, f.Key.AddrPort())
			ping(t, from, f.Key.Addr)
		}
		w.change(t, empty, f)
		if _, err := w.Client.Ask(p.String(), f.Key.AddrPort()); err != nil {
			t.Errorf("with its backend back: %v", err)
		}
		// After another program has deleted a service, its port doesn't lead to the host's
		// listener either.
		exposed := frontend(netip.AddrPortFrom(f.Key.Addr, hostPort).String(), p, w.backends(at, 1)...)
		w.Create(t, exposed)
		run(t, w.Director, "ipvsadm", "-D", "-"+p.String()[:1], exposed.Key.AddrPort().String())
		w.refused(t, w.Client, p, exposed.Key.AddrPort())
	})
}

// ping sends one echo request and waits for the reply.
func ping(t *testing.T, from *netlab.Node, to netip.Addr) {
	t.Helper()
	network, request, reply := "ip4:icmp", byte(8), byte(0)
	if to.Is6() {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	var c net.Conn
	var err error
	from.Do(func() { c, err = net.Dial(network, to.String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m := []byte{request, 0, 0, 0, 0x77, 1, 0, 1}
	if to.Is4() { // for IPv6 the kernel computes the checksum
		var sum uint32
		for i := 0; i < len(m); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(m[i:]))
		}
		binary.BigEndian.PutUint16(m[2:], ^uint16(sum+sum>>16))
	}
	if _, err := c.Write(m); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	for buf := make([]byte, 100); ; {
		n, err := c.Read(buf)
		if err != nil {
			t.Errorf("%s pings %s: %v", from.Name, to, err)
			return
		}
		m := buf[:n]
		if to.Is4() && n > 20 { // a raw IPv4 socket receives the IP header, too
			m = m[int(m[0]&15)*4:]
		}
		if len(m) >= 8 && m[0] == reply {
			return
		}
	}
}

// A draining backend keeps its connections and gets no new ones. It is idle when its last
// connection has ended.
func TestDrain(t *testing.T) {
	w := newTown(t)
	now := time.Now()
	w.idleTracker.now = func() time.Time { return now }
	f := w.serve(t, "10.96.0.1:80", vip.TCP, 1)
	first := f.Backends[0].Addr
	c, err := w.Client.Dial("tcp", f.Key.AddrPort())
	if err != nil {
		t.Fatal(err)
	}
	if a, err := c.Ask(); err != nil || a.Name != "backend1" {
		t.Fatal(a, err)
	}
	g := frontend("10.96.0.1:80", vip.TCP, w.backends("10.96.0.1:80", 2)...)
	g.Backends[0].Weight = 0
	w.change(t, f, g)
	for range 4 {
		if a, err := w.Client.Ask("tcp", f.Key.AddrPort()); err != nil || a.Name != "backend2" {
			t.Errorf("a new connection: %v, %v", a, err)
		}
	}
	if a, err := c.Ask(); err != nil || a.Name != "backend1" {
		t.Errorf("the open connection: %v, %v", a, err)
	}
	count := func() int {
		t.Helper()
		var n map[netip.AddrPort]int
		var err error
		n, err = w.Connections(t.Context(), f.Key)
		if err != nil {
			t.Fatal(err)
		}
		return n[first]
	}
	if n := count(); n != 1 {
		t.Errorf("%d connections, want the open one", n)
	}
	c.Close()
	// The closed connection waits for its timer. It counts until no packet has come for a while.
	// The kernel's counter settles in 2 s.
	deadline := time.Now().Add(testTimeout)
	for count() != 0 && time.Now().Before(deadline) {
		time.Sleep(500 * time.Millisecond)
		now = now.Add(time.Second)
	}
	if n := count(); n != 0 {
		t.Errorf("%d connections long after the last was closed", n)
	}
	// The kernel still has the connection, so it counts where the kernel doesn't count packets.
	t.Run("counters stand still", func(t *testing.T) {
		needRunEstimation(t)
		w.Director.Sysctl("ipv4/vs/run_estimation", "0")
		if n := count(); n != 1 {
			t.Errorf("%d connections where the counters stand still, want the one that waits", n)
		}
		w.Director.Sysctl("ipv4/vs/run_estimation", "1")
	})
	// A backend that returns only gets its weight back.
	before := w.Stats()
	back := with(g, func(f *vip.Frontend) { f.Backends[0].Weight = 1 })
	w.change(t, g, back)
	if n := w.Stats().Writes() - before.Writes(); n != 1 {
		t.Errorf("a return cost %d writes", n)
	}
}

// A backend with its maximum of connections is skipped. If all have theirs, clients are refused.
// Open connections continue.
func TestBackendLimit(t *testing.T) {
	every(t, func(t *testing.T, at string, p vip.Protocol) {
		if p != vip.TCP {
			return
		}
		w := newTown(t)
		f := frontend(at, p, w.backends(at, 2)...)
		f.Backends[0].MaxConnections, f.Backends[1].MaxConnections = 1, 2
		w.Create(t, f)
		w.Wants(t, f)
		var open []*netlab.Conn
		got := map[string]int{}
		for range 3 {
			c, err := w.Client.Dial("tcp", f.Key.AddrPort())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			a, err := c.Ask()
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, c)
			got[a.Name]++
		}
		if got["backend1"] != 1 || got["backend2"] != 2 {
			t.Errorf("connections go to %v", got)
		}
		// IPVS refuses with an ICMP error, not with a reset. An error that arrives while the client
		// is still in connect(2) counts only when the client repeats its SYN after 1 s.
		if a, err := w.Client.Ask("tcp", f.Key.AddrPort()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("one more: %v, %v, want a refusal", a, err)
		}
		for _, c := range open {
			if _, err := c.Ask(); err != nil {
				t.Errorf("an open connection: %v", err)
			}
		}
		before := w.Stats()
		more := with(f, func(f *vip.Frontend) { f.Backends[0].MaxConnections = 0 })
		w.change(t, f, more)
		w.Wants(t, more)
		if n := w.Stats().Writes() - before.Writes(); n != 1 {
			t.Errorf("a limit cost %d writes", n)
		}
		if a, err := w.Client.Ask("tcp", f.Key.AddrPort()); err != nil || a.Name != "backend1" {
			t.Errorf("without the limit: %v, %v", a, err)
		}
	})
}

// A UDP client that keeps its port is answered by another backend as soon as its own is removed,
// and is refused when no backend is left.
func TestUDPBackendLeaves(t *testing.T) {
	for _, at := range []string{"10.96.0.1:53", "[fd96::1]:53"} {
		t.Run(at, func(t *testing.T) {
			w := newTown(t)
			f := w.serve(t, at, vip.UDP, 2)
			c, err := w.Client.Dial("udp", f.Key.AddrPort())
			if err != nil {
				t.Fatal(err)
			}
			a, err := c.Ask()
			if err != nil {
				t.Fatal(err)
			}
			staying := 0
			if a.Name == "backend1" {
				staying = 1
			}
			g := with(f, func(f *vip.Frontend) { f.Backends = f.Backends[staying : staying+1] })
			w.change(t, f, g)
			if out, gone := run(t, w.Director, "conntrack", "-L"), f.Backends[1-staying].Addr.Addr().String(); strings.Contains(out, "src="+gone+" ") {
				t.Errorf("connection tracking still knows %s:\n%s", gone, out)
			}
			b, err := c.Ask()
			if err != nil || b.Name == a.Name {
				t.Errorf("after %s left: %v, %v", a.Name, b, err)
			}
			empty := with(f, func(f *vip.Frontend) { f.Backends = nil })
			w.change(t, g, empty)
			if _, err := c.Ask(); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("with no backend left: %v", err)
			}
			w.change(t, empty, f)
			if _, err := c.Ask(); err != nil {
				t.Errorf("with the backends back: %v", err)
			}
			w.remove(t, f)
			w.Create(t, f)
			if _, err := c.Ask(); err != nil {
				t.Errorf("after the service was gone and came back: %v", err)
			}
		})
	}
}

// Our deletion of connection tracking entries deletes exactly the outdated ones. Newer kernels
// delete an entry themselves a while after IPVS has expired the client's connection, so the
// sysctl for that is off here.
func TestUDPFlowsAreDeleted(t *testing.T) {
	w := newTown(t)
	w.Director.Sysctl("ipv4/vs/expire_nodest_conn", "0")
	a, b := w.serve(t, "10.96.0.1:53", vip.UDP, 2), w.serve(t, "10.96.0.2:53", vip.UDP, 1)
	c := w.serve(t, "10.96.0.3:53", vip.TCP, 1)
	for range 2 { // one for each backend
		if _, err := w.Client.Ask("udp", a.Key.AddrPort()); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []*vip.Frontend{b, c} {
		if _, err := w.Client.Ask(f.Key.Protocol.String(), f.Key.AddrPort()); err != nil {
			t.Fatal(err)
		}
	}
	deleted := func(want uint64, when string) {
		t.Helper()
		if n := w.Stats().ConntrackFlows; n != want {
			t.Errorf("%s: %d entries deleted, want %d:\n%s", when, n, want, run(t, w.Director, "conntrack", "-L"))
		}
	}
	deleted(0, "at first")
	w.change(t, a, with(a, func(f *vip.Frontend) { f.Backends = f.Backends[:1] }))
	deleted(1, "one backend gone")
	w.remove(t, c)
	deleted(1, "a tcp service gone")
	w.remove(t, b)
	deleted(2, "the other service gone")
	p := newPlane(t, w.Director)
	p.Put(t, repairOf(with(a, func(f *vip.Frontend) { f.Backends = f.Backends[:1] })))
	if n := p.Stats().ConntrackFlows; n != 0 {
		t.Errorf("a restart deleted %d entries", n)
	}
}

// A client that sent a request before the service existed, and keeps its port, is served when the
// service exists.
func TestUDPClientCameTooEarly(t *testing.T) {
	w := newTown(t)
	w.serve(t, "10.96.0.1:80", vip.TCP, 1)
	node := frontend("10.77.0.1:30053", vip.UDP, w.backends("10.77.0.1:30053", 1)...)
	node.Kind = vip.OnHost
	for _, c := range []struct {
		from *netlab.Node
		f    *vip.Frontend
	}{
		{w.Client, node},
		{w.Director, frontend("10.96.0.1:53", vip.UDP, w.backends("10.96.0.1:53", 1)...)},
	} {
		conn, err := c.from.Dial("udp", c.f.Key.AddrPort())
		if err != nil {
			t.Fatal(err)
		}
		if a, err := conn.Ask(); err == nil {
			t.Fatalf("%s: %v answered without a service", c.f.Key, a)
		}
		before := w.Stats()
		w.Create(t, c.f)
		if n := w.Stats().ConntrackFlows - before.ConntrackFlows; n != 1 {
			t.Errorf("%s: %d entries deleted, want 1", c.f.Key, n)
		}
		if a, err := conn.Ask(); err != nil || a.Client.Addr() == w.Client.Addr4 {
			t.Errorf("%s: %v, %v", c.f.Key, a, err)
		}
	}
}

// The connection tracking table is read once per batch and family, and only if a UDP service or
// backend was removed, regardless of the number of changes.
func TestUDPChangesShareOneDump(t *testing.T) {
	w := newTown(t)
	const n = 20
	var udp, fewer, create, mixed, gone, empty, weights []*vip.Frontend
	for i := range n {
		f := frontend(fmt.Sprintf("10.96.1.%d:53", i+1), vip.UDP, addrs("10.77.1.2:53", "10.77.2.2:53")...)
		udp = append(udp, f)
		weights = append(weights, with(f, func(f *vip.Frontend) { f.Backends[0].Weight = 0 }))
		fewer = append(fewer, with(f, func(f *vip.Frontend) { f.Backends = f.Backends[1:] }))
		empty = append(empty, with(f, func(f *vip.Frontend) { f.Backends = nil }))
		create, gone = append(create, nil), append(gone, nil)
		g := fewer[i]
		if i%2 == 0 {
			g = nil
		}
		mixed = append(mixed, g)
	}
	batch := func(old, new []*vip.Frontend) (all []updateOf) {
		for i := range old {
			all = append(all, updateOf{Key: udp[i].Key, Old: old[i], New: new[i]})
		}
		return all
	}
	six := frontend("[fd96::1]:53", vip.UDP, addrs("[fd77:1::2]:53")...)
	tcp := frontend("10.96.0.1:53", vip.TCP, addrs("10.77.1.2:53")...)
	for _, c := range []struct {
		name  string
		batch []updateOf
		dumps uint64
	}{
		{"tcp comes, with the table", []updateOf{{Key: tcp.Key, New: tcp}}, 1},
		{"tcp goes", []updateOf{{Key: tcp.Key, Old: tcp}}, 0},
		{"services come", batch(create, udp), 1},
		{"weights", batch(udp, weights), 0},
		{"weights again", batch(weights, udp), 0},
		{"backends go", batch(udp, fewer), 1},
		{"backends come", batch(fewer, udp), 0},
		{"services and backends go", batch(udp, mixed), 1},
		{"both come back, and one of ipv6", append(batch(mixed, udp), updateOf{Key: six.Key, New: six}), 2},
		{"all backends go", batch(udp, empty), 1},
		{"services without backends go", batch(empty, gone), 0},
	} {
		before := w.Stats().ConntrackDumps
		w.Put(t, c.batch...)
		if d := w.Stats().ConntrackDumps - before; d != c.dumps {
			t.Errorf("%s: %d dumps, want %d", c.name, d, c.dumps)
		}
	}
	p := newPlane(t, w.Director)
	p.Wants(t, six)
	p.Put(t, repairOf(six))
	if d := p.Stats().ConntrackDumps; d != 0 {
		t.Errorf("an adoption cost %d dumps", d)
	}
}

// The kernel filters the dump of its connection tracking table.
func TestConntrackDumpIsFiltered(t *testing.T) {
	for _, at := range []string{"10.96.0.%d:%d", "[fd96::%d]:%d"} {
		w := newTown(t)
		a := w.serve(t, fmt.Sprintf(at, 1, 53), vip.UDP, 2)
		b := w.serve(t, fmt.Sprintf(at, 2, 54), vip.UDP, 1)
		c := w.serve(t, fmt.Sprintf(at, 2, 54), vip.TCP, 1)
		for _, f := range []*vip.Frontend{a, a, b, c} {
			if _, err := w.Client.Ask(f.Key.Protocol.String(), f.Key.AddrPort()); err != nil {
				t.Fatal(err)
			}
		}
		for _, x := range []struct {
			name string
			of   conntrack.Flows
			want int
			six  int // with IPv6, which is filtered by ports only
		}{
			{"one backend", conntrack.Flows{{Frontend: a.Key, Backend: a.Backends[1].Addr}: {}}, 1, 2},
			{"both", conntrack.Flows{{Frontend: a.Key, Backend: a.Backends[0].Addr}: {}, {Frontend: a.Key, Backend: a.Backends[1].Addr}: {}}, 2, 2},
			{"one frontend", conntrack.Flows{{Frontend: b.Key}: {}}, 1, 1},
			{"both frontends", conntrack.Flows{{Frontend: a.Key}: {}, {Frontend: b.Key}: {}}, 3, 3},
			{"a backend of both", conntrack.Flows{{Frontend: a.Key, Backend: a.Backends[0].Addr}: {}, {Frontend: b.Key, Backend: a.Backends[0].Addr}: {}}, 2, 3},
		} {
			family, want := vip.FamilyOf(a.Key.Addr), x.want
			if family == vip.IPv6 {
				want = x.six
			}
			match, _ := x.of.Common(family, vip.UDP)
			n, has := 0, 0
			w.Director.Do(func() {
				conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Counters{})
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				err = conn.Query(t.Context(), func(b []byte) []byte { return conntrack.AppendFlowDump(b, family, match) }, func(_ uint16, data []byte) error {
					var e conntrack.Entry
					err := e.Decode(data)
					n++
					if backend, whole := x.of.Index().Has(e.Flow); backend || whole {
						has++
					}
					return err
				})
				if err != nil {
					t.Errorf("%s: %v", x.name, err)
				}
			})
			if n != want || has != x.want {
				t.Errorf("%s of %s: %d entries, %d of them wanted; want %d, %d", x.name, family, n, has, want, x.want)
			}
		}
	}
}

// The kernel forwards without an agent: open and new connections work after the agent has ended,
// and while the next agent adopts the state.
func TestTrafficOutlivesTheAgent(t *testing.T) {
	w := newTown(t)
	f := w.serve(t, "10.96.0.1:80", vip.TCP, 1)
	c, err := w.Client.Dial("tcp", f.Key.AddrPort())
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		if _, err := c.Ask(); err != nil {
			t.Errorf("%s: the open connection: %v", when, err)
		}
		if _, err := w.Client.Ask("tcp", f.Key.AddrPort()); err != nil {
			t.Errorf("%s: a new connection: %v", when, err)
		}
	}
	check("at first")
	w.planeIn.Close()
	check("without an agent")
	p := newPlane(t, w.Director)
	p.Wants(t, f)
	check("with its successor")
	p.Put(t, repairOf(f))
	check("after a repair of what needs none")
}

// Affinity keeps a client at its backend until the backend's weight is 0.
func TestAffinity(t *testing.T) {
	w := newTown(t)
	f := frontend("10.96.0.1:80", vip.TCP, w.backends("10.96.0.1:80", 2)...)
	f.Affinity = time.Hour
	w.Create(t, f)
	first, err := w.Client.Ask("tcp", f.Key.AddrPort())
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if a, err := w.Client.Ask("tcp", f.Key.AddrPort()); err != nil || a.Name != first.Name {
			t.Errorf("%v, %v, want %s again", a, err, first.Name)
		}
	}
	g := with(f, func(f *vip.Frontend) {
		for i := range f.Backends {
			if f.Backends[i].Addr.Addr() == w.Backends[0].Addr4 == (first.Name == "backend1") {
				f.Backends[i].Weight = 0
			}
		}
	})
	w.change(t, f, g)
	if a, err := w.Client.Ask("tcp", f.Key.AddrPort()); err != nil || a.Name == first.Name {
		t.Errorf("with %s at weight 0: %v, %v", first.Name, a, err)
	}
}
