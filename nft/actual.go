package nft

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Actual implements reconcile.Target. It costs one read of the table.
func (t *Target) Actual(ctx context.Context) iter.Seq2[observed, error] {
	return reconcile.ReadAll(ctx, func(ctx context.Context) ([]observed, error) {
		t.drift.Take(nil) // what follows shows it, too
		all, err := t.readState(ctx)
		if err == nil {
			t.altered = false
		}
		return all, err
	})
}

// readAgain reads the kernel for a batch. Other changes of other programs are left to a Check, and to the resync that it asks
// for.
func (t *Target) readAgain(ctx context.Context, batch []updateOf) error {
	before := t.records
	if _, err := t.readState(ctx); err != nil || t.broken { // a rebuilt table is as recorded
		return err
	}
	expected := func(k vip.FrontendKey) bool {
		a, b := before.Frontends[k], t.records.Frontends[k]
		return a != nil && b != nil && t.Same(a, b) || slices.ContainsFunc(batch, func(u updateOf) bool { return u.Key == k })
	}
	for _, all := range []*usage.Records{before, t.records} {
		for k := range all.Frontends {
			t.altered = t.altered || !expected(k)
		}
	}
	return nil
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
	untuned := t.sysctlDrift()
	t.pods = slices.Clone(t.opt.PodCIDRs())
	stale := !broken && !rules.Pods.Equal(usage.PodSet(t.pods))
	if len(all) > 0 {
		// Any repair fixes what concerns all frontends, so report it for one of them.
		first := slices.MinFunc(all, func(a, b observed) int { return vip.CompareFrontendKeys(a.Value.Key, b.Value.Key) }).Value.Key
		i := slices.IndexFunc(all, func(o observed) bool { return o.Value.Key == first })
		if stale {
			all[i].Damage = append(all[i].Damage, "pod ranges in the nftables table are not as configured")
		}
		all[i].Damage = append(all[i].Damage, untuned...)
	}
	all = append(all, orphans(rules, held)...)
	t.replaceRecords(held)
	t.content, t.broken, t.adopted = found, broken, true
	return all, nil
}

// inspect adds the damage that a frontend can't express.
func (t *Target) inspect(o *observed, rules *filter.Ruleset, held *usage.Records) {
	addf := func(format string, args ...any) { o.Damage = append(o.Damage, fmt.Sprintf(format, args...)) }
	f := &o.Value
	if !rules.Intact {
		addf("nftables table inet %s is missing or not as it should be", t.opt.Table)
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

// orphans returns what is ours and belongs to no frontend, one item per address.
func orphans(rules *filter.Ruleset, held *usage.Records) []observed {
	found := map[netip.Addr][]string{}
	for k := range rules.Sets {
		for set, counts := range map[filter.Set]map[netip.Addr]int{filter.SetVIPs: held.VIPs, filter.SetHairpin: held.Hairpins} {
			if e := filter.AddrElement(set, k.Addr); rules.Has(e) && counts[k.Addr] == 0 {
				found[k.Addr] = append(found[k.Addr], fmt.Sprintf("should not be: %s", e))
			}
		}
	}
	out := make([]observed, 0, len(found))
	for a, d := range found {
		out = append(out, observed{Value: vip.Frontend{Key: vip.FrontendKey{Addr: a}, Kind: vip.OnVIP}, Damage: d, Orphan: true})
	}
	return out
}
