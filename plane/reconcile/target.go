// Package reconcile keeps a Target (a dataplane) equal to a table.
//
// Its input is a table's change feed. Its outputs are batches of updates to the
// Target, and a table with the applied revision and the problem of each key. The
// loop records what it applied, so a change needs no read of the Target. It reads
// the Target at the start, to adopt what already matches, and then at a slow pace,
// to repair drift. It never flushes, and removes nothing before the desired table
// is ready.
package reconcile

import (
	"context"
	"iter"
	"net/netip"

	"github.com/ironvip/ironvip/vip"
)

// Update asks a Target to bring one key from Old to New.
type Update[K comparable, V any] struct {
	Key K
	Old *V // what the Target has, as last applied or as Actual reported it; nil is absent
	New *V // the desired value; nil is remove
	// Repair is set if Actual found the key damaged or different from the applied
	// value. The Target must then ignore its own records of the key and apply every
	// part of New, even if Old and New are equal.
	Repair bool
	// Err is the Target's result for this update. An error that a retry cannot fix
	// is a vip.Problem with CodeUnsupported.
	Err error
}

// Observed is one value that the Target has and we own.
type Observed[V any] struct {
	Value V
	// Damage describes missing or changed parts that Value cannot express, such as
	// "address 192.0.2.10 missing from ironvip0". The reconciler repairs a key with
	// any entry.
	Damage []string
	// Orphan is set if it belongs to no key, such as an address without a frontend.
	// It is removed when the desired table is complete, and never restored.
	Orphan bool
}

// Target is programmed from a table. One goroutine at a time calls its methods. They must honor the context.
type Target[K comparable, V any] interface {
	// Apply applies each update and sets its Err. It is idempotent, and continues
	// after an item that fails. A returned error means that the whole Target is
	// unavailable: the result of every item is unknown, and all are retried. The
	// Target may keep Old and New, which are immutable, but not the slice.
	Apply(ctx context.Context, batch []Update[K, V]) error
	// Actual yields what we own in the Target, each key once, in the Target's normal
	// form. It skips foreign objects. An error ends the iteration and invalidates
	// the read. An object of ours without a key is yielded as an Orphan, under a key
	// that is in no table, so that the reconciler removes it.
	Actual(ctx context.Context) iter.Seq2[Observed[V], error]
	// Same reports whether two values are equal in the Target's normal form. It
	// ignores fields that the Target does not program.
	Same(a, b *V) bool

	// Changed delivers after another program may have changed what is ours, or the host what failed keys wait for. Changes
	// that the Target makes don't deliver, or cost no read. The Reconciler is the only reader. With a nil channel, only a
	// resync finds such changes.
	Changed() <-chan struct{}
	// Check examines only what changed since the last call or the last Actual. It costs O(what changed), where a table of
	// rules is one thing.
	Check(ctx context.Context) (Drift[K, V], error)

	// Unclean reports whether Clean has something to do. It costs O(1).
	Unclean() bool
	// Clean ends what changes have made outdated since the last Clean, such as connections with removed backends, where that
	// costs a search of more than what changed. So the Reconciler calls it outside of changes. After an error, nothing is
	// forgotten.
	Clean(ctx context.Context) error
	// Suspect makes the next Clean search for what an earlier process may have left. It is called once, when everything
	// desired has been tried.
	Suspect()
}

// Quiet is for a Target that nothing changes behind its back, and whose changes leave nothing to clean. Embed it.
type Quiet[K comparable, V any] struct{ Tidy }

// Changed implements Target.
func (Quiet[K, V]) Changed() <-chan struct{} { return nil }

// Check implements Target.
func (Quiet[K, V]) Check(context.Context) (Drift[K, V], error) { return Drift[K, V]{}, nil }

// Tidy is for a Target whose changes leave nothing to clean. Embed it.
type Tidy struct{}

// Unclean implements Target.
func (Tidy) Unclean() bool { return false }

// Clean implements Target.
func (Tidy) Clean(context.Context) error { return nil }

// Suspect implements Target.
func (Tidy) Suspect() {}

// ReadAll returns the Actual of a Target that reads everything at once: what read returns, or its error.
func ReadAll[V any](ctx context.Context, read func(context.Context) ([]Observed[V], error)) iter.Seq2[Observed[V], error] {
	return func(yield func(Observed[V], error) bool) {
		all, err := read(ctx)
		if err != nil {
			yield(Observed[V]{}, err)
			return
		}
		for _, o := range all {
			if !yield(o, nil) {
				return
			}
		}
	}
}

// Plane is a dataplane for frontends. Apply refuses settings that it can't have with CodeUnsupported.
type Plane interface {
	Target[vip.FrontendKey, vip.Frontend]
	Connections
	ConnectionLister
	Statistics
	// Ignored returns a problem for each part of a service that has no effect, where refusing the service would be worse.
	// It is pure.
	Ignored(*vip.Service) []vip.Problem
}

// Connections counts connections. It may be called concurrently with a Plane's other methods, which never wait for it.
type Connections interface {
	// Connections counts the connections of each endpoint of a frontend. It reads only this frontend, so it costs O(its
	// endpoints). It may omit endpoints without connections.
	Connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error)
}

// ConnectionLister lists single connections. It may be called concurrently with a Plane's other methods, which never wait
// for it.
type ConnectionLister interface {
	// ListConnections calls yield for each connection to a frontend for which want returns true, in any order, until
	// yield returns false. Connections that begin or end meanwhile may be missing. It keeps at most the connections of
	// one endpoint in memory. want must not block, and is also called for foreign frontends. A connection to a port of
	// a range may have that single port in its key.
	ListConnections(ctx context.Context, want func(vip.FrontendKey) bool, yield func(Connection) bool) error
}

// AppliedFrontend is the result of the latest attempt at one frontend.
type AppliedFrontend = Applied[vip.Frontend]

// KeyOfApplied returns the key of the frontend that was tried.
func KeyOfApplied(a *AppliedFrontend) vip.FrontendKey { return a.Tried.Value.Key }

// AppliedPath is the result of the latest attempt at one path of probes.
type AppliedPath = Applied[vip.ProbePath]

// KeyOfAppliedPath returns the path that was tried.
func KeyOfAppliedPath(a *AppliedPath) vip.ProbePath { return a.Tried.Value }
