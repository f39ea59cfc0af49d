// Package reconcile keeps a Target (a dataplane) equal to a table.
//
// In comes a table's change feed; out go batches of updates to the Target and
// a table that says, for each key, which revision is applied and what went
// wrong. The loop remembers what it applied, so a change needs no read of the
// Target. It reads the Target once at the start, to adopt what already
// matches, and then at a slow pace, to repair drift. It never flushes, and
// removes nothing before the desired table is ready.
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
	New *V // what it is to have; nil is remove
	// Repair says that Actual found the key damaged or unlike what was applied:
	// the Target must not trust anything it remembers of it and make every part
	// of New true, also where Old and New look alike.
	Repair bool
	// Err is the Target's answer for this update alone. A problem that no retry
	// can mend is a vip.Problem with CodeUnsupported.
	Err error
}

// Observed is one thing a Target has that is ours.
type Observed[V any] struct {
	Value V
	// Damage names parts that are missing or altered and that Value can't
	// express: "address 192.0.2.10 missing from ironvip0". Any entry makes the
	// reconciler repair the key.
	Damage []string
	// Orphan says that it belongs to no key, as an address without a frontend: it
	// is only ever removed, once the desired table is complete, and never missed.
	Orphan bool
}

// Target is what a table is programmed into. Its methods are called by one
// goroutine at a time. They must honour the context.
type Target[K comparable, V any] interface {
	// Apply makes each update true and sets its Err. It is idempotent, and goes
	// on past an item that fails. The error it returns means that the Target as
	// a whole is out of reach: no item's outcome is known, all are tried again.
	// The Target may keep Old and New, which nobody changes, but not the slice.
	Apply(ctx context.Context, batch []Update[K, V]) error
	// Actual yields what the Target has that is ours, each key once, in the
	// Target's normal form. What it has that isn't ours it passes over. An error
	// ends the iteration and the reading counts for nothing. Something of ours
	// that belongs to no key is yielded as an Orphan, under a key that no table
	// holds, so that the reconciler removes it.
	Actual(ctx context.Context) iter.Seq2[Observed[V], error]
	// Same reports whether two values are alike to this Target, in its normal
	// form: a field that it does not program doesn't count.
	Same(a, b *V) bool
}

// Waiter is the optional interface of a Target some of whose failures end with
// what the host does, such as an address that comes. It is called by the
// goroutine of Apply.
type Waiter[K comparable] interface {
	// Arrived looks once at what failed keys lack, and returns which of them lack
	// nothing more. What it returns is of that moment.
	Arrived() func(K) bool
}

// Plane is a dataplane for frontends.
type Plane = Target[vip.FrontendKey, vip.Frontend]

// AppliedFrontend says how the newest attempt at one frontend went.
type AppliedFrontend = Applied[vip.Frontend]

// KeyOfApplied returns the key of the frontend that was tried.
func KeyOfApplied(a *AppliedFrontend) vip.FrontendKey { return a.Tried.Value.Key }

// Connections is the optional interface of a Plane that can tell how many
// connections each endpoint of a frontend still has. It reads the one frontend
// only, so it costs O(its endpoints). Endpoints without connections may be
// left out. It may be called at the same time as the Plane's other methods.
type Connections interface {
	Connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error)
}
