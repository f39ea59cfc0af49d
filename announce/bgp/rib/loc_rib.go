package rib

import (
	"net/netip"

	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/internal/table"
)

// Routes is a table of prefixes without host bits.
type Routes = table.Reader[netip.Prefix, netip.Prefix]

// LocRIB is the set of prefixes that this host announces to every peer: a table of the caller, which is
// ready when it has every prefix that this host announces now. Each Adj-RIB-Out sends End-of-RIB then.
type LocRIB struct {
	Routes
	count [message.Families]func() int
}

// New returns the set of a table's prefixes.
func New(routes Routes) *LocRIB {
	r := &LocRIB{Routes: routes}
	for f := range message.Families {
		r.count[f] = routes.Sum(func(p *netip.Prefix) int {
			if message.FamilyOf(*p) == f {
				return 1
			}
			return 0
		})
	}
	return r
}
