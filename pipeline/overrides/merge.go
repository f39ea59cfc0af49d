package overrides

import (
	"context"
	"maps"
	"slices"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/vip"
)

// Local returns the changes that are stored on this host only, by key. The state of an ended
// override is Ready.
func (o *Overrides) Local() []vip.BackendState {
	if o.journal == nil {
		return nil
	}
	var out []vip.BackendState
	for _, item := range o.journal.Pending() {
		if row, err := item.Value.row(item.Key); err == nil {
			row.Local = true
			out = append(out, row)
		}
	}
	return out
}

// isAway reports whether the fleet's store can't be written.
func (o *Overrides) isAway() bool {
	why, _ := o.Store.Stale()
	return o.journal != nil && why != ""
}

// Replaces reports whether an override that was set while the fleet's store was unavailable replaces
// the one there, if there is one. Of two decisions about one backend or group, the later one wins, by the clocks
// of the hosts that received them. A removed value has no time and loses.
func (o Override) Replaces(there Override, stored bool) bool {
	if !stored {
		return !o.Ended()
	}
	return o.Since.After(there.Since)
}

// merge writes the overrides that were set while the fleet's store was unavailable to that store.
func (o *Overrides) merge(ctx context.Context) error {
	if o.journal == nil {
		return nil
	}
	var keys []string
	services := map[string]struct{}{}
	for _, item := range o.journal.Pending() {
		keys = append(keys, item.Key)
		services[registry.Key(registry.ServiceOf(item.Key))] = struct{}{}
	}
	if len(keys) == 0 && !o.journal.HasGarbage() {
		return nil
	}
	unlock, err := o.locks.Lock(ctx, slices.Collect(maps.Keys(services))...)
	if err != nil {
		return err
	}
	defer unlock()
	done, err := o.journal.Merge(ctx, keys, func(pending Override, there registry.Item[Override]) bool {
		return pending.Replaces(there.Value, there.Version != 0)
	})
	for _, at := range done {
		item := o.refresh(at)
		o.mu.Lock()
		if e := o.entries[at]; e != nil {
			row, _ := item.Value.row(at)
			row.Local = item.Local
			o.publishEvent(e.key, "merged with the fleet's store: "+row.Sets()+o.by(row))
		}
		o.mu.Unlock()
	}
	return err
}
