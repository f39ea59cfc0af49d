//go:build linux

package netlab

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// SecondDirector is a director in addition to the first one.
type SecondDirector struct {
	*Node
	facing map[*Node][2]netip.Addr // its addresses on the links to others
}

// AddDirector adds a director. The first one remains every node's default route. No packets pass
// the new one until Via directs a node's packets to it. It has its own link to the client and to
// each present backend, and reaches their addresses through that link. Its addresses are those on
// the client's side.
func (l *Lab) AddDirector(name string) *SecondDirector {
	l.t.Helper()
	d := &SecondDirector{Node: newNode(l.t, name), facing: map[*Node][2]netip.Addr{}}
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		d.Sysctl(key, "1")
	}
	for _, n := range append([]*Node{l.Client}, l.Backends...) {
		own4, own6 := l.connect(d.Node, n, name)
		d.facing[n] = [2]netip.Addr{own4, own6}
		d.Via(netip.PrefixFrom(n.Addr4, 32), own4.Next())
		d.Via(netip.PrefixFrom(n.Addr6, 128), own6.Next())
		if n == l.Client {
			d.Addr4, d.Addr6 = own4, own6
		}
	}
	return d
}

// connect creates another link from a director to a node. Each end has the other's name. It returns
// the addresses of the director's end. The node's are the next ones.
func (l *Lab) connect(d, n *Node, name string) (own4, own6 netip.Addr) {
	l.t.Helper()
	own4, own6 = gateway(l.links)
	l.links++
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: name, PeerNamespace: netlink.NsFd(int(n.ns))}
	veth.Name = n.Name
	must(l.t, "veth to "+n.Name, d.Netlink.LinkAdd(veth))
	// As for the first director: replies from the virtual address are not martians.
	d.Sysctl("ipv4/conf/"+n.Name+"/accept_local", "1")
	d.Sysctl("ipv4/conf/"+n.Name+"/rp_filter", "0")
	d.up(n.Name)
	n.up(name)
	d.carries(n.Name)
	n.carries(name)
	d.AddAddr(n.Name, netip.PrefixFrom(own4, 24))
	d.AddAddr(n.Name, netip.PrefixFrom(own6, 64))
	n.AddAddr(name, netip.PrefixFrom(own4.Next(), 24))
	n.AddAddr(name, netip.PrefixFrom(own6.Next(), 64))
	return own4, own6
}

// Facing returns the director's address, in dst's family, on its link to a node.
func (d *SecondDirector) Facing(n *Node, dst netip.Addr) netip.Addr {
	if dst.Is4() {
		return d.facing[n][0]
	}
	return d.facing[n][1]
}

// Via sends the node's packets for dst to a neighbor, whatever their former route.
func (n *Node) Via(dst netip.Prefix, gateway netip.Addr) {
	n.t.Helper()
	to := &net.IPNet{IP: dst.Masked().Addr().AsSlice(), Mask: net.CIDRMask(dst.Bits(), dst.Addr().BitLen())}
	must(n.t, n.Name+": route to "+dst.String(), n.Netlink.RouteReplace(&netlink.Route{Dst: to, Gw: gateway.AsSlice()}))
}

// Lose drops the node's packets for dst, until the returned function is called.
func (n *Node) Lose(dst netip.Addr) (find func()) {
	n.t.Helper()
	route := &netlink.Route{Dst: &net.IPNet{IP: dst.AsSlice(), Mask: net.CIDRMask(dst.BitLen(), dst.BitLen())}, Type: unix.RTN_BLACKHOLE}
	must(n.t, n.Name+": lose "+dst.String(), n.Netlink.RouteReplace(route))
	return func() {
		n.t.Helper()
		must(n.t, n.Name+": find "+dst.String(), n.Netlink.RouteDel(route))
	}
}
