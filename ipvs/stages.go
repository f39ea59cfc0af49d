package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// addBefore adds to up the changes of the table that must come before an item is
// programmed.
func (t *Target) addBefore(up filter.Change, it *item) {
	f := it.update.New
	if f == nil || it.result.blocked {
		return
	}
	t.buffers.elementChanges(up, nil, it, f, it.repair)
	if usage.OnDevice(f) && (it.old == nil || it.repair) {
		up[filter.AddrElement(filter.SetVIPs, it.key.Addr)] = true
	}
	var had []netip.Addr
	if it.old != nil && !it.repair {
		had = t.records.HairpinsOf(it.old)
	}
	for _, a := range t.records.HairpinsOf(f) {
		if !slices.Contains(had, a) {
			up[filter.AddrElement(filter.SetHairpin, a)] = true
		}
	}
}

// removalsAfter returns the elements to remove after all items are programmed. Up is
// what was changed before.
func (t *Target) removalsAfter(items []*item, up filter.Change) filter.Change {
	down := filter.Change{}
	for _, it := range items {
		t.removeAfter(down, it)
		t.loosenHairpins(it)
	}
	for a := range t.looseHairpins {
		if t.records.Hairpins[a] == 0 {
			down[filter.AddrElement(filter.SetHairpin, a)] = false
		}
	}
	for e, present := range up {
		if !present {
			delete(down, e) // done
		}
	}
	return down
}

// releaseMarks releases the marks that neither a service nor the table has any more.
func (t *Target) releaseMarks(items []*item) {
	for _, it := range items {
		if f := t.records.Frontends[it.key]; it.mark != 0 && (f == nil || !hasMark(f)) {
			t.marks.release(it.key)
		}
	}
}

// removeAfter adds to down the elements to remove after an item is programmed. It
// reverts the records of an item that failed.
func (t *Target) removeAfter(down filter.Change, it *item) {
	f, withdrawn := it.update.New, false
	switch {
	case it.result.blocked, it.service.failed() && f != nil:
		// It is foreign or missing, so it must not be recorded as ours.
		t.records.Set(it.key, nil)
		f, withdrawn = nil, true
	case f == nil && it.err() != nil:
		t.records.Set(it.key, it.old) // it still exists and is ours
		return
	}
	if !it.key.Whole() {
		t.buffers.elementChanges(nil, down, it, f, it.repair || withdrawn)
	}
	if t.records.VIPs[it.key.Addr] == 0 && !it.onHost() {
		down[filter.AddrElement(filter.SetVIPs, it.key.Addr)] = false
	}
}

// loosenHairpins notes the backends whose hairpin elements the item may leave behind, before or
// after. They stay noted until a transaction has removed the elements.
func (t *Target) loosenHairpins(it *item) {
	for _, f := range it.versions() {
		if f == nil {
			continue
		}
		for _, a := range t.records.HairpinsOf(f) {
			t.looseHairpins[a] = struct{}{}
		}
	}
	if it.key.Whole() { // leftovers at this address
		t.looseHairpins[it.key.Addr] = struct{}{}
	}
}

// updateTable changes the table before anything is programmed: by up, or by a rebuild.
func (t *Target) updateTable(ctx context.Context, up filter.Change) error {
	if pods := t.opt.PodCIDRs(); t.stalePods || !slices.Equal(pods, t.pods) {
		t.pods, t.stalePods = slices.Clone(pods), true
		before := t.records.Hairpins
		held := t.records.With(usage.PodSet(pods))
		same := held.Pods.Equal(t.records.Pods)
		t.records = held
		if !same && !t.broken {
			up.Put(filter.SetHairpin, before, false)
			up.Put(filter.SetHairpin, held.Hairpins, true)
			err := t.rebuildIfMissing(ctx, t.fw.SetPods(ctx, held.Pods, up))
			if t.stalePods = err != nil; err != nil {
				for a := range before {
					t.looseHairpins[a] = struct{}{}
				}
			}
			return err
		}
		t.stalePods = false // or it is rebuilt below
	}
	if t.broken {
		if len(t.records.Frontends) == 0 && len(up) == 0 {
			return nil // the table isn't needed yet
		}
		return t.rebuildIfMissing(ctx, filter.ErrNoTable)
	}
	return t.rebuildIfMissing(ctx, t.fw.Apply(ctx, up))
}

// rebuildIfMissing rebuilds the table if err is ErrNoTable.
func (t *Target) rebuildIfMissing(ctx context.Context, err error) error {
	if !errors.Is(err, filter.ErrNoTable) {
		t.broken = t.broken && err != nil
		return err
	}
	t.broken = true
	err = t.fw.Rebuild(ctx, t.records.Pods, elementsOfAll(t.records, &t.marks))
	t.broken, t.unbuildable = err != nil, errors.Is(err, filter.ErrNoTable)
	if t.unbuildable {
		// The kernel answers ENOENT for a missing module, too.
		if missing := t.fw.Missing(ctx); missing != nil {
			return missing
		}
	}
	if err == nil {
		for k, f := range t.records.Frontends {
			if usage.Masquerade(f) != vip.MasqueradeNever {
				t.outdated.AddUnmasqueraded(k)
			}
		}
	}
	return err
}
