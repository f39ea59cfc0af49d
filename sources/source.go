// Package sources defines what a source of services is and runs the sources of an agent.
//
// Each source learns services from somewhere (files, the API, Consul, Kubernetes) and writes them
// to its Sink. The Supervisor restarts a source that fails, keeps its rows as they are meanwhile,
// and writes each source's services into its claims table, of which it is the only writer. A
// shrink guard holds back updates that would remove too much at once. Which source's claim of a
// name is in force is not decided here, but by the Resolver.
package sources

import (
	"context"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Source learns services from somewhere and writes them to a Sink.
type Source interface {
	// Run feeds out until the context ends, and then returns its error. Any earlier return is a
	// failure: the services stay as they are, marked stale, and Run is called again after a
	// backoff. Each Run starts with out.Replace.
	Run(ctx context.Context, out Sink) error
}

// Guarded is a Source that may receive wrong data, such as a catalog that is empty after a
// restore, or after a token has lost its rights. An update that would remove more than half of its
// services, or more than half of a service's backends, is held back for some time, or until an
// operator resyncs the source.
type Guarded interface {
	Source
	// ShrinkGuard returns how long an update is held back; 0 disables the guard.
	ShrinkGuard() time.Duration
}

// Sink receives the services of one source. The caller must not change rows that it has passed.
// Unchanged services may be written again: the row stays as it is. The methods may be called by
// several goroutines.
type Sink interface {
	// Replace sets the source's full list of services and of problems with its input, and marks
	// the source synced and not stale. Services that are not in the list are removed. It returns
	// the revision of the newest row that changed, 0 if none did.
	Replace(services []vip.Service, problems []vip.Problem) (rev uint64)
	// Put adds or replaces single services. It returns the revisions of their rows in [services],
	// in order; 0 for a service that is not in force.
	Put(services ...vip.Service) (revs []uint64)
	// Delete removes services of this source. Unknown keys are ignored.
	Delete(keys ...vip.ServiceKey)
	// Problems sets the problems with the source's input, as Replace does, and leaves its services
	// unchanged.
	Problems(problems []vip.Problem)
	// Stale marks the source as unreadable, with the reason. Its rows stay. The next Replace or
	// Fresh ends it.
	Stale(err error)
	// Fresh marks the source as read again, with no change missed.
	Fresh()
}

// Resolver decides which source's claim of a name is in force. *pipeline.Resolve implements it.
type Resolver interface {
	// Claims adds a source and returns its claims table. The caller is its only writer, and its
	// Initializer says when the source has synced.
	Claims(source string) *table.Table[vip.ServiceKey, vip.Service]
	// Changed resolves the names of claims that changed, before it returns. It is also called
	// after the claims table has become Ready.
	Changed(source string, keys []vip.ServiceKey)
}

// Status is the state of a source: its row in the sources table.
type Status struct {
	Name     string
	Type     string // "static", "rest", "consul", "kubernetes"
	Synced   bool   // has sent its full list once
	Stale    string // why its rows may be outdated; "" if they are not
	Services int    // its claims, in force or not
	Problems []vip.Problem
	LastSync int64 // when the source last sent something, in Unix milliseconds; 0 never
	Restarts int
}

// KeyOfStatus returns the name of the status' source.
func KeyOfStatus(s *Status) string { return s.Name }

// SameStatus reports whether two statuses are equal.
func SameStatus(a, b Status) bool {
	return a.Name == b.Name && a.Type == b.Type && a.Synced == b.Synced && a.Stale == b.Stale && a.Services == b.Services &&
		a.LastSync == b.LastSync && a.Restarts == b.Restarts && slices.Equal(a.Problems, b.Problems)
}
