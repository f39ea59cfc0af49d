// Package rest is the source that the API writes into: services and backends
// that callers registered, durable and without a file to edit.
//
// In come registrations (PutServices, PutBackend, Heartbeat), and through a
// Registry those that other hosts took; out go rows to the Sink, each durable
// before anyone sees it, by one way wherever it was written. Every write is
// conditional on what its writer knew. A backend may register with a ttl and
// then lives by its heartbeats, which cost O(log n) and write nothing. The
// package also owns the states table: what operators said of the backends of
// any source. It gives out no address and knows no dataplane.
package rest

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Type is the source's type; it is its name, too, unless Options say otherwise.
const Type = "rest"

// Options are what a Source depends on. Store, Overrides and States are needed,
// and Services for anything that concerns other sources' names.
type Options struct {
	Name      string                                         // "" is Type
	Store     Registry[Record]                               // services and their registrations
	Overrides Registry[Override]                             // what operators said of backends
	States    *table.Table[vip.BackendKey, vip.BackendState] // this package is its only writer
	Services  table.Reader[vip.ServiceKey, vip.Service]      // every source's rows in force
	// Fleet is the hosts that share the registries, of which this one is Node; nil
	// for a host alone.
	Fleet Fleet
	Node  string // without a Fleet not used
	// Joint writes a new service and what it is to hold at once; nil where hosts don't
	// share both.
	Joint Joint
	// Check finds what only the agent's configuration can tell: a backend inside
	// a VIP pool. Nil finds nothing.
	Check  func(*spec.Service) []vip.Problem
	Events *event.Log
	Log    *slog.Logger // nil: slog.Default()
}

// Joint writes a new service together with what it is to hold.
type Joint interface {
	// Commit commits the batch, which registers the service, and with it leases; all
	// of it happens, or nothing. It reports whether the batch has its outcome: one that
	// hasn't is to be committed alone. The error is the tree's.
	Commit(ctx context.Context, service vip.Service, b *fleet.Batch) (done bool, err error)
}

// Source implements sources.Source. Its methods may be called by any number of
// goroutines; those that write serialise by service name.
type Source struct {
	Options
	names      nameLocks // of writers of services
	stateNames nameLocks // of writers of states
	edits      edits

	servicesFeed Feed[Record] // these are Run's, and Restore's before
	statesFeed   Feed[Override]
	statesReady  func()
	told         []vip.Problem // with the last Replace; by mu

	problemsChanged chan struct{}
	wake            chan struct{} // told when due's first entry got nearer
	keepersChanged  chan struct{} // told when a node came that keeps backends

	mu         sync.Mutex
	sink       sources.Sink // nil while Run doesn't run
	entries    map[vip.ServiceKey]*entry
	unread     map[string]unread   // records that make no service here, by the registry's key
	kept       map[string]struct{} // services in whose place something came that can't be read, likewise
	oddStates  map[string]vip.Problem
	keptStates map[string]struct{}
	due        delayqueue.Queue[*life]       // the lives that are counted here, by their due time
	others     map[string]map[*life]struct{} // lives that other nodes keep, by node
	gone       map[string]bool               // those nodes whose lives are counted here
	stale      string                        // why rows may be old; "" when they are not
	staleSince time.Time

	missing map[vip.BackendKey]time.Time // overrides without a backend, since when; the sweep's
}

// New returns a source for registries that need not have been read yet. The States
// table is not ready before it has what they know of operators' words.
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
	s := &Source{Options: o, entries: map[vip.ServiceKey]*entry{}, unread: map[string]unread{}, kept: map[string]struct{}{}, keptStates: map[string]struct{}{}, oddStates: map[string]vip.Problem{},
		others: map[string]map[*life]struct{}{}, gone: map[string]bool{}, missing: map[vip.BackendKey]time.Time{},
		problemsChanged: make(chan struct{}, 1), wake: make(chan struct{}, 1), keepersChanged: make(chan struct{}, 1),
		servicesFeed: o.Store.Watch(), statesFeed: o.Overrides.Watch(), statesReady: o.States.Initializer()}
	return s, nil
}

// Restore takes in what the registries have, which have been read: services,
// registrations with a full ttl of grace, and operators' states, which are in the
// States table when it returns. What can't be read or makes no valid service is left
// as it is, logged, and told as a problem of the source; the rest goes on. It is called
// once, before Run, which does the same in its own time for registries that are not ready yet.
func (s *Source) Restore() {
	drain(s.servicesFeed, s.takeServices)
	drain(s.statesFeed, s.takeStates)
	if isReady(s.Overrides.Ready()) {
		s.statesReady()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.problems() {
		if p.Service == "" {
			s.Log.Error("registration not restored", "place", p.Place, "err", p.Message)
		}
	}
}

// Run implements sources.Source: once the registries have been read it states
// the full list, and from then on what is written, here or by other hosts, goes
// to out. It also carries out what ttls ask for.
func (s *Source) Run(ctx context.Context, out sources.Sink) error {
	if err := s.await(ctx, out); err != nil {
		return err
	}
	s.recheck() // what was put right while nobody looked
	s.mu.Lock()
	s.sink = out
	s.state()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.sink = nil
		s.mu.Unlock()
	}()

	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	parts.Go(func() { s.runDeadlines(ctx) })
	if s.Fleet != nil {
		parts.Go(func() { s.watchKeepers(ctx) })
	}
	return s.follow(ctx)
}

// runDeadlines carries out what is due, and sweeps, until the context ends.
func (s *Source) runDeadlines(ctx context.Context) {
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := s.expire(ctx)
		from := time.Now()
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			s.wakeUp(time.Since(from) - wait)
		case <-s.wake:
			s.wakeUp(time.Since(from) - wait)
		case <-sweep.C:
			s.wakeUp(time.Since(from) - wait)
			s.sweepStates(ctx)
		}
	}
}

func (s *Source) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sink != nil
}

// inForce returns the row in force for key, of whatever source.
func (s *Source) inForce(key vip.ServiceKey) (vip.Service, uint64, bool) {
	if s.Services == nil {
		return vip.Service{}, 0, false
	}
	return s.Services.Get(key)
}

// ownRev returns the revision of this source's row for key, 0 when it is not in
// force.
func (s *Source) ownRev(key vip.ServiceKey) uint64 {
	now, rev, exists := s.inForce(key)
	if !exists || now.Source != s.Name {
		return 0
	}
	return rev
}
