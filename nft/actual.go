package nft

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/reconcile"
)

// Actual implements reconcile.Target. It costs one read of the table.
func (t *Target) Actual(ctx context.Context) iter.Seq2[observed, error] {
	return reconcile.ReadAll(ctx, func(ctx context.Context) ([]observed, error) {
		t.drift.Take(nil) // what follows shows it, too
		return t.readState(ctx)
	})
}

// readState reads the kernel and replaces the records by what it found. If the table isn't intact,
// the records of this process say what must be there.
func (t *Target) readState(ctx context.Context) ([]observed, error) {
	if t.adopted {
		t.forget(ctx)
		t.dropClasses(ctx)
	}
	rules, found, err := t.readTable(ctx)
	if err != nil {
		return nil, err
	}
	found.highest.raise(t.content.highest)
	found.lastClass = t.content.lastClass
	broken, pods := !rules.Intact, rules.Pods
	if broken {
		// It will be rebuilt from what this process knows and what is whole in it.
		whole := newContent()
		whole.lastClass = found.lastClass
		whole.highest, pods = found.highest, t.records.Pods
		for _, s := range found.services {
			if s.whole() {
				whole.put(s)
			}
		}
		for k, f := range t.records.Frontends {
			whole.put(desired(f, t.content.services[k], &whole.highest))
		}
		found = whole
	}
	held := usage.NewRecords(pods)
	all := make([]observed, 0, len(found.services))
	t.needs = needs{}
	for k, s := range found.services {
		f := s.taken()
		if before := t.records.Frontends[k]; before != nil {
			f.Relay = before.Relay // the table doesn't have it
		}
		all = append(all, observed{Value: f})
		held.Set(k, &all[len(all)-1].Value)
		t.needs = t.needs.with(&f)
	}
	for i := range all {
		t.inspect(&all[i], rules, held)
	}
	shared := host.Drift(&t.findings, t.sysctl, t.settings())
	t.pods = slices.Clone(t.opt.PodCIDRs())
	stale := !broken && !rules.Pods.Equal(usage.PodSet(t.pods))
	if stale {
		shared = append(shared, filter.StalePods)
	}
	if broken && t.adopted {
		shared = append(shared, filter.Damage(t.opt.table()))
	}
	usage.Blame(all, shared)
	all = append(all, rules.Orphans(held)...)
	t.replaceRecords(held)
	t.content, t.broken, t.adopted = found, broken, true
	return all, nil
}

// inspect adds the damage that a frontend can't express.
func (t *Target) inspect(o *observed, rules *filter.Ruleset, held *usage.Records) {
	addf := func(format string, args ...any) { o.Damage = append(o.Damage, fmt.Sprintf(format, args...)) }
	f := &o.Value
	if !rules.Intact && !t.adopted { // at the start, any of them may be the first that is desired
		o.Damage = append(o.Damage, filter.Damage(t.opt.table()))
	}
	if usage.OnDevice(f) {
		if e := filter.AddrElement(filter.SetVIPs, f.Key.Addr); rules.Intact && !rules.Has(e) {
			addf("missing: %s", e)
		}
	}
	for _, a := range held.HairpinsOf(f) {
		if e := filter.AddrElement(filter.SetHairpin, a); rules.Intact && !rules.Has(e) {
			addf("missing: %s", e)
		}
	}
}
