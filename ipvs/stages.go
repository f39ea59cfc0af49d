package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
	"golang.org/x/sys/unix"
)

// raise adds what must be in the table before an item is programmed.
func (t *Target) raise(up change, it *item) {
	f := it.update.New
	if f == nil || it.clashes {
		return
	}
	elementChanges(up, change{}, it.key, it.old, f, it.repair)
	if f.Kind == vip.OnVIP && (it.old == nil || it.repair) {
		up[addrElement(setVIPs, it.key.Addr)] = true
	}
	var had []netip.Addr
	if it.old != nil && !it.repair {
		had = t.held.hairpinsOf(it.old)
	}
	for _, a := range t.held.hairpinsOf(f) {
		if !slices.Contains(had, a) {
			up[addrElement(setHairpin, a)] = true
		}
	}
}

// lower adds what may leave the table now that an item is programmed, and
// takes back what was recorded of one that failed.
func (t *Target) lower(down change, it *item) {
	f, withdrawn := it.update.New, false
	switch {
	case it.clashes, it.blocked && it.have == nil && f != nil:
		// Not ours, or not there: nothing may be on record of it.
		t.held.set(it.key, nil)
		f, withdrawn = nil, true
	case f == nil && it.err() != nil:
		t.held.set(it.key, it.old) // still there, still ours
		return
	}
	if !stray(it.key) {
		elementChanges(change{}, down, it.key, it.old, f, it.repair || withdrawn)
	}
	gone := []netip.Addr{}
	for _, old := range []*vip.Frontend{it.old, it.update.Old, it.update.New} {
		if old != nil {
			gone = append(gone, t.held.hairpinsOf(old)...)
		}
	}
	if stray(it.key) { // something left over at this address
		gone = append(gone, it.key.Addr)
	}
	for _, a := range gone {
		if t.held.hairpins[a] == 0 {
			down[addrElement(setHairpin, a)] = false
		}
	}
	if t.held.vips[it.key.Addr] == 0 && !it.onHost() {
		down[addrElement(setVIPs, it.key.Addr)] = false
	}
}

// onHost reports whether the item never had to do with a virtual address.
func (it *item) onHost() bool {
	for _, f := range []*vip.Frontend{it.old, it.update.Old, it.update.New} {
		if f != nil && f.Kind == vip.OnVIP {
			return false
		}
	}
	return true
}

// filter brings the table up to date before anything is programmed: what is in
// up, or all of it where it has to be built.
func (t *Target) filter(ctx context.Context, up change) error {
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
					up[addrElement(setHairpin, a)] = false
				}
			}
			for a := range held.hairpins {
				up[addrElement(setHairpin, a)] = true
			}
			err := t.orRebuild(ctx, t.fw.setPods(ctx, held.pods, up))
			t.stalePods = err != nil
			return err
		}
		t.stalePods = false // or built anew below
	}
	if t.broken {
		if len(t.held.frontends) == 0 && len(up) == 0 {
			return nil // nothing to filter for yet
		}
		return t.orRebuild(ctx, errNoTable)
	}
	return t.orRebuild(ctx, t.fw.apply(ctx, up))
}

// orRebuild builds the table where err says that it is missing.
func (t *Target) orRebuild(ctx context.Context, err error) error {
	if !errors.Is(err, errNoTable) {
		t.broken = t.broken && err != nil
		return err
	}
	t.broken = true
	if err := t.fw.rebuild(ctx, t.held.pods, t.held.all()); err != nil {
		return err
	}
	t.broken = false
	return nil
}

// dropAddresses takes the addresses off the device that nobody needs any more.
func (t *Target) dropAddresses(ctx context.Context, items []*item) error {
	var gone []netip.Addr
	by := map[netip.Addr]*item{}
	for _, it := range items {
		a := it.key.Addr
		if it.update.New == nil && !it.onHost() && t.held.vips[a] == 0 && by[a] == nil {
			gone, by[a] = append(gone, a), it
		}
	}
	return t.device.remove(ctx, gone, func(a netip.Addr, err error) { by[a].errs = append(by[a].errs, err) })
}

// addAddresses puts the addresses of new services on the device.
func (t *Target) addAddresses(ctx context.Context, items []*item) error {
	var fresh []netip.Addr
	by := map[netip.Addr]*item{}
	for _, it := range items {
		f, a := it.update.New, it.key.Addr
		if f != nil && f.Kind == vip.OnVIP && !it.clashes && !it.blocked && (it.old == nil || it.repair) && by[a] == nil {
			fresh, by[a] = append(fresh, a), it
		}
	}
	failed := func(a netip.Addr, err error) {
		if it := by[a]; it != nil {
			it.errs = append(it.errs, err)
		}
	}
	err := t.device.add(ctx, fresh, failed)
	if !errors.Is(err, unix.ENODEV) {
		return err
	}
	// Somebody deleted the device, and with it every address.
	if err := t.device.ensure(); err != nil {
		return err
	}
	fresh = fresh[:0]
	for a := range t.held.vips {
		fresh = append(fresh, a)
	}
	return t.device.add(ctx, fresh, failed)
}
