// Package sources defines the interface of a source of services and runs the sources of an agent.
//
// Each source reads services from an origin (files, the API, Consul, Kubernetes) and writes them to
// its Sink. The Supervisor is the only writer of each source's claims table. It restarts a source
// that fails and keeps the source's rows unchanged in the meantime. A shrink guard holds back
// updates that would remove too much at once. This package never selects between several claims of
// one name: the Resolver does.
package sources

import (
	"context"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Source reads services from an origin and writes them to a Sink.
type Source interface {
	// Run writes to out until ctx ends, and then returns the context's error. An earlier return is
	// a failure: the services stay unchanged and are marked stale, and Run is called again after a
	// backoff. Each Run begins with out.Replace, or with out.Stale if nothing can be read yet.
	Run(ctx context.Context, out Sink) error
}

// Guarded is a Source that can receive wrong data. Examples are an empty catalog after a restore,
// and a token that has lost its permissions. The Supervisor holds back an update that would remove
// more than half of the services, or more than half of a service's backends. It does so for the
// time that ShrinkGuard returns, or until an operator resyncs the source.
type Guarded interface {
	Source
	// ShrinkGuard returns how long to hold back an update; 0 disables the guard.
	ShrinkGuard() time.Duration
}

// Sink receives the services of one source. The caller must not change rows after it passed them.
// Writing an unchanged service again leaves its row unchanged. Concurrent calls are safe.
type Sink interface {
	// Replace sets the full list of the source's services and of the problems with its input. It
	// marks the source synced and not stale. Services that are not in the list are removed.
	Replace(services []vip.Service, problems []vip.Problem)
	// Put adds or replaces single services. It returns the revisions of their rows in [services],
	// in the same order. The revision is 0 for a service that is not in effect.
	Put(services ...vip.Service) (revs []uint64)
	// Delete removes services of this source. Unknown keys are ignored.
	Delete(keys ...vip.ServiceKey)
	// Problems replaces the problems with the source's input and leaves its services unchanged.
	Problems(problems []vip.Problem)
	// Stale marks the source as unreadable, with the reason. Its rows stay. The next Replace or
	// Fresh clears the mark.
	Stale(err error)
	// Fresh marks the source as readable again, without missed changes.
	Fresh()
}

// Resolver selects the source's claim that is in effect for each name. *pipeline.Resolve implements
// it.
type Resolver interface {
	// Claims adds a source and returns its claims table. The caller is the only writer. The table's
	// Initializer marks the source as synced.
	Claims(source string) *table.Table[vip.ServiceKey, vip.Service]
	// Changed resolves the names of the changed claims before it returns. It is also called after
	// the claims table has become Ready.
	Changed(source string, keys []vip.ServiceKey)
}

// Status is the state of a source: its row in the sources table.
type Status struct {
	Name     string
	Type     string // the type of its [[source]], or "rest"
	Synced   bool   // has published its full list once
	Stale    string // why its rows may be outdated; "" if they are not
	Services int    // its claims, in effect or not
	Problems []vip.Problem
	LastSync int64 // time of the source's last update, in Unix milliseconds; 0 before the first
	Restarts int
}

// KeyOfStatus returns the name of the source.
func KeyOfStatus(s *Status) string { return s.Name }

// SameStatus reports whether two statuses are equal.
func SameStatus(a, b Status) bool {
	return a.Name == b.Name && a.Type == b.Type && a.Synced == b.Synced && a.Stale == b.Stale && a.Services == b.Services &&
		a.LastSync == b.LastSync && a.Restarts == b.Restarts && slices.Equal(a.Problems, b.Problems)
}
