package ipvs

import (
	"context"

	"github.com/ironvip/ironvip/plane/kernel/drift"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Changed implements reconcile.Target.
func (t *Target) Changed() <-chan struct{} { return t.drift.Changed() }

// Check implements reconcile.Target. It finds what others have changed of the table and of forwarding. The kernel has no
// events of IPVS.
func (t *Target) Check(ctx context.Context) (reconcile.Drift[vip.FrontendKey, vip.Frontend], error) {
	return t.drift.Check(ctx, t.records, t.sysctlDrift, t.lookAtTable)
}

// lookAtTable compares the table with the records.
func (t *Target) lookAtTable(ctx context.Context) (drift.TableState, error) {
	if !t.adopted || len(t.records.Frontends) == 0 {
		return drift.Whole, nil // the table isn't needed
	}
	table, err := t.fw.Read(ctx)
	switch {
	case err != nil:
		return drift.Whole, err
	case !table.Intact:
		t.broken = true
		return drift.Broken, nil
	case !table.Pods.Equal(t.records.Pods) || !sameElements(table, elementsOfAll(t.records, &t.marks)):
		return drift.Altered, nil
	}
	return drift.Whole, nil
}

// sameElements reports whether the table has exactly these elements.
func sameElements(table *filter.Ruleset, want filter.Change) bool {
	for e := range want {
		if !table.Has(e) {
			return false
		}
	}
	return table.Len() == len(want)
}
