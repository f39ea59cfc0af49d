//go:build linux

package l2_test

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/l2"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

func ipNet(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
}

// link waits for a state of an interface after a mark.
func (s *speaker) link(mark int, name string, state l2.State) {
	s.t.Helper()
	s.since(mark, name+" is "+string(state), func(r l2.Report) bool { return r.Interface == name && r.State == state })
}

// An interface loses its carrier, goes down and comes up again, and gets another MAC. Each time the
// client's neighbor cache is right afterwards, without a question of the client's.
func TestInterfaceChanges(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := start(t, l.a, defaults())
	start(t, l.b, defaults())
	a.own(vips...)
	l.watch.answered("a owns the addresses", vips, a.mac)
	learn(t, l.client, vips...)
	port := device(t, l.Switch, "a.eth0")

	mark := a.mark()
	must.Succeed(t, l.Switch.Netlink.LinkSetDown(port))
	a.link(mark, "eth0", l2.LinkDown)
	a.is(l2.Waiting, vips...)
	l.watch.answered("no carrier", vips)
	mark = a.mark()
	must.Succeed(t, l.Switch.Netlink.LinkSetUp(port))
	a.link(mark, "eth0", l2.LinkUp)
	a.is(l2.Announced, vips...)
	l.watch.answered("carrier", vips, a.mac)

	mark = a.mark()
	must.Succeed(t, l.a.Netlink.LinkSetDown(device(t, l.a, "eth0")))
	a.link(mark, "eth0", l2.LinkDown)
	must.Succeed(t, l.a.Netlink.LinkSetUp(device(t, l.a, "eth0")))
	a.is(l2.Announced, vips...)
	l.watch.answered("down and up", vips, a.mac)

	points(t, l.client, a.mac, vips...)
	mac := net.HardwareAddr{2, 0, 0, 0, 0x12, 0x34}
	must.Succeed(t, l.a.Netlink.LinkSetHardwareAddr(device(t, l.a, "eth0"), mac))
	points(t, l.client, mac.String(), vips...)
	l.watch.answered("another MAC", vips, mac.String())
}

// An interface is known by its name: renamed, it is another one, on which the host is silent.
func TestInterfaceIsRenamedAndRecreated(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := start(t, l.a, defaults())
	start(t, l.b, defaults())
	a.own(vips...)
	l.watch.answered("a owns the addresses", vips, a.mac)

	rename := func(from, to string) {
		t.Helper()
		must.Succeed(t, l.a.Netlink.LinkSetDown(device(t, l.a, from)))
		must.Succeed(t, l.a.Netlink.LinkSetName(device(t, l.a, from), to))
		must.Succeed(t, l.a.Netlink.LinkSetUp(device(t, l.a, to)))
	}
	mark := a.mark()
	rename("eth0", "lan0")
	a.link(mark, "eth0", l2.LinkMissing)
	a.is(l2.Waiting, vips...)
	l.watch.answered("renamed to a name that is not configured", vips)
	a.do("interfaces", "lan0")
	a.is(l2.Announced, vips...)
	l.watch.answered("the new name is configured", vips, a.mac)
	a.do("interfaces", "lan0", "eth0")
	mark = a.mark()
	rename("lan0", "eth0")
	a.link(mark, "eth0", l2.LinkUp)
	a.is(l2.Announced, vips...)
	l.watch.answered("renamed back", vips, a.mac)

	mark = a.mark()
	must.Succeed(t, l.Switch.Netlink.LinkDel(device(t, l.Switch, "a.eth0"))) // and the other end
	a.link(mark, "eth0", l2.LinkMissing)
	a.is(l2.Waiting, vips...)
	l.Connect(l.a, "eth0")
	l.a.AddAddr("eth0", netip.PrefixFrom(l.a.Addr4, 24))
	a.is(l2.Announced, vips...)
	l.watch.answered("recreated", vips, l.a.MAC("eth0"))
}

// Addresses are announced on each configured interface. On others, the host is silent.
func TestSeveralInterfaces(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	second := netlab.NewLAN(t, "x1", "x2", "x3", "client2") // the fourth has an address that no host of the first LAN has
	second.Connect(l.a, "eth1")
	watch := observe(t, second.Nodes[3], vips...)
	watch.answered("no gate: the kernel answers", vips[:1], l.a.MAC("eth1"))
	c := defaults()
	c.Interfaces = []string{"eth0"}
	a := start(t, l.a, c)
	start(t, l.b, defaults())
	a.own(vips...)
	l.watch.answered("announced on the first LAN", vips, a.mac)
	watch.answered("not announced on the second LAN", vips)
	a.do("interfaces", "eth0", "eth1")
	watch.answered("announced on the second LAN", vips, l.a.MAC("eth1"))
	l.watch.answered("announced on both", vips, a.mac)

	must.Succeed(t, l.Switch.Netlink.LinkSetDown(device(t, l.Switch, "a.eth0")))
	l.watch.answered("the first one has no carrier", vips)
	watch.answered("the second one has", vips, l.a.MAC("eth1"))
	a.is(l2.Announced, vips...)
	must.Succeed(t, l.Switch.Netlink.LinkSetUp(device(t, l.Switch, "a.eth0")))
	l.watch.answered("announced on both again", vips, a.mac)
}

// The addresses of a pool are announced at the interfaces of the pool only: on another LAN, the host is silent about them, and
// ignores who has them. An interface without carrier, and other interfaces of a pool, don't disturb other pools.
func TestEachPoolAtItsInterfaces(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	second := netlab.NewLAN(t, "x1", "x2", "x3", "client2")
	second.Connect(l.a, "eth1")
	others := []netip.Addr{netip.MustParseAddr("10.99.0.1"), netip.MustParseAddr("fd99::1")}
	all := append(slices.Clone(vips), others...)
	first, watch := observe(t, l.client, all...), observe(t, second.Nodes[3], all...)
	hold(second.Nodes[0]) // a station there has the addresses of the first LAN
	c := defaults()
	c.LANs = []announce.LAN{{CIDRs: c.Pools[2:], Interfaces: []string{"eth1"}}}
	c.Pools = c.Pools[:2]
	a := start(t, l.a, c)
	start(t, l.b, defaults())
	a.own(all...)
	mac := l.a.MAC("eth1")
	first.answered("the first pool on its LAN", vips, a.mac)
	watch.answered("the first pool on another LAN", vips[:1], second.Nodes[0].MAC("eth0"))
	watch.answered("the second pool on its LAN", others, mac)
	first.answered("the second pool on another LAN", others)

	mark := a.mark()
	port := device(t, second.Switch, "a.eth1")
	must.Succeed(t, second.Switch.Netlink.LinkSetDown(port))
	a.is(l2.Waiting, others...)
	first.answered("the interface of the second pool has no carrier", vips, a.mac)
	must.Succeed(t, second.Switch.Netlink.LinkSetUp(port))
	a.is(l2.Announced, others...)
	watch.answered("it has a carrier", others, mac)
	a.do("interfaces", "eth0", "eth1")
	a.do("interfaces", "eth0")
	for _, r := range a.reports()[mark:] {
		expect.True(t, !r.Addr.IsValid() || slices.Contains(vips, r.Addr) == strings.HasPrefix(r.At, "eth0"), "%+v", r)
		expect.True(t, !slices.Contains(vips, r.Addr) || r.State == l2.Released || r.State == l2.Announced, "%+v", r)
	}
	a.do("other-interfaces", "eth0", "eth7")
	first.answered("the second pool has another interface", others, a.mac)
	watch.answered("the LAN where it was", others)
	first.answered("the first pool", vips, a.mac)
}

// Two interfaces on one LAN are no conflict.
// Slow: a conflict would be found within 2 s, by a verification after 1.5 s.
func TestTwoInterfacesOnOneLAN(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.Connect(l.a, "eth1")
	c := defaults()
	c.Interfaces = []string{"eth0", "eth1"}
	a := start(t, l.a, c)
	start(t, l.b, defaults())
	a.own(vips...)
	l.watch.answered("both answer", vips, a.mac, l.a.MAC("eth1"))
	a.do("reannounce")
	time.Sleep(2 * time.Second) // with a verification after 1.5 s
	for _, r := range a.reports() {
		expect.True(t, r.State != l2.Conflict, "reported %+v", r)
	}
}

// An address that the host itself has on another interface is not virtual: the gate leaves it alone,
// and it can't be owned.
func TestAddressOfTheHost(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a := start(t, l.a, defaults())
	start(t, l.b, defaults())
	own := netip.MustParseAddr("10.78.0.60")
	watch := observe(t, l.client, own)
	l.a.AddAddr("eth0", netip.PrefixFrom(own, 24)) // in the pools
	watch.answered("the kernel answers for its own address", []netip.Addr{own}, a.mac)
	a.own(own)
	a.is(l2.Conflict, own)
	l.a.DelAddr("eth0", netip.PrefixFrom(own, 24))
	a.is(l2.Announced, own)
	watch.answered("no longer the host's", []netip.Addr{own}, a.mac)
}

// A former owner serves the packets that still arrive: none is lost in a planned move.
func TestFormerOwnerForwards(t *testing.T) {
	l := newLab(t)
	a, b := start(t, l.a, defaults()), start(t, l.b, defaults())
	a.own(vips...)
	l.watch.answered("a owns the addresses", vips, a.mac)
	for _, v := range vips {
		server := echo(t, l.a, v)
		// A client that missed the announcement sends to the former owner forever.
		must.Succeed(t, l.client.Netlink.NeighSet(&netlink.Neigh{LinkIndex: device(t, l.client, "eth0").Attrs().Index, IP: v.AsSlice(), State: netlink.NUD_PERMANENT, HardwareAddr: device(t, l.a, "eth0").Attrs().HardwareAddr}))
		var c net.Conn
		var err error
		l.client.Do(func() { c, err = net.Dial("udp", server.String()) })
		must.Succeed(t, err)
		defer c.Close()
		const n = 300
		buf := make([]byte, 16)
		for i := range n {
			switch i {
			case n / 3:
				a.release(v)
			case 2 * n / 3:
				b.own(v)
			}
			must.Succeed(t, c.SetDeadline(time.Now().Add(wait.Timeout)))
			must.Get(c.Write([]byte{byte(i)}))(t)
			if got, err := c.Read(buf); err != nil || got != 1 || buf[0] != byte(i) {
				t.Fatalf("%v: datagram %d: no answer: %v", v, i, err)
			}
		}
	}
	l.watch.answered("b owns the addresses", vips, b.mac)
}

// echo serves UDP on an address of a node.
func echo(t *testing.T, n *netlab.Node, a netip.Addr) netip.AddrPort {
	t.Helper()
	var c *net.UDPConn
	var err error
	n.Do(func() { c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 7))) })
	must.Succeed(t, err)
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 16)
		for {
			got, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(b[:got], from)
		}
	}()
	return netip.AddrPortFrom(a, 7)
}
