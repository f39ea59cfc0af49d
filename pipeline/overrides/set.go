package overrides

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Request is an operator's change of one override.
type Request struct {
	Backend vip.BackendKey
	Group   string      // as in vip.BackendState
	State   vip.State   // Drain, Maint, or Ready to end the override; of a group: 0, or Ready
	Weight  uint32      // of a group
	Until   vip.Instant // when the override expires; zero: never
	Author  string      // as in vip.BackendState
	// Force permits a change that leaves a port without a usable backend.
	Force bool
}

// Key returns the key of the override.
func (r *Request) Key() vip.OverrideKey {
	return vip.OverrideKey{BackendKey: r.Backend, Group: r.Group}
}

// Result is the effect of a Request.
type Result struct {
	Rev   uint64 // of the table, with the change
	Local bool   // the change is stored on this host only, as the fleet's store is unavailable
}

// Set sets the override of a backend or group of any source. It stays in effect on all hosts
// until Ready ends it, or it expires. Set returns when the change is durable and in the table.
// While the store of a fleet is unavailable, the change is durable on this host, in effect on this
// host only, and merged with the fleet's store later (see merge). Errors are ErrNoService,
// ErrNoBackend, also for a group, ErrNotRunning, ErrStore, *ConflictError and *InvalidError of fleet/registry, and
// *LastBackendError.
//
// A LastBackendError is decided by the services on this host, and by the overrides of the whole
// fleet at the time of the write: of two hosts that each drain one of the last two backends at the
// same time, one is refused.
func (o *Overrides) Set(ctx context.Context, r Request) (Result, error) {
	if err := o.check(&r); err != nil {
		return Result{}, err
	}
	key := r.Key()
	at := storeKey(key)
	_, _, set := o.Table.Get(key)
	if err := o.find(ctx, key); err != nil && !(set && r.State == vip.Ready) { // an override may outlive its backend
		return Result{}, err
	}
	unlock, err := o.locks.Lock(ctx, registry.Key(r.Backend.Service))
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	next := o.valueOf(&r)
	op := registry.Op[Override]{Key: at, Apply: func(confirmed bool) (*registry.Edit[Override], error) {
		now := o.refresh(at)
		unchanged := now.Version != 0 && now.Value.Sets() == next.Sets() && now.Value.until() == r.Until
		if r.State == vip.Ready {
			unchanged = (now.Version == 0 || now.Value.Ended()) && !o.Store.Unreadable(at)
		}
		if o.isAway() { // the fleet's store may have another value, which this decision replaces
			unchanged = unchanged && now.Local
			confirmed = true
		}
		switch {
		case unchanged && !confirmed:
			return nil, registry.ErrConfirm
		case unchanged:
			return nil, nil
		}
		edit := &registry.Edit[Override]{Key: at, Version: now.Version, Value: next}
		if r.State != vip.Ready && r.Weight == 0 && !r.Force {
			last, others := o.lastOf(key)
			if last != nil {
				return nil, last
			}
			edit.Requires = others
		}
		return edit, nil
	}}
	if err := registry.Transact(ctx, o.Store, []*registry.Op[Override]{&op}, false, func([]int) { o.refresh(at) }); err != nil {
		return Result{}, err
	}
	if op.Err != nil {
		return Result{}, op.Err
	}
	if o.journal != nil && o.journal.HasGarbage() {
		o.wake.Set() // to merge, which deletes it
	}
	_, rev, set := o.Table.Get(key)
	if !set {
		rev = o.Table.Revision()
	}
	return Result{Rev: rev, Local: o.Store.Get(at).Local}, nil
}

// valueOf returns the value to store.
func (o *Overrides) valueOf(r *Request) *Override {
	out := &Override{Since: vip.InstantOf(time.Now()).Time(), Node: o.Node, Author: r.Author}
	if r.Group == "" || r.State == vip.Ready {
		out.State = r.State.String()
	} else {
		out.Weight = &r.Weight
	}
	if !r.Until.IsZero() {
		until := r.Until.Time()
		out.Until = &until
	}
	return out
}

// check returns an *InvalidError if the request itself is invalid.
func (o *Overrides) check(r *Request) error {
	if _, err := ParseState(r.State.String()); err != nil && r.Group == "" {
		return err
	}
	switch {
	case r.Weight > vip.MaxWeight:
		return invalid("weight", fmt.Sprintf("%d is out of bounds", r.Weight), fmt.Sprintf("use 0 to %d", vip.MaxWeight))
	case r.Until.IsZero():
		return nil
	case r.State == vip.Ready:
		return invalid("expires", `"ready" ends an override and does not expire`, "omit it")
	}
	if now := vip.InstantOf(time.Now()); !r.Until.After(now) {
		return invalid("expires", r.Until.Time().Format(time.RFC3339)+" has passed on this host",
			"use a time in the future, for example "+now.Add(time.Hour).Time().Format(time.RFC3339))
	}
	return nil
}

// find returns ErrNoService or ErrNoBackend if the backend or group does not exist. It fetches the
// service if needed, because another host may have just registered it.
func (o *Overrides) find(ctx context.Context, key vip.OverrideKey) error {
	err := o.lookUp(key)
	if err == nil {
		return nil
	}
	if !table.IsClosed(o.Services.Ready()) {
		return registry.ErrNotRunning // a missing service may not have been read yet
	}
	if o.Fetch != nil {
		if err := o.Fetch(ctx, key.Service); err != nil {
			return err
		}
		err = o.lookUp(key)
	}
	return err
}

// lookUp returns ErrNoService or ErrNoBackend if the services table does not have the backend or group.
func (o *Overrides) lookUp(key vip.OverrideKey) error {
	svc, _, ok := o.Services.Get(key.Service)
	switch {
	case !ok:
		return registry.ErrNoService
	case key.Group != "" && !slices.ContainsFunc(svc.Groups, func(g vip.Group) bool { return g.Name == key.Group }),
		key.Group == "" && !slices.ContainsFunc(svc.Backends, func(b vip.Backend) bool { return b.Key(key.Service) == key.BackendKey }):
		return registry.ErrNoBackend
	}
	return nil
}
