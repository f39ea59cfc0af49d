package proxy

import (
	"net/netip"

	"github.com/ironvip/ironvip/vip"
)

// sources are the clients that a frontend accepts. The zero value accepts all.
type sources struct {
	vip    netip.Addr
	ranges []netip.Prefix
	own    func(netip.Addr) bool
}

func newSources(spec *vip.Frontend, own func(netip.Addr) bool) sources {
	return sources{vip: spec.Key.Addr, ranges: spec.SourceRanges, own: own}
}

// admit reports whether a client may open a new connection. Without ranges, all clients may.
// Clients on this host always may: the kernel gives them the VIP itself as their source address
// unless they request another. It costs O(ranges).
func (s *sources) admit(client netip.Addr) bool {
	if len(s.ranges) == 0 {
		return true
	}
	client = client.Unmap().WithZone("")
	for _, p := range s.ranges {
		if p.Contains(client) {
			return true
		}
	}
	return client == s.vip || s.own(client)
}
