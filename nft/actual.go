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

// Actual implements reconcile.Target. It costs one read of the table, or one request if no program has changed any table since
// the last one.
func (t *Target) Actual(ctx context.Context) iter.Seq2[observed, error] {
	return reconcile.ReadAll(ctx, func(ctx context.Context) ([]observed, error) {
		t.drift.Take(nil) // what follows shows it, too
		return t.readState(ctx)
	})
}

// readState replaces the records by what the kernel has. If the table isn't intact, the records of this process say what
// must be there.
func (t *Target) readState(ctx context.Context) ([]observed, error) {
	if t.adopted {
		t.forget(ctx)
		t.dropClasses(ctx)
	}
	generation, err := t.fw.Generation(ctx)
	if err != nil {
		return nil, err
	}
	var all, orphans []observed
	var damage []string
	if t.adopted && generation == t.unchanged && !t.broken {
		all = make([]observed, 0, len(t.records.Frontends))
		for _, f := range t.records.Frontends {
			all = append(all, observed{Value: *f})
		}
	} else {
		if all, orphans, damage, err = t.readKernel(ctx); err != nil {
			return nil, err
		}
		t.unchanged = generation
		if t.broken || len(orphans) > 0 || slices.ContainsFunc(all, func(o observed) bool { return len(o.Damage) > 0 }) {
			t.unchanged = 0
		}
	}
	shared := host.Drift(&t.findings, t.sysctl, t.settings())
	t.pods = slices.Clone(t.opt.PodCIDRs())
	if !t.broken && !t.records.Pods.Equal(usage.PodSet(t.pods)) {
		shared = append(shared, filter.StalePods)
	}
	usage.Blame(all, append(shared, damage...))
	return append(all, orphans...), nil
}

// readKernel reads the table, and returns its frontends, what belongs to none, and the damage of the whole table.
func (t *Target) readKernel(ctx context.Context) (all, orphans []observed, damage []string, err error) {
	rules, found, err := t.readTable(ctx)
	if err != nil {
		return nil, nil, nil, err
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
	all = make([]observed, 0, len(found.services))
	t.needs = needs{}
	for k, s := range found.services {
		f := new(s.taken())
		if before := t.records.Frontends[k]; before != nil {
			f.Relay = before.Relay // the table doesn't have it
			if t.Same(f, before) {
				f = before // shared with the desired one
			}
		}
		all = append(all, observed{Value: *f})
		held.Set(k, f)
		t.needs = t.needs.with(f)
	}
	for i := range all {
		t.inspect(&all[i], rules, held)
	}
	if broken && t.adopted {
		damage = append(damage, filter.Damage(t.opt.table()))
	}
	t.replaceRecords(held)
	t.content, t.broken, t.adopted = found, broken, true
	return all, rules.Orphans(held), damage, nil
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
