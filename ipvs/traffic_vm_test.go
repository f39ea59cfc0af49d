//go:build linux && vm

package ipvs

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
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

// flavor is a protocol and a family, with an address of it.
type flavor struct {
	p  vip.Protocol
	at string
}

// flavors have each protocol and each family. TestEveryFlavor runs some tests with the others.
var flavors = []flavor{{vip.TCP, "10.96.0.1:80"}, {vip.UDP, "[fd96::1]:80"}}

// every calls f for each flavor.
func every(t *testing.T, f func(t *testing.T, at string, p vip.Protocol)) {
	for _, x := range flavors {
		t.Run(x.p.String()+" "+x.at, func(t *testing.T) { f(t, x.at, x.p) })
	}
}

func (w *town) node4or6(n *netlab.Node, at string) netip.Addr {
	if netip.MustParseAddrPort(at).Addr().Is6() {
		return n.Addr6
	}
	return n.Addr4
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

// A virtual address answers pings, with and without backends. After another program has deleted a service, its port doesn't
// lead to the host's listener on all addresses.
func TestRefusals(t *testing.T) {
	every(t, func(t *testing.T, at string, p vip.Protocol) {
		w := newTown(t)
		empty, f := w.serve(t, at, p, 0), frontend(at, p, w.backends(at, 1)...)
		ping(t, w.Client, f.Key.Addr)
		ping(t, w.Director, f.Key.Addr)
		w.change(t, empty, f)
		for _, from := range []*netlab.Node{w.Client, w.Director, w.Backends[0]} {
			ping(t, from, f.Key.Addr)
		}
		exposed := frontend(netip.AddrPortFrom(f.Key.Addr, hostPort).String(), p, w.backends(at, 1)...)
		w.Create(t, exposed)
		run(t, w.Director, "ipvsadm", "-D", "-"+p.String()[:1], exposed.Key.AddrPort().String())
		w.refused(t, w.Client, p, exposed.Key.AddrPort())
	})
}

// A draining backend is idle when its last connection has ended.
func TestDrain(t *testing.T) {
	w := newTown(t)
	now := time.Now()
	w.idleTracker.now = func() time.Time { return now }
	f := w.serve(t, "10.96.0.1:80", vip.TCP, 1)
	c := must.Get(w.Client.Dial("tcp", f.Key.AddrPort()))(t)
	must.Get(c.Ask())(t)
	w.change(t, f, with(f, func(f *vip.Frontend) { f.Backends[0].Weight = 0 }))
	count := func() int {
		t.Helper()
		return must.Get(w.Connections(t.Context(), f.Key))(t)[f.Backends[0].Addr]
	}
	must.Equal(t, count(), 1, "open connections")
	c.Close()
	// The closed connection waits for its timer. It counts until no packet has come for a while.
	wait.Until(t, "the closed connection doesn't count", func() bool {
		now = now.Add(time.Second)
		return count() == 0
	})
	// The kernel still has the connection, so it counts where the kernel doesn't count packets.
	t.Run("counters stand still", func(t *testing.T) {
		needRunEstimation(t)
		w.Director.Sysctl("ipv4/vs/run_estimation", "0")
		expect.Equal(t, count(), 1, "connections")
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
	must.Succeed(t, err)
	defer c.Close()
	m := []byte{request, 0, 0, 0, 0x77, 1, 0, 1}
	if to.Is4() { // for IPv6 the kernel computes the checksum
		var sum uint32
		for i := 0; i < len(m); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(m[i:]))
		}
		binary.BigEndian.PutUint16(m[2:], ^uint16(sum+sum>>16))
	}
	must.Get(c.Write(m))(t)
	c.SetReadDeadline(time.Now().Add(wait.Reply))
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

// Our deletion of connection tracking entries deletes exactly the outdated ones. Newer kernels
// delete an entry themselves a while after IPVS has expired the client's connection, so the
// sysctl for that is off here.
func TestUDPFlowsAreDeleted(t *testing.T) {
	w := newTown(t)
	a, b := w.serve(t, "10.96.0.1:53", vip.UDP, 2), w.serve(t, "10.96.0.2:53", vip.UDP, 1)
	c := w.serve(t, "10.96.0.3:53", vip.TCP, 1)
	w.Director.Sysctl("ipv4/vs/expire_nodest_conn", "0") // otherwise the kernel deletes entries, too
	for range 2 {                                        // one for each backend
		must.Get(w.Client.Ask("udp", a.Key.AddrPort()))(t)
	}
	for _, f := range []*vip.Frontend{b, c} {
		must.Get(w.Client.Ask(f.Key.Protocol.String(), f.Key.AddrPort()))(t)
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
	expect.Equal(t, p.Stats().ConntrackFlows, 0, "entries deleted by a restart")
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
		conn := must.Get(c.from.Dial("udp", c.f.Key.AddrPort()))(t)
		if a, err := conn.Ask(); err == nil {
			t.Fatalf("%s: %v answered without a service", c.f.Key, a)
		}
		before := w.Stats()
		w.Create(t, c.f)
		expect.Equal(t, w.Stats().ConntrackFlows-before.ConntrackFlows, 1, "%s: entries deleted", c.f.Key)
		if a, err := conn.Ask(); err != nil || a.Client.Addr() == w.Client.Addr4 {
			t.Errorf("%s: %v, %v", c.f.Key, a, err)
		}
	}
}
