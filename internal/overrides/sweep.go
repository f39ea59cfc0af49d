package overrides

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/internal/registry"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// An override outlives its backend by gracePeriod. Therefore it is still there after a backend was
// redeployed or a source restarted. A sweep costs O(overrides).
const (
	gracePeriod   = time.Hour
	sweepInterval = 10 * time.Minute
)

// sweep removes the overrides of backends that have been gone for gracePeriod. No backend counts as
// gone before every source has synced. In a fleet each host removes the overrides that were set
// through it. Other hosts may have other static sources, and can't know whether the backend is
// gone. The elected host also removes the overrides of absent hosts.
func (o *Overrides) sweep(ctx context.Context) {
	if !table.IsClosed(o.Services.Ready()) {
		return
	}
	now := time.Now()
	var expired []vip.BackendKey
	for key := range o.Table.All() {
		since, known := o.missing[key]
		switch {
		case o.lookUp(key) == nil:
			delete(o.missing, key)
		case !known:
			o.missing[key] = now
		case now.Sub(since) >= gracePeriod && o.isMine(storeKey(key)):
			expired = append(expired, key)
		}
	}
	if len(expired) == 0 {
		return
	}
	keys := make([]string, len(expired))
	for i, key := range expired {
		keys[i] = storeKey(key)
	}
	unlock, err := o.locks.Lock(ctx, keys...)
	if err != nil {
		return
	}
	defer unlock()
	ops := make([]*registry.Op[Override], len(keys))
	for i, at := range keys {
		version := o.Store.Version(at)
		ops[i] = &registry.Op[Override]{Key: at, Apply: func(bool) (*registry.Edit[Override], error) {
			if version == 0 || o.Store.Version(at) != version { // another host has changed it
				return nil, nil
			}
			return &registry.Edit[Override]{Key: at, Version: version}, nil
		}}
	}
	written := func(done []int) {
		for _, i := range done {
			o.refresh(keys[i])
		}
	}
	if err := registry.Transact(ctx, o.Store, ops, false, written); err != nil {
		o.Log.Error("overrides of removed backends not deleted, trying again", "after", sweepInterval, "err", err)
		return
	}
	for _, key := range expired {
		delete(o.missing, key)
	}
}

// absentAfter is how long a node must be absent before the elected host sweeps its overrides. A
// restart takes less time.
const absentAfter = 5 * time.Second

// isMine reports whether this host removes the override at a key.
func (o *Overrides) isMine(at string) bool {
	if o.Fleet == nil {
		return true
	}
	item := o.Store.Get(at)
	stored := item.Value
	absent := stored.Node == "" || o.Fleet.AwayFor(stored.Node) > absentAfter
	return item.Version != 0 && (stored.Node == o.Node || absent && o.Fleet.Mine())
}
