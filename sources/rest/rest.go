// Package rest is the source that the API writes to: services and backends that callers registered.
//
// Its input is registrations (PutServices, PutBackend, Heartbeat), and through the registry those
// of other hosts. Its output is rows for the Sink, published after they are durable. Every write is
// one optimistic transaction on the registry (see transact). A backend registered with a ttl must
// send heartbeats. A heartbeat costs O(log n) and normally writes nothing. The package never
// assigns addresses and does not depend on a dataplane.
//
// Files:
//
//	rest.go        the Source: options, start, run
//	services.go    put, propose and delete services
//	backends.go    register and remove single backends
//	edits.go       combines the waiting edits of one service into one write
//	write.go       the transaction of every write
//	withdraw.go    undoes a write if its name belongs to another source
//	record.go      the stored record and the entry in memory
//	follow.go      from the registry to the sink
//	heartbeats.go  deadlines of backends with a ttl
//	owners.go      which host of a fleet counts the heartbeats of a backend
//	errors.go      OwnedError; all other errors are in fleet/registry
package rest

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Type is the source's type and its default name.
const Type = "rest"

// Folder is the folder of the registrations in the fleet's tree. Keys are NAMESPACE/NAME.
const Folder = "services"

// Shared returns the registrations of a fleet. Call it before the tree runs.
func Shared(tree *fleet.Tree) *registry.Shared[Record] {
	return registry.NewShared(tree, Folder, func(key string, r Record) error {
		own := vip.ServiceKey{Namespace: r.Spec.Namespace, Name: r.Spec.Name}
		if own.Namespace == "" {
			own.Namespace = vip.DefaultNamespace
		}
		if registry.Key(own) != key {
			return fmt.Errorf("the value is of service %q", registry.Key(own))
		}
		return nil
	})
}

// Options are the dependencies of a Source. Store is required. Services is required to detect the
// names of other sources.
type Options struct {
	Name     string // "": Type
	Store    registry.Store[Record]
	Services table.Reader[vip.ServiceKey, vip.Service] // the rows in effect, of all sources
	// Fleet is the hosts that share the store; nil for one host. Node is the name of this host,
	// required with Fleet.
	Fleet Fleet
	Node  string
	// Leases writes a new service together with its leases. It is nil unless hosts share both.
	Leases LeaseWriter
	// Check finds problems that depend on the agent's configuration, such as a backend inside a VIP
	// pool. It may be nil.
	Check func(*spec.Service) []vip.Problem
	// MaxEndpoints bounds the ports x backends of all services together: a write that would exceed it is refused. 0: no bound.
	MaxEndpoints int
	Events       *event.Log
	Log          *slog.Logger // nil: slog.Default()
}

// LeaseWriter writes a new service together with its leases.
type LeaseWriter interface {
	// Commit commits the batch with the service's registration together with leases: all or
	// nothing. It reports whether it has done so. If not, the batch must be committed alone. The
	// error is the tree's.
	Commit(ctx context.Context, service vip.Service, b *fleet.Batch) (done bool, err error)
}

// Source implements sources.Source. Its methods are safe for concurrent use. Writers of one service
// are serialized.
type Source struct {
	Options
	locks registry.Locks // of services
	edits editQueue
	feed  registry.Feed[Record] // read by Restore, then by Run

	problemsChanged wake.Signal // makes Run publish the problems after problemsDelay
	deadlineChanged wake.Signal // the first deadline may be earlier
	ownersChanged   wake.Signal // a node has become a heartbeat owner

	mu         sync.Mutex
	sink       sources.Sink // nil while Run doesn't run
	entries    map[vip.ServiceKey]*entry
	endpoints  int                 // of all entries
	invalid    map[string]invalid  // records with problems, by their key
	kept       map[string]struct{} // keys of entries with a stored value that has become unreadable
	published  []vip.Problem       // the last problems published
	deadlines  delayqueue.Queue[*heartbeat]
	others     map[string]map[*heartbeat]struct{} // heartbeats that other nodes count, by owner
	takenOver  map[string]bool                    // absent owners that this host counts heartbeats for
	stale      string                             // why rows may be outdated; "" if they are not
	staleSince time.Time
}

// New returns a source for a store that may not have been read yet.
func New(o Options) (*Source, error) {
	if o.Name == "" {
		o.Name = Type
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Fleet != nil && o.Node == "" {
		return nil, fmt.Errorf("source %q: a host of a fleet needs a node name", o.Name)
	}
	return &Source{Options: o, feed: o.Store.Watch(), entries: map[vip.ServiceKey]*entry{}, invalid: map[string]invalid{}, kept: map[string]struct{}{},
		others: map[string]map[*heartbeat]struct{}{}, takenOver: map[string]bool{},
		problemsChanged: wake.New(), deadlineChanged: wake.New(), ownersChanged: wake.New()}, nil
}

// Restore reads a store that is ready: services, and registered backends with a full ttl. Records
// that are unreadable or invalid are not changed. They are logged and become problems of the
// source. Call it at most once, before Run. Without Restore, Run does the same when the store is
// ready.
func (s *Source) Restore() {
	registry.Drain(s.feed, s.receive)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.problems() {
		if p.Service == "" {
			s.Log.Error("registration not restored", "place", p.Place, "err", p.Message)
		}
	}
}

// Run implements sources.Source. When the store has been read it publishes all rows, and then every
// change. It also handles missed heartbeats.
func (s *Source) Run(ctx context.Context, out sources.Sink) error {
	if err := s.waitRead(ctx, out); err != nil {
		return err
	}
	s.recheckKept()
	s.mu.Lock()
	s.sink = out
	s.publishAll()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.sink = nil
		s.mu.Unlock()
	}()

	parts, ctx := parallel.NewGroup(ctx)
	parts.Run(ctx, s.runDeadlines)
	if s.Fleet != nil {
		parts.Run(ctx, s.watchOwners)
	}
	parts.Go(func() error { return s.follow(ctx) })
	return parts.Wait()
}

// Fetch publishes the newest value of a service of this source, because another host may have just
// written it. Errors are ErrNotRunning, *registry.StoreError and the context's.
func (s *Source) Fetch(ctx context.Context, key vip.ServiceKey) error {
	row, _, exists := s.inEffect(key)
	switch {
	case s.Fleet == nil || exists && row.Source != s.Name:
		return nil
	case !s.running():
		return registry.ErrNotRunning
	}
	unlock, err := s.lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.Store.Fetch(ctx, registry.Key(key)); err != nil {
		return err
	}
	s.newest(key)
	return nil
}

func (s *Source) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sink != nil
}

// inEffect returns the row in effect for key, of any source.
func (s *Source) inEffect(key vip.ServiceKey) (vip.Service, uint64, bool) {
	if s.Services == nil {
		return vip.Service{}, 0, false
	}
	return s.Services.Get(key)
}

// ownRev returns the revision of this source's row for key, or 0 if that row is not in effect.
func (s *Source) ownRev(key vip.ServiceKey) uint64 {
	row, rev, exists := s.inEffect(key)
	if !exists || row.Source != s.Name {
		return 0
	}
	return rev
}
