package nft

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/internal/netlink/watch"
	"github.com/ironvip/ironvip/plane/kernel/drift"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

var _ reconcile.Watched[vip.FrontendKey, vip.Frontend] = (*Target)(nil)

// Disturbed implements reconcile.Watched.
func (t *Target) Disturbed() <-chan struct{} { return t.drift.Changed() }

// Look implements reconcile.Watched. It finds what others have changed of the addresses, the device and the table.
func (t *Target) Look(ctx context.Context) (reconcile.Sight[vip.FrontendKey, vip.Frontend], error) {
	return t.drift.Look(ctx, t.records, &t.addresses, t.sysctlDrift, t.lookAtTable)
}

// lookAtTable compares what was touched of the table with the records.
func (t *Target) lookAtTable(ctx context.Context, touched *watch.Touched) (drift.Found, error) {
	if !t.adopted || t.altered {
		return drift.Found{State: drift.Altered}, nil
	}
	return t.examine(ctx, touched)
}

// sameAddresses reports whether the sets of every dataplane have what the records say.
func (t *Target) sameAddresses(table *filter.Ruleset) bool {
	for set, counts := range map[filter.Set]map[netip.Addr]int{filter.SetVIPs: t.records.VIPs, filter.SetHairpin: t.records.Hairpins} {
		for a := range counts {
			if !table.Has(filter.AddrElement(set, a)) {
				return false
			}
		}
	}
	return table.Len() == len(t.records.VIPs)+len(t.records.Hairpins)
}

// equal reports whether two contents have the same services and chains. Both are consistent.
func (c *content) equal(d *content) bool {
	return c.sameClasses(d) && maps.EqualFunc(c.services, d.services, func(a, b *service) bool {
		return a.number == b.number && a.class == b.class && a.classNo == b.classNo && slices.Equal(a.slots, b.slots) &&
			maps.Equal(a.members, b.members) && maps.Equal(a.weights, b.weights) && slices.Equal(a.sources, b.sources)
	})
}
