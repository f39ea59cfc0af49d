package overrides

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

const (
	// An override outlives its backend by gracePeriod. Therefore it is still there after a backend
	// was redeployed or a source restarted.
	gracePeriod = time.Hour
	// endedKept is how long an ended override is kept.
	endedKept = 24 * time.Hour
	// sweepInterval is the interval of sweeps of all overrides. Such a sweep costs O(overrides).
	sweepInterval = 10 * time.Minute
	// sweepRetry is the pause after a failed write.
	sweepRetry = 10 * time.Second
)

// sweepSoon makes sweepAll look at a key. The caller holds mu.
func (o *Overrides) sweepSoon(at string) {
	o.due[at] = struct{}{}
	o.wake.Set()
}

// sweepAll merges and sweeps what is due, and periodically sweeps all overrides, until the context
// ends.
func (o *Overrides) sweepAll(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	retry := time.NewTimer(sweepRetry)
	defer retry.Stop()
	for {
		ready := o.Services.Ready()
		if table.IsClosed(ready) {
			ready = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
		case <-ready:
		case <-tick.C:
			o.mu.Lock()
			for at := range o.entries {
				o.due[at] = struct{}{}
			}
			o.mu.Unlock()
		case <-retry.C:
		}
		if why, _ := o.Store.Stale(); why != "" {
			continue // follow wakes this loop when the store is reachable
		}
		err := o.merge(ctx)
		if table.IsClosed(o.Services.Ready()) { // no backend counts as gone before every source has synced
			err = cmp.Or(err, o.sweep(ctx))
		}
		if err != nil && ctx.Err() == nil {
			o.Log.Warn("overrides not merged or not ended, trying again", "after", sweepRetry, "err", err)
		}
		if err != nil || o.isDue() { // or a stored value was newer than what is known of it
			retry.Reset(sweepRetry)
		}
	}
}

// sweep ends the overrides that have expired, and removes those that ended a day ago, of removed
// services, and of backends that have been gone for gracePeriod. In a fleet each host does so with
// the overrides that were set through it. Other hosts may have other static sources, and can't know
// whether a backend is gone. The elected host also does so with the overrides of absent hosts.
func (o *Overrides) sweep(ctx context.Context) error {
	keys := o.takeDue()
	var swept, changed []string
	var ops []*registry.Op[Override]
	services := map[string]struct{}{}
	for _, at := range keys {
		item := o.Store.Get(at)
		next, end := o.judge(item)
		if !end {
			continue
		}
		services[registry.Key(registry.ServiceOf(at))] = struct{}{}
		swept = append(swept, at)
		ops = append(ops, &registry.Op[Override]{Key: at, Apply: func(bool) (*registry.Edit[Override], error) {
			if o.Store.Version(at) != item.Version { // another host has changed it
				changed = append(changed, at)
				return nil, nil
			}
			return &registry.Edit[Override]{Key: at, Version: item.Version, Value: next}, nil
		}})
	}
	if len(ops) == 0 {
		return nil
	}
	unlock, err := o.locks.Lock(ctx, slices.Collect(maps.Keys(services))...)
	if err != nil {
		return nil // the context has ended
	}
	defer unlock()
	err = registry.Transact(ctx, o.Store, ops, false, func(done []int) {
		for _, i := range done {
			o.refresh(swept[i])
		}
	})
	if err != nil {
		changed = swept
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, at := range changed {
		o.due[at] = struct{}{}
	}
	return err
}

// isDue reports whether a sweep has left keys to look at again.
func (o *Overrides) isDue() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.due) > 0
}

// takeDue returns the keys to sweep.
func (o *Overrides) takeDue() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	keys := slices.Sorted(maps.Keys(o.due))
	clear(o.due)
	return keys
}

// judge decides whether this host ends an override now. Next is its value afterwards; nil to remove
// it.
func (o *Overrides) judge(item registry.Item[Override]) (next *Override, end bool) {
	mine := item.Version != 0 && o.isMine(&item.Value)
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.entries[item.Key]
	if e == nil || e.version != item.Version {
		if e != nil { // what is known of it is old
			o.due[item.Key] = struct{}{}
		}
		return nil, false
	}
	now := time.Now()
	_, removed := o.removed[e.key.Service]
	served := o.lookUp(e.key)
	if removed && served != registry.ErrNoService {
		delete(o.removed, e.key.Service)
		removed = false
	}
	if served == nil {
		delete(o.missing, e.key)
	} else if _, known := o.missing[e.key]; !known {
		o.missing[e.key] = now
	}
	switch {
	case !mine:
		return nil, false
	case removed, item.Value.Ended() && now.Sub(item.Value.Since) >= endedKept:
		return nil, true
	case item.Value.Ended():
		return nil, false
	case e.over:
		return &Override{State: vip.Ready.String(), Since: *item.Value.Until, Node: item.Value.Node}, true
	}
	since, missing := o.missing[e.key]
	return nil, missing && now.Sub(since) >= gracePeriod
}

// absentAfter is how long a node must be absent before the elected host sweeps its overrides. A
// restart takes less time.
const absentAfter = 5 * time.Second

// isMine reports whether this host sweeps an override.
func (o *Overrides) isMine(stored *Override) bool {
	if o.Fleet == nil {
		return true
	}
	absent := stored.Node == "" || o.Fleet.AwayFor(stored.Node) > absentAfter
	return stored.Node == o.Node || absent && o.Fleet.Mine()
}
