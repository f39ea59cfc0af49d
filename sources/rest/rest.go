// Package rest is the source that the API writes into: services and backends
// that callers registered, durable and without a file to edit.
//
// In come registrations (PutServices, PutBackend, Heartbeat); out go rows to
// the Sink, each on disk before anyone sees it. A backend may register with a
// ttl and then lives by its heartbeats, which cost O(log n) and never touch the
// disk. The package also owns the states table: what operators said of the
// backends of any source. It gives out no address and knows no dataplane.
package rest

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/state"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/event"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/table"
)

// Type is the source's type; it is its name, too, unless Options say otherwise.
const Type = "rest"

// Store keeps values durably under string keys. A *state.Bucket is one.
type Store[V any] interface {
	// All returns every value. With an error that is state.ErrDamaged the map
	// holds those that could be read.
	All() (map[string]V, error)
	// Batch makes all the writes that fill asks for durable, or none.
	Batch(fill func(tx *state.Tx[V])) error
}

// Options are what a Source depends on. Store, Overrides and States are needed,
// and Services for anything that concerns other sources' names.
type Options struct {
	Name      string                                    // "" is Type
	Store     Store[Record]                             // services and their registrations
	Overrides Store[Override]                           // what operators said of backends
	States    *table.Table[vip.BackendKey, vip.State]   // this package is its only writer
	Services  table.Reader[vip.ServiceKey, vip.Service] // every source's rows in force
	// Check finds what only the agent's configuration can tell: a backend inside
	// a VIP pool. Nil finds nothing.
	Check  func(*spec.Service) []vip.Problem
	Events *event.Log
	Log    *slog.Logger // nil: slog.Default()
}

// Source implements sources.Source. Its methods may be called by any number of
// goroutines; those that write serialise by service name.
type Source struct {
	Options
	names  nameLocks
	damage []vip.Problem // what could not be restored; told with every Replace

	mu      sync.Mutex
	sink    sources.Sink // nil while Run doesn't run
	entries map[vip.ServiceKey]*entry
	due     deadlines
	wake    chan struct{} // told when due's first entry got nearer

	stateMu sync.Mutex                   // serialises writers of States
	missing map[vip.BackendKey]time.Time // overrides without a backend, since when; by stateMu
}

// New restores what the stores hold: services, registrations with a full ttl of
// grace, and operators' states, which are in the States table when it returns.
// What can't be read or no longer makes a valid service is left in the store,
// logged, and told as a problem of the source; the rest goes on.
func New(o Options) (*Source, error) {
	if o.Name == "" {
		o.Name = Type
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	s := &Source{Options: o, entries: map[vip.ServiceKey]*entry{}, wake: make(chan struct{}, 1),
		missing: map[vip.BackendKey]time.Time{}}
	if err := s.restore(); err != nil {
		return nil, fmt.Errorf("restore the registrations of source %q: %w", o.Name, err)
	}
	if err := s.restoreStates(); err != nil {
		return nil, fmt.Errorf("restore backend states: %w", err)
	}
	return s, nil
}

// Run implements sources.Source: it states the full list, and from then on
// every write goes to out. It also carries out what ttls ask for.
func (s *Source) Run(ctx context.Context, out sources.Sink) error {
	s.mu.Lock()
	rows := make([]vip.Service, 0, len(s.entries))
	for _, e := range s.entries {
		rows = append(rows, e.published())
	}
	out.Replace(rows, s.damage)
	s.sink = out
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.sink = nil
		s.mu.Unlock()
	}()

	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(s.expire(ctx))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-s.wake:
		case <-sweep.C:
			s.sweepStates()
		}
	}
}

// publish hands rows to the sink and returns their revisions; 0 for each when
// the source doesn't run, whose next Run states them. The caller holds mu, so
// that rows of one service reach the sink in order.
func (s *Source) publish(rows ...vip.Service) []uint64 {
	if s.sink == nil || len(rows) == 0 {
		return make([]uint64, len(rows))
	}
	return s.sink.Put(rows...)
}

// inForce returns the row in force for key, of whatever source.
func (s *Source) inForce(key vip.ServiceKey) (vip.Service, uint64, bool) {
	if s.Services == nil {
		return vip.Service{}, 0, false
	}
	return s.Services.Get(key)
}
