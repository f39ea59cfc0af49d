// Package overrides keeps what operators set for services of any source: the states drain and maint of
// single backends, and the weights of groups.
//
// Its inputs are Set, the overrides that other hosts set through the registry, and the services.
// Its output is the overrides table. This package is the table's only writer. An override is
// durable before it is in the table, in the registry or, while a fleet's store is unavailable, in
// this host's journal. It stays in effect until an operator sets ready, it expires,
// its service is removed, or its backend or group has been gone from the service for an hour. The package
// never changes a service's row.
//
// Files:
//
//	overrides.go  the Overrides type: restore, follow the registry and the services
//	set.go        set one override
//	last.go       which ports a change leaves without a usable backend
//	rows.go       from stored values to the table, and expiry
//	stored.go     the stored value and its key
//	merge.go      overrides that were set while the fleet's store was unavailable
//	sweep.go      removes overrides that have ended, or with backends that are gone
package overrides

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/vip"
)

// Options are the dependencies of Overrides. Store, Table, Services and Health are required.
type Options struct {
	Store    registry.Store[Override]
	Table    *table.Table[vip.OverrideKey, vip.BackendState] // this package is its only writer
	Services table.Reader[vip.ServiceKey, vip.Service]       // of every source
	Health   table.Reader[vip.BackendKey, vip.BackendHealth] // results of health checks
	Passive  table.Reader[vip.PassiveKey, vip.PassiveHealth] // what connections of clients showed; may be nil
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
	ready func()         // the table's initializer
	locks registry.Locks // of services
	// journal is the Store if it accepts writes while the fleet is unavailable, else nil.
	journal *registry.Journal[Override]
	wake    wake.Signal // there is something due to sweep
	sooner  wake.Signal // an override may expire before all others

	mu      sync.Mutex
	running bool
	entries map[string]*entry             // the readable values of the store, by their key
	of      map[vip.ServiceKey][]string   // the keys of entries, by service
	expiry  delayqueue.Queue[string]      // the keys of entries that expire
	invalid map[string]vip.Problem        // problems with invalid stored values, by their key
	kept    map[string]struct{}           // keys of overrides in effect with a stored value that has become unreadable
	due     map[string]struct{}           // keys to sweep now
	removed map[vip.ServiceKey]struct{}   // removed services with overrides
	missing map[vip.OverrideKey]time.Time // when an override's backend or group was first missing; for the sweep
}

// New returns overrides for a store that may not have been read yet. The table becomes ready when
// Restore or Run has filled it.
func New(o Options) *Overrides {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	journal, _ := o.Store.(*registry.Journal[Override])
	return &Overrides{Options: o, journal: journal, feed: o.Store.Watch(), ready: o.Table.Initializer(), wake: wake.New(), sooner: wake.New(),
		entries: map[string]*entry{}, of: map[vip.ServiceKey][]string{}, invalid: map[string]vip.Problem{}, kept: map[string]struct{}{},
		due: map[string]struct{}{}, removed: map[vip.ServiceKey]struct{}{}, missing: map[vip.OverrideKey]time.Time{}}
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

// Run follows the store and the services, and sweeps, until the context ends.
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
	o.wake.Set()
	defer o.setRunning(false)
	running, ctx := parallel.NewGroup(ctx)
	running.Run(ctx, o.sweepAll)
	running.Go(func() error { return o.follow(ctx) })
	return running.Wait()
}

// follow writes changes of the store, and expirations, to the table until the context ends.
func (o *Overrides) follow(ctx context.Context) error {
	services := o.Services.Watch()
	defer services.Close()
	expires := time.NewTimer(0)
	defer expires.Stop()
	for stale := ""; ; {
		why, changed := o.Store.Stale()
		if stale != "" && why == "" {
			o.wake.Set() // there may be something to merge
		}
		stale = why
		more := registry.Drain(o.feed, o.receive)
		o.recheck()
		changes, served := services.TryNext()
		for len(changes) > 0 {
			o.noteRemoved(changes)
			changes, served = services.TryNext()
		}
		if wait, some := o.expire(); some {
			expires.Reset(wait)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		case <-changed:
		case <-served:
		case <-expires.C:
		case <-o.sooner:
		}
	}
}

func (o *Overrides) setRunning(to bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.running = to
}

// Problems returns the problems of stored overrides.
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
