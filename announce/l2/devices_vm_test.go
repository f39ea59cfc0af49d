//go:build linux && vm

package l2_test

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ironvip/ironvip/announce/l2"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
)

// These devices need a kernel that many test machines don't have. The virtual addresses are on a
// dummy device, as on a real host.

// dummy gives a node the virtual addresses on ironvip0.
func dummy(t *testing.T, n *netlab.Node) {
	t.Helper()
	add(t, n, &netlink.Dummy{LinkAttrs: attrs("ironvip0")})
	n.AddAddr("ironvip0", netip.PrefixFrom(vip4, 32))
	n.AddAddr("ironvip0", netip.PrefixFrom(vip6, 128))
}

func attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

// add creates a device of a node and sets it up.
func add(t *testing.T, n *netlab.Node, l netlink.Link) {
	t.Helper()
	must.Succeed(t, n.Netlink.LinkAdd(l))
	must.Succeed(t, n.Netlink.LinkSetUp(device(t, n, l.Attrs().Name)))
}

func overDummy(interfaces ...string) settings {
	c := defaults()
	c.Interfaces, c.Device = interfaces, "ironvip0"
	return c
}

func TestDummyDevice(t *testing.T) {
	l := netlab.NewLAN(t, "a", "b", "client")
	a, b, client := l.Nodes[0], l.Nodes[1], l.Nodes[2]
	dummy(t, a)
	dummy(t, b)
	watch := observe(t, client, vips...)
	one, two := start(t, a, overDummy("eth0")), start(t, b, overDummy("eth0"))
	watch.answered("nobody owns the addresses", vips)
	one.own(vips...)
	watch.answered("a owns them", vips, one.mac)
	learn(t, client, vips...)
	one.release(vips...)
	two.own(vips...)
	points(t, client, two.mac, vips...)
	watch.answered("b owns them", vips, two.mac)
}

// Addresses are announced on a VLAN, and only there.
func TestVLAN(t *testing.T) {
	l := netlab.NewLAN(t, "a", "client", "tagged")
	a, client, tagged := l.Nodes[0], l.Nodes[1], l.Nodes[2]
	dummy(t, a)
	for _, n := range []*netlab.Node{a, tagged} {
		parent := attrs("eth0.100")
		parent.ParentIndex = device(t, n, "eth0").Attrs().Index
		add(t, n, &netlink.Vlan{LinkAttrs: parent, VlanId: 100})
	}
	plain, onVLAN := observe(t, client, vips...), observeOn(t, tagged, "eth0.100", vips...)
	one := start(t, a, overDummy("eth0.100"))
	one.own(vips...)
	one.is(l2.Announced, vips...)
	onVLAN.answered("on the VLAN", vips, a.MAC("eth0.100"))
	plain.answered("without a tag", vips)

	mark := one.mark()
	must.Succeed(t, a.Netlink.LinkSetDown(device(t, a, "eth0")))
	one.link(mark, "eth0.100", l2.LinkDown)
	onVLAN.answered("the device below is down", vips)
	must.Succeed(t, a.Netlink.LinkSetUp(device(t, a, "eth0")))
	must.Succeed(t, a.Netlink.LinkSetUp(device(t, a, "eth0.100")))
	onVLAN.answered("the device below is up", vips, a.MAC("eth0.100"))
}

// A bond fails over to its other port without a change of the announcements.
func TestBond(t *testing.T) {
	l := netlab.NewLAN(t, "a", "client")
	a, client := l.Nodes[0], l.Nodes[1]
	dummy(t, a)
	l.Connect(a, "eth1")
	bond := netlink.NewLinkBond(attrs("bond0"))
	bond.Mode, bond.Miimon = netlink.BOND_MODE_ACTIVE_BACKUP, 10
	must.Succeed(t, a.Netlink.LinkAdd(bond))
	master := device(t, a, "bond0")
	for _, name := range []string{"eth0", "eth1"} {
		port := device(t, a, name)
		must.Succeed(t, a.Netlink.LinkSetDown(port))
		must.Succeed(t, a.Netlink.LinkSetMaster(port, master))
		must.Succeed(t, a.Netlink.LinkSetUp(port))
	}
	must.Succeed(t, a.Netlink.LinkSetUp(master))
	a.AddAddr("bond0", netip.PrefixFrom(a.Addr4, 24))
	watch := observe(t, client, vips...)
	one := start(t, a, overDummy("bond0"))
	one.own(vips...)
	watch.answered("on the bond", vips, a.MAC("bond0"))
	must.Succeed(t, l.Switch.Netlink.LinkSetDown(device(t, l.Switch, "a.eth0")))
	watch.answered("the first port has no carrier", vips, a.MAC("bond0"))
	mark := one.mark()
	must.Succeed(t, l.Switch.Netlink.LinkSetDown(device(t, l.Switch, "a.eth1")))
	one.link(mark, "bond0", l2.LinkDown)
	watch.answered("no port has a carrier", vips)
	must.Succeed(t, l.Switch.Netlink.LinkSetUp(device(t, l.Switch, "a.eth1")))
	watch.answered("the second port has a carrier", vips, a.MAC("bond0"))
	one.is(l2.Announced, vips...)
}
