//go:build linux

package l2_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/l2"
	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/wire"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

// claimIt gives a station that is not one of ours the virtual addresses on its eth0.
func claimIt(n *netlab.Node) {
	n.AddAddr("eth0", netip.PrefixFrom(vip4, 24))
	n.AddAddr("eth0", netip.PrefixFrom(vip6, 64))
}

func giveUp(n *netlab.Node) {
	n.DelAddr("eth0", netip.PrefixFrom(vip4, 24))
	n.DelAddr("eth0", netip.PrefixFrom(vip6, 64))
}

// conflict waits until all addresses are in conflict with a station.
func (s *speaker) conflict(mark int, mac string, addrs ...netip.Addr) {
	s.t.Helper()
	for _, a := range addrs {
		r := s.since(mark, fmt.Sprintf("conflict of %v", a), func(r l2.Report) bool { return r.Addr == a && r.State == l2.Conflict })
		if r.MAC.String() != mac || r.Interface != "eth0" || r.Reason == "" {
			s.t.Errorf("conflict %+v, want one with %s on eth0", r, mac)
		}
	}
}

// Another station had the addresses before. Probing finds it without an announcement, an unprobed
// takeover finds it soon after. When it has gone, the host takes the addresses.
func TestAddressIsInUse(t *testing.T) {
	for _, probe := range []bool{true, false} {
		t.Run(fmt.Sprintf("probe %v", probe), func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			a, _ := start(t, l.a, defaults()), start(t, l.b, defaults())
			rival := l.Join("rival")
			claimIt(rival)
			l.watch.answered("the other station", vips, rival.MAC("eth0"))
			began := time.Now()
			if probe {
				a.do("probe", args(vips)...)
			} else {
				a.own(vips...)
			}
			a.conflict(0, rival.MAC("eth0"), vips...)
			l.watch.answered("conflict", vips, rival.MAC("eth0"))
			if probe {
				l.watch.silentSince(began, a.mac, vips...)
			}
			giveUp(rival)
			a.is(l2.Announced, vips...)
			l.watch.answered("the other station has gone", vips, a.mac)
		})
	}
}

// Another station appears and announces addresses that this host owns. The host defends them once,
// then gives up. A station that only checks for duplicates learns that the address is in use.
// Slow: the host asks again whether an address is in use after seconds.
func TestAnotherStationAppears(t *testing.T) {
	t.Parallel()
	l, a := pair(t)
	rival := l.Join("rival")
	a.own(vips...)
	l.watch.answered("a owns the addresses", vips, a.mac)
	learn(t, l.client, vips...)

	// Duplicate address detection of a well-behaved station.
	rival.Sysctl("ipv6/conf/eth0/accept_dad", "1")
	eth0 := device(t, rival, "eth0")
	must.Succeed(t, rival.Netlink.AddrAdd(eth0, &netlink.Addr{IPNet: ipNet(vip6, 64)}))
	wait.Until(t, "the kernel of the other station finds the duplicate", func() bool {
		for _, x := range netlab.List(t, func() ([]netlink.Addr, error) { return rival.Netlink.AddrList(eth0, netlink.FAMILY_V6) }) {
			if got, _ := netip.AddrFromSlice(x.IP); got == vip6 {
				return x.Flags&unix.IFA_F_DADFAILED != 0
			}
		}
		return false
	})
	rival.DelAddr("eth0", netip.PrefixFrom(vip6, 64))
	a.is(l2.Announced, vips...)

	mark := a.mark()
	claimIt(rival)
	rival.Do(func() {
		mac := frame.MAC(eth0.Attrs().HardwareAddr)
		for _, v := range vips {
			typ := uint16(frame.TypeIPv6)
			if v.Is4() {
				typ = frame.TypeARP
			}
			s := must.Get(wire.Open(typ))(t)
			must.Succeed(t, s.Send(eth0.Attrs().Index, frame.AppendAnnounce(nil, mac, v)))
			must.Succeed(t, s.Close())
		}
	})
	a.conflict(mark, rival.MAC("eth0"), vips...)
	l.watch.answered("conflict", vips, rival.MAC("eth0"))
	giveUp(rival)
	a.is(l2.Announced, vips...)
	points(t, l.client, a.mac, vips...) // the client's cache is repaired
	l.watch.answered("the other station has gone", vips, a.mac)
}
