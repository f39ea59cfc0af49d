package rib

import (
	"net/netip"

	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/internal/table"
)

// LocRIB is the set of prefixes that this host announces to every peer. Create one with New. Its
// methods may be called concurrently.
type LocRIB struct {
	routes *table.Table[netip.Prefix, netip.Prefix]
	ready  func()
	count  [message.Families]func() int
}

// New returns an empty set, which is not ready.
func New() *LocRIB {
	r := &LocRIB{routes: table.New(new(table.Clock), func(p *netip.Prefix) netip.Prefix { return *p }, func(a, b netip.Prefix) bool { return a == b })}
	r.ready = r.routes.Initializer()
	for f := range message.Families {
		r.count[f] = r.routes.Sum(func(p *netip.Prefix) int {
			if message.FamilyOf(*p) == f {
				return 1
			}
			return 0
		})
	}
	return r
}

// Announce adds prefixes. Those of one call share UPDATE messages. Adding a prefix again does
// nothing. Host bits are cleared.
func (r *LocRIB) Announce(prefixes ...netip.Prefix) { r.routes.SetAll(masked(prefixes)) }

// Withdraw removes prefixes.
func (r *LocRIB) Withdraw(prefixes ...netip.Prefix) {
	for _, p := range masked(prefixes) {
		r.routes.Delete(p)
	}
}

// Ready means that every prefix that this host announces now has been passed to Announce. Each
// Adj-RIB-Out sends End-of-RIB then.
func (r *LocRIB) Ready() { r.ready() }

func masked(prefixes []netip.Prefix) []netip.Prefix {
	all := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.IsValid() {
			all = append(all, p.Masked())
		}
	}
	return all
}
