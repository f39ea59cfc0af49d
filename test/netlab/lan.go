//go:build linux

package netlab

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ironvip/ironvip/test/need"
)

// LAN is one network segment: a switch, and nodes that are connected to it by their eth0.
//
//	a eth0 ---- port1 switch port2 ---- eth0 b
//
// The switch is a Linux bridge in a namespace of its own. The nodes are hosts; none of them routes.
type LAN struct {
	Switch *Node
	Nodes  []*Node
	behind byte // nodes behind routers, for the subnet numbers
	t      testing.TB
}

// NewLAN creates a segment with the named nodes. The addresses of node n, where the first is 1, are
// 10.78.0.n/24 and fd78::n/64.
func NewLAN(t testing.TB, names ...string) *LAN {
	t.Helper()
	need.Root(t)
	l := &LAN{Switch: newNode(t, "switch"), t: t}
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	bridge.Name = "br0"
	must(t, "bridge of the switch", l.Switch.Netlink.LinkAdd(bridge))
	l.Switch.up("br0")
	for _, name := range names {
		l.Join(name)
	}
	return l
}

// Join adds a node with the next number.
func (l *LAN) Join(name string) *Node {
	l.t.Helper()
	n := newNode(l.t, name)
	l.Nodes = append(l.Nodes, n)
	number := byte(len(l.Nodes))
	n.Addr4 = netip.AddrFrom4([4]byte{10, 78, 0, number})
	n.Addr6 = netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x78, 15: number})
	l.Connect(n, "eth0")
	n.AddAddr("eth0", netip.PrefixFrom(n.Addr4, 24))
	n.AddAddr("eth0", netip.PrefixFrom(n.Addr6, 64))
	return n
}

// Connect creates a device of a node that is connected to the switch. It returns the name of the
// port, a device of the switch.
func (l *LAN) Connect(n *Node, dev string) (port string) {
	l.t.Helper()
	port = n.Name + "." + dev
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: dev, PeerNamespace: netlink.NsFd(int(n.ns))}
	veth.Name = port
	must(l.t, "veth to "+port, l.Switch.Netlink.LinkAdd(veth))
	link, err := l.Switch.Netlink.LinkByName(port)
	must(l.t, "port "+port, err)
	bridge, err := l.Switch.Netlink.LinkByName("br0")
	must(l.t, "bridge of the switch", err)
	must(l.t, "connect "+port, l.Switch.Netlink.LinkSetMaster(link, bridge))
	l.Switch.up(port)
	n.up(dev)
	l.Switch.carries(port) // before that, the bridge forwards nothing
	n.carries(dev)
	return port
}

// Behind adds a node that reaches the segment through a router, one of its nodes. The router's device on
// the link has the name of the new node, and every other node of the segment gets a route to it. The
// first node is 10.79.1.2 and fd79:1::2, and the router .1 and ::1 there.
func (l *LAN) Behind(router *Node, name string) *Node {
	l.t.Helper()
	l.behind++
	gw4, gw6 := netip.AddrFrom4([4]byte{10, 79, l.behind, 1}), netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x79, 3: l.behind, 15: 1})
	n := newNode(l.t, name)
	n.Addr4, n.Addr6 = gw4.Next(), gw6.Next()
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		router.Sysctl(key, "1")
	}
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerNamespace: netlink.NsFd(int(n.ns))}
	veth.Name = name
	must(l.t, "veth to "+name, router.Netlink.LinkAdd(veth))
	router.up(name)
	n.up("eth0")
	router.carries(name)
	n.carries("eth0")
	for _, a := range []struct{ gw, node, router netip.Addr }{{gw4, n.Addr4, router.Addr4}, {gw6, n.Addr6, router.Addr6}} {
		bits := map[bool]int{true: 24, false: 64}[a.gw.Is4()]
		router.AddAddr(name, netip.PrefixFrom(a.gw, bits))
		n.AddAddr("eth0", netip.PrefixFrom(a.node, bits))
		must(l.t, name+": default route", n.Netlink.RouteAdd(&netlink.Route{Gw: a.gw.AsSlice()}))
		for _, other := range l.Nodes {
			if other != router {
				other.Via(netip.PrefixFrom(a.gw, bits), a.router)
			}
		}
	}
	return n
}

// MAC returns the address of a node's device, as in 52:54:00:12:34:56.
func (n *Node) MAC(dev string) string {
	n.t.Helper()
	link, err := n.Netlink.LinkByName(dev)
	must(n.t, n.Name+": device "+dev, err)
	return link.Attrs().HardwareAddr.String()
}
