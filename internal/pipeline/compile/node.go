package compile

import (
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// Node is what compile must know of the host it runs on.
type Node struct {
	Name string // what backends on this host have as their Node
	Zone string // where this host is; "" where nobody said
	// RealServer says that this host is a backend of others' direct routing and
	// tunnels, and balances nothing.
	RealServer    bool
	Addrs         []netip.Addr // the host's own addresses, sorted; none that ironvip brought up
	NodePortAddrs []netip.Addr // the host's addresses that node ports are served on, sorted
}

// has reports whether a backend runs on this node: its source says so, or, where
// the source says nothing, its address is one of the host's own. Every loopback
// address is.
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

// DependsOnHost reports whether what Service and LocalReady make of s depends on
// the addresses of the host, so that it is to be made again when they change:
// where it has node ports or, by the addresses of backends, distinguishes those
// on this node.
func DependsOnHost(s *vip.Service, realServer bool) bool {
	if realServer {
		return bypassed(s)
	}
	if slices.ContainsFunc(s.Ports, func(p vip.Port) bool { return p.NodePort.Wanted() }) {
		return true
	}
	byNode := s.ExternalTraffic == vip.Local || s.InternalTraffic == vip.Local || s.Distribution == vip.PreferSameNode
	return byNode && slices.ContainsFunc(s.Backends, func(b vip.Backend) bool { return b.Node == "" })
}
