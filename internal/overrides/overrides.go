// Package overrides keeps the states that operators set for single backends: drain and maint, for
// backends of any source.
//
// Its inputs are Set and the overrides that other hosts set through the registry. Its output is the
// overrides table. This package is the table's only writer. An override is durable before it is in
// the table. It stays in effect until an operator sets ready or the backend has been gone for an
// hour. The package never changes a service's row.
//
// Files:
//
//	overrides.go  the Overrides type: set, restore, follow the registry
//	stored.go     the stored value and its key
//	sweep.go      removes the overrides of backends that are gone
package overrides

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/registry"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Options are the dependencies of Overrides. Store, Table and Services are required.
type Options struct {
	Store    registry.Store[Override]
	Table    *table.Table[vip.BackendKey, vip.BackendState] // this package is its only writer
	Services table.Reader[vip.ServiceKey, vip.Service]      // of every source
	// Fleet is the hosts that share the store; nil for one host. Node is the name of this host.
	Fleet Fleet
	Node  string
	// Fetch reads a service that another host has just written into Services. It may be nil.
	Fetch  func(context.Context, vip.ServiceKey) error
	Events *event.Log
	Log    *slog.Logger // nil: slog.Default()
}

// Fleet is the part of the fleet that the overrides use. *fleet.Tree implements it.
type Fleet interface {
	Mine() bool                        // this host is elected
	AwayFor(node string) time.Duration // how long a node has been absent; 0 if it is present
}

// Overrides sets and follows overrides. Its methods are safe for concurrent use.
type Overrides struct {
	Options
	feed  registry.Feed[Override]
	ready func() // the table's initializer
	locks registry.Locks

	mu      sync.Mutex
	running bool
	invalid map[string]vip.Problem // problems with invalid stored values, by their key
	kept    map[string]struct{}    // keys of overrides in effect with a stored value that has become unreadable

	missing map[vip.BackendKey]time.Time // when an override's backend was first missing; for the sweep
}

// New returns overrides for a store that may not have been read yet. The table becomes ready when
// Restore or Run has filled it.
func New(o Options) *Overrides {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Overrides{Options: o, feed: o.Store.Watch(), ready: o.Table.Initializer(),
		invalid: map[string]vip.Problem{}, kept: map[string]struct{}{}, missing: map[vip.BackendKey]time.Time{}}
}

// Restore fills the table from a store that has been read. Call it at most once, before Run.
// Without Restore, Run fills the table when the store is ready.
func (o *Overrides) Restore() {
	registry.Drain(o.feed, o.receive)
	if table.IsClosed(o.Store.Ready()) {
		o.ready()
	}
}

// readTimeout is how long the pipeline waits at the start for a store that can't be read.
const readTimeout = 30 * time.Second

// Run follows the store and sweeps periodically until the context ends.
func (o *Overrides) Run(ctx context.Context) error {
	late := time.NewTimer(readTimeout)
	defer late.Stop()
	for unread := o.Store.Ready(); unread != nil; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-unread:
			unread = nil
		case <-late.C:
			why, _ := o.Store.Stale()
			o.Log.Error("backend overrides not read, continuing without them", "after", readTimeout, "err", why)
			o.ready()
		}
	}
	registry.Drain(o.feed, o.receive)
	o.ready()
	o.setRunning(true)
	defer o.setRunning(false)
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	for {
		_, changed := o.Store.Stale()
		more := registry.Drain(o.feed, o.receive)
		o.recheck()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		case <-changed:
		case <-sweep.C:
			o.sweep(ctx)
		}
	}
}

func (o *Overrides) setRunning(to bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.running = to
}

// Set sets the override of a backend of any source. Drain and Maint stay in effect on all hosts
// until Ready removes them. Set returns the revision when the change is durable and in the table.
// Errors are ErrNoService, ErrNoBackend, ErrNotRunning, ErrStore, *ConflictError and *InvalidError
// of internal/registry.
func (o *Overrides) Set(ctx context.Context, key vip.BackendKey, to vip.State) (rev uint64, err error) {
	if _, err := ParseState(to.String()); err != nil {
		return 0, err
	}
	if err := o.findBackend(ctx, key); err != nil {
		return 0, err
	}
	at := storeKey(key)
	unlock, err := o.locks.Lock(ctx, at)
	if err != nil {
		return 0, err
	}
	defer unlock()
	op := registry.Op[Override]{Key: at, Apply: func(confirmed bool) (*registry.Edit[Override], error) {
		now := o.refresh(at)
		unchanged := now.Version != 0 && now.Value.State == to.String()
		if to == vip.Ready {
			unchanged = now.Version == 0 && !o.Store.Unreadable(at)
		}
		switch {
		case unchanged && !confirmed:
			return nil, registry.ErrConfirm
		case unchanged:
			return nil, nil
		}
		edit := &registry.Edit[Override]{Key: at, Version: now.Version}
		if to != vip.Ready {
			edit.Value = &Override{State: to.String(), Since: time.Now().UTC(), Node: o.Node}
		}
		return edit, nil
	}}
	if err := registry.Transact(ctx, o.Store, []*registry.Op[Override]{&op}, false, func([]int) { o.refresh(at) }); err != nil {
		return 0, err
	}
	if op.Err != nil {
		return 0, op.Err
	}
	if _, now, set := o.Table.Get(key); set {
		return now, nil
	}
	return o.Table.Revision(), nil
}

// findBackend returns ErrNoService or ErrNoBackend if the backend does not exist. It fetches the
// service if needed, because another host may have just registered it.
func (o *Overrides) findBackend(ctx context.Context, key vip.BackendKey) error {
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

// lookUp returns ErrNoService or ErrNoBackend if the services table does not have the backend.
func (o *Overrides) lookUp(key vip.BackendKey) error {
	svc, _, ok := o.Services.Get(key.Service)
	switch {
	case !ok:
		return registry.ErrNoService
	case !slices.ContainsFunc(svc.Backends, func(b vip.Backend) bool { return b.Key(key.Service) == key }):
		return registry.ErrNoBackend
	}
	return nil
}

// Problems returns the problems with stored overrides.
func (o *Overrides) Problems() []vip.Problem {
	out := slices.Clone(o.Store.Problems())
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.invalid {
		out = append(out, p)
	}
	slices.SortStableFunc(out, func(a, b vip.Problem) int {
		return cmp.Or(cmp.Compare(a.Place, b.Place), cmp.Compare(a.Message, b.Message))
	})
	return out
}

// receive writes changes of the store to the table.
func (o *Overrides) receive(items []registry.Item[Override]) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, item := range items {
		if o.Store.Version(item.Key) == item.Version { // else a later item follows
			o.put(item)
		}
	}
}

// refresh writes the store's current value at a key to the table and returns it.
func (o *Overrides) refresh(at string) registry.Item[Override] {
	o.mu.Lock()
	defer o.mu.Unlock()
	item := o.Store.Get(at)
	o.put(item)
	return item
}

// recheck reads again the overrides with a stored value that had become unreadable.
func (o *Overrides) recheck() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for at := range o.kept {
		o.put(o.Store.Get(at))
	}
}

// put writes a value of the store to the table. An override stays in effect while its stored value
// is unreadable. The caller holds mu.
func (o *Overrides) put(item registry.Item[Override]) {
	if item.Version == 0 && o.Store.Unreadable(item.Key) {
		o.kept[item.Key] = struct{}{}
		return
	}
	delete(o.kept, item.Key)
	delete(o.invalid, item.Key)
	key, err := parseKey(item.Key)
	state := vip.Ready
	if err == nil && item.Version != 0 {
		state, err = item.Value.state(item.Key)
	}
	if err != nil {
		if item.Version != 0 {
			o.invalid[item.Key] = vip.Problem{Code: vip.CodeStore, Place: item.Key, Message: "stored backend state: " + err.Error(), Hint: "remove the stored value"}
			o.Log.Error("backend override not read", "key", item.Key, "err", err)
		}
		return
	}
	now, _, set := o.Table.Get(key)
	switch {
	case state == vip.Ready && set:
		o.Table.Delete(key)
		o.publishEvent(key, vip.Ready, item.Value.Node)
	case state != vip.Ready && (!set || now.State != state):
		o.Table.Set(vip.BackendState{Backend: key, State: state})
		o.publishEvent(key, state, item.Value.Node)
	}
}

// publishEvent publishes an event about a changed override. Node is the node through which it was
// set, or "" if unknown. It publishes nothing for overrides that were set before this host started,
// or for overrides of a backend that is gone. The caller holds mu.
func (o *Overrides) publishEvent(key vip.BackendKey, to vip.State, node string) {
	if !o.running || o.lookUp(key) != nil {
		return
	}
	e := event.Event{Kind: "backend_state", Service: key.Service.String(), Object: key.ID(), Message: "set to " + to.String()}
	if node != "" && node != o.Node {
		e.Message += " through node " + node
	}
	o.Events.Add(e)
}
