package compile

import (
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// Node is what compile needs to know about this host.
type Node struct {
	Name string // the Node of backends on this host
	Zone string // the zone of this host; "" if unknown
	// RealServer states that this host is a backend of other hosts' direct routing and tunnels, and
	// balances nothing.
	RealServer    bool
	Addrs         []netip.Addr // the host's own addresses, sorted, without those that ironvip added
	NodePortAddrs []netip.Addr // the host's addresses that serve node ports, sorted
}

// has reports whether a backend runs on this node. The source decides it. If the source doesn't
// specify a node, the backend's address must be one of the host's own. Every loopback address is.
func (n *Node) has(b *vip.Backend) bool {
	if b.Node != "" {
		return b.Node == n.Name
	}
	return n.owns(b.Address)
}

func (n *Node) owns(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	_, own := slices.BinarySearchFunc(n.Addrs, a, netip.Addr.Compare)
	return own
}

// isRealServerOf reports whether a backend of direct routing or tunnels is at an address of this host,
// a director. Such a backend gets no clients here: a packet for a virtual address that IPVS leaves to the
// director itself is refused, so that no listener of the host is exposed by mistake.
func (n *Node) isRealServerOf(s *vip.Service, b *vip.Backend) bool {
	return !n.RealServer && bypassed(s) && n.owns(b.Address)
}

// DependsOnHost reports whether the results of Service and LocalReady for s depend on the host's
// addresses, so that they must be computed again when these change. This is so if s has node ports,
// if the addresses of its backends decide which of them are on this node, or with direct routing and
// tunnels.
func DependsOnHost(s *vip.Service, realServer bool) bool {
	if realServer || bypassed(s) {
		return bypassed(s)
	}
	if slices.ContainsFunc(s.Ports, func(p vip.Port) bool { return p.NodePort.Wanted() }) {
		return true
	}
	byNode := s.ExternalTraffic == vip.Local || s.InternalTraffic == vip.Local || s.Distribution == vip.PreferSameNode
	return byNode && slices.ContainsFunc(s.Backends, func(b vip.Backend) bool { return b.Node == "" })
}
