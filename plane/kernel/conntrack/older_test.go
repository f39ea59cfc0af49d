package conntrack

import (
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// Connections that this host has opened get entries like those of open connections, which expire with the kernel's timeout.
// Connections from an owned address get none. Known entries stay as they are.
func TestEnterOpened(t *testing.T) {
	lab := netlab.New(t)
	lab.Director.AddAddr("lo", netip.MustParsePrefix("10.96.0.1/32"))
	lab.Director.Sysctl("netfilter/nf_conntrack_tcp_timeout_established", "4321")
	var dumps, deleted atomic.Uint64
	table := Table{Dumps: &dumps, Deleted: &deleted}
	owned := netip.MustParseAddr("10.96.0.1")
	owns := func(a netip.Addr) bool { return a == owned }
	for _, at := range []netip.Addr{lab.Backends[0].Addr4, lab.Backends[0].Addr6} {
		server := lab.Backends[0].Serve("tcp", netip.AddrPortFrom(at, 0))
		c := must.Get(lab.Director.Dial("tcp", server))(t)
		if at.Is4() {
			must.Get(lab.Director.DialFrom("tcp", owned, server))(t)
		}
		for range 2 {
			var got []Entry
			lab.Director.Do(func() {
				must.Succeed(t, EnterOpened(t.Context(), owns))
				must.Succeed(t, table.Each(t.Context(), vip.FamilyOf(at), Flow{Frontend: vip.FrontendKey{Protocol: vip.TCP}}, func(e *Entry) bool {
					got = append(got, *e)
					return true
				}))
			})
			must.Len(t, got, 1)
			e := got[0]
			if e.Client != c.LocalAddr().(*net.TCPAddr).AddrPort() || e.Frontend.AddrPort() != server || e.Backend != server ||
				!e.Established() || e.Forwarded() || e.Translated || e.Masqueraded {
				t.Errorf("entry %+v of %s to %s", e, c.LocalAddr(), server)
			}
			if over := 4321*time.Second - e.Expires; over < 0 || over > time.Minute {
				t.Errorf("it expires in %s", e.Expires)
			}
		}
	}
}

// The connections that this host has opened are found, in any state in which it may send or receive. Accepted ones and those
// over the loopback device are not.
func TestOpened(t *testing.T) {
	need.Root(t)
	lab := netlab.New(t)
	here, there := lab.Director, lab.Backends[0]
	var want, got [][2]netip.AddrPort
	open := func(at netip.AddrPort) *netlab.Conn {
		return must.Get(here.Dial("tcp", at))(t)
	}
	expect := func(c net.Conn) {
		want = append(want, [2]netip.AddrPort{c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()})
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
	here.Do(func() {
		for _, s := range must.Get(opened(t.Context(), func(netip.Addr) bool { return false }))(t) {
			got = append(got, [2]netip.AddrPort{s.From, s.To})
		}
	})
	byEnd := func(a, b [2]netip.AddrPort) int { return a[0].Compare(b[0]) }
	slices.SortFunc(got, byEnd)
	slices.SortFunc(want, byEnd)
	must.SameList(t, got, want)
}
