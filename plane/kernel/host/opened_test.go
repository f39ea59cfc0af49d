package host

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// The connections that this host has opened are found, in any state in which it may send or receive. Accepted ones and those
// over the loopback device are not.
func TestOpenedConnections(t *testing.T) {
	need.Root(t)
	lab := netlab.New(t)
	here, there := lab.Director, lab.Backends[0]
	var want []Connection
	open := func(at netip.AddrPort) *netlab.Conn {
		return must.Get(here.Dial("tcp", at))(t)
	}
	expect := func(c net.Conn) {
		want = append(want, Connection{c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()})
	}
	for _, a := range []netip.Addr{there.Addr4, there.Addr6} {
		at := there.Serve("tcp", netip.AddrPortFrom(a, 0))
		expect(open(at))
		halfClosed := open(there.Listen(netip.AddrPortFrom(a, 0)).Addr().(*net.TCPAddr).AddrPort()) // nobody closes its other half
		must.Succeed(t, halfClosed.Conn.(*net.TCPConn).CloseWrite())
		expect(halfClosed)
	}
	open(here.Serve("tcp", netip.MustParseAddrPort("127.0.0.1:0")))
	c := must.Get(there.Dial("tcp", here.Serve("tcp", netip.AddrPortFrom(here.Addr4, 0))))(t)
	must.Get(c.Ask())(t)
	var got []Connection
	here.Do(func() { got = must.Get(OpenedConnections())(t) })
	byEnd := func(a, b Connection) int { return a.Near.Compare(b.Near) }
	slices.SortFunc(got, byEnd)
	slices.SortFunc(want, byEnd)
	must.SameList(t, got, want)
}

func FuzzParseSocket(f *testing.F) {
	f.Add([]byte("   1: 0100007F:1F90 0200007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0"))
	f.Add([]byte("   0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000"))
	f.Fuzz(func(t *testing.T, line []byte) {
		if c, _, ok := parseSocket(line); ok && (!c.Near.IsValid() || !c.Far.IsValid()) {
			t.Errorf("%q is read as %v", line, c)
		}
	})
}
