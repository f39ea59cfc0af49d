package nft

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/plane/kernel/drift"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Changed implements reconcile.Target.
func (t *Target) Changed() <-chan struct{} { return t.drift.Changed() }

// Check implements reconcile.Target. It finds what others have changed of the table and of forwarding.
func (t *Target) Check(ctx context.Context) (reconcile.Drift[vip.FrontendKey, vip.Frontend], error) {
	return t.drift.Check(ctx, t.records, t.sysctlDrift, t.lookAtTable)
}

// lookAtTable compares the table with the records.
func (t *Target) lookAtTable(ctx context.Context) (drift.TableState, error) {
	if !t.adopted || t.altered {
		return drift.Altered, nil
	}
	table, found, err := t.readTable(ctx)
	switch {
	case err != nil:
		return drift.Whole, err
	case !table.Intact: // without frontends, the next one rebuilds it
		t.broken = true
		return drift.Broken, nil
	case !table.Pods.Equal(t.records.Pods) || !t.sameAddresses(table) || !found.equal(t.content):
		return drift.Altered, nil
	}
	return drift.Whole, nil
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
	return slices.EqualFunc(c.chains[:], d.chains[:], maps.Equal) && maps.EqualFunc(c.services, d.services, func(a, b *service) bool {
		return a.number == b.number && a.class == b.class && a.classNo == b.classNo && slices.Equal(a.slots, b.slots) &&
			maps.Equal(a.members, b.members) && maps.Equal(a.weights, b.weights) && slices.Equal(a.sources, b.sources)
	})
}
