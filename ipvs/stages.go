package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/ipvs/internal/filter"
	"github.com/ironvip/ironvip/ipvs/internal/host"
	"github.com/ironvip/ironvip/vip"
)

// raise adds what must be in the table before an item is programmed.
func (t *Target) raise(up filter.Change, it *item) {
	f := it.update.New
	if f == nil || it.result.blocked {
		return
	}
	t.room.elementChanges(up, nil, it.key, it.mark, it.before(&[3]*vip.Frontend{}), f, it.repair)
	for _, k := range it.replaces { // whole: without its record nobody knows what a mark is for
		gone, mark := t.held.frontends[k], t.marks.get(k)
		for _, e := range sourceElements(elements(nil, gone, mark), gone, mark) {
			up[e] = false
		}
	}
	if onDevice(f) && (it.old == nil || it.repair) {
		up[filter.AddrElement(filter.SetVIPs, it.key.Addr)] = true
	}
	var had []netip.Addr
	if it.old != nil && !it.repair {
		had = t.held.hairpinsOf(it.old)
	}
	for _, a := range t.held.hairpinsOf(f) {
		if !slices.Contains(had, a) {
			up[filter.AddrElement(filter.SetHairpin, a)] = true
		}
	}
}

// lowerAll returns what may leave the table now that all is programmed; up is
// what was done to it before.
func (t *Target) lowerAll(items []*item, up filter.Change) filter.Change {
	down := filter.Change{}
	for _, it := range items {
		t.lower(down, it)
	}
	for e, present := range up {
		if !present {
			delete(down, e) // done
		}
	}
	return down
}

// releaseMarks gives back the marks that nothing has any more, neither a service
// nor the table.
func (t *Target) releaseMarks(items []*item) {
	for _, it := range items {
		if f := t.held.frontends[it.key]; it.mark != 0 && (f == nil || !hasMark(f)) {
			t.marks.release(it.key)
		}
	}
}

// lower adds what may leave the table now that an item is programmed, and
// takes back what was recorded of one that failed.
func (t *Target) lower(down filter.Change, it *item) {
	f, withdrawn := it.update.New, false
	switch {
	case it.result.blocked, it.service.failed() && f != nil:
		// Not ours, or not there: nothing may be on record of it.
		t.held.set(it.key, nil)
		f, withdrawn = nil, true
	case f == nil && it.err() != nil:
		t.held.set(it.key, it.old) // still there, still ours
		return
	}
	if !stray(it.key) {
		t.room.elementChanges(nil, down, it.key, it.mark, it.before(&[3]*vip.Frontend{}), f, it.repair || withdrawn)
	}
	gone := t.hairpinsAround(it)
	if stray(it.key) { // something left over at this address
		gone = append(gone, it.key.Addr)
	}
	for _, a := range gone {
		if t.held.hairpins[a] == 0 {
			down[filter.AddrElement(filter.SetHairpin, a)] = false
		}
	}
	if t.held.vips[it.key.Addr] == 0 && !it.onHost() {
		down[filter.AddrElement(filter.SetVIPs, it.key.Addr)] = false
	}
}

// hairpinsAround returns the backends whose hairpin elements the item concerns,
// before or after.
func (t *Target) hairpinsAround(it *item) []netip.Addr {
	var all []netip.Addr
	for _, f := range []*vip.Frontend{it.old, it.update.Old, it.update.New} {
		if f != nil {
			all = append(all, t.held.hairpinsOf(f)...)
		}
	}
	return all
}

// filter brings the table up to date before anything is programmed: what is in
// up, or all of it where it has to be built.
func (t *Target) filter(ctx context.Context, up filter.Change) error {
	if pods := t.opt.PodCIDRs(); t.stalePods || !slices.Equal(pods, t.pods) {
		t.pods, t.stalePods = slices.Clone(pods), true
		before := t.held.hairpins
		held := newHoldings(podSet(pods))
		for k, f := range t.held.frontends {
			held.set(k, f)
		}
		same := held.pods.Equal(t.held.pods)
		t.held = held
		if !same && !t.broken {
			for a := range before {
				if held.hairpins[a] == 0 {
					up[filter.AddrElement(filter.SetHairpin, a)] = false
				}
			}
			for a := range held.hairpins {
				up[filter.AddrElement(filter.SetHairpin, a)] = true
			}
			err := t.orRebuild(ctx, t.fw.SetPods(ctx, held.pods, up))
			if t.stalePods = err != nil; err != nil {
				for a := range before {
					t.loose[a] = struct{}{}
				}
			}
			return err
		}
		t.stalePods = false // or built anew below
	}
	if t.broken {
		if len(t.held.frontends) == 0 && len(up) == 0 {
			return nil // nothing to filter for yet
		}
		return t.orRebuild(ctx, filter.ErrNoTable)
	}
	return t.orRebuild(ctx, t.fw.Apply(ctx, up))
}

// orRebuild builds the table where err says that it is missing.
func (t *Target) orRebuild(ctx context.Context, err error) error {
	if !errors.Is(err, filter.ErrNoTable) {
		t.broken = t.broken && err != nil
		return err
	}
	t.broken = true
	err = t.fw.Rebuild(ctx, t.held.pods, t.held.all(&t.marks))
	t.broken, t.unbuildable = err != nil, errors.Is(err, filter.ErrNoTable)
	if t.unbuildable {
		// The kernel answers ENOENT for a module, too.
		if missing := t.fw.Missing(ctx); missing != nil {
			return missing
		}
	}
	return err
}

// dropAddresses takes the addresses off the device that nobody needs any more, and
// those that no frontend has in that form.
func (t *Target) dropAddresses(ctx context.Context, items []*item) error {
	var gone []netip.Prefix
	by := map[netip.Prefix]*item{}
	drop := func(p netip.Prefix, it *item) {
		if by[p] == nil {
			gone, by[p] = append(gone, p), it
		}
	}
	for _, it := range items {
		a := it.key.Addr
		if it.update.New == nil && !it.onHost() && t.held.vips[a] == 0 {
			drop(host.Single(a), it)
		}
		for _, p := range t.wide {
			if stray(it.key) && p.Addr() == a {
				drop(p, it)
			}
		}
	}
	return t.device.Remove(ctx, gone, func(p netip.Prefix, err error) { by[p].fail(err) })
}

// addAddresses puts the addresses of new frontends on the device.
func (t *Target) addAddresses(ctx context.Context, items []*item) error {
	fresh := make([]netip.Addr, 0, len(items))
	placed := func(it *item) bool {
		f := it.update.New
		return f != nil && onDevice(f) && !it.result.blocked && !it.service.rejected && (it.old == nil || it.repair)
	}
	for _, it := range items {
		if placed(it) {
			fresh = append(fresh, it.key.Addr)
		}
	}
	slices.SortFunc(fresh, netip.Addr.Compare)
	fresh = slices.Compact(fresh)
	var astray error
	failed := func(a netip.Addr, err error) {
		known := false
		for _, it := range items { // each that has it lacks it
			if it.key.Addr == a && placed(it) {
				it.fail(err)
				known = true
			}
		}
		if !known {
			astray = err
		}
	}
	if !t.bare {
		err := t.device.Add(ctx, fresh, failed)
		if !errors.Is(err, unix.ENODEV) {
			return err
		}
		// Somebody deleted the device, and with it every address.
		if err := t.ensureDevice(); err != nil {
			return err
		}
	}
	t.bare = true
	if err := t.device.Add(ctx, t.neededAddresses(items), failed); err != nil {
		return err
	}
	t.bare = astray != nil
	return astray
}

// neededAddresses returns the addresses of all that is held, but for services
// that could not be made.
func (t *Target) neededAddresses(items []*item) []netip.Addr {
	without := map[netip.Addr]int{}
	for _, it := range items {
		if it.service.failed() && it.update.New != nil && onDevice(it.update.New) {
			without[it.key.Addr]++
		}
	}
	all := make([]netip.Addr, 0, len(t.held.vips))
	for a, n := range t.held.vips {
		if n > without[a] {
			all = append(all, a)
		}
	}
	return all
}

// ensureDevice makes the device as it must be. Where it wasn't, the addresses
// that it had may have gone.
func (t *Target) ensureDevice() error {
	changed, err := t.device.Ensure()
	t.bare = t.bare || changed || err != nil // which may be but an answer that got lost
	return err
}
