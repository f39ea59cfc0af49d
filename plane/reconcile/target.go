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
}

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

// Waiter is the optional interface of a Target with failures that an event of the host can end, such as a new address.
// The goroutine of Apply calls it.
type Waiter[K comparable] interface {
	// Arrived reads the host once, and returns a function that reports whether a
	// failed key can succeed now.
	Arrived() func(K) bool
}

// Plane is a dataplane for frontends.
type Plane = Target[vip.FrontendKey, vip.Frontend]

// AppliedFrontend is the result of the latest attempt at one frontend.
type AppliedFrontend = Applied[vip.Frontend]

// KeyOfApplied returns the key of the frontend that was tried.
func KeyOfApplied(a *AppliedFrontend) vip.FrontendKey { return a.Tried.Value.Key }

// AppliedPath is the result of the latest attempt at one path of probes.
type AppliedPath = Applied[vip.ProbePath]

// KeyOfAppliedPath returns the path that was tried.
func KeyOfAppliedPath(a *AppliedPath) vip.ProbePath { return a.Tried.Value }

// Connections is the optional interface of a Plane that can count the connections of each endpoint of a frontend. It
// reads only this frontend, so it costs O(its endpoints). It may omit endpoints without connections. It may be called
// concurrently with the Plane's other methods.
type Connections interface {
	Connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error)
}
