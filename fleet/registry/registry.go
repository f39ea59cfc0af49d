// Package registry stores values under keys, each with a version, and writes them by
// compare-and-set.
//
// Its input is edits, each with the version that its writer has read. Its output is the values and
// their changes, from this host and from others. The Store interface has two implementations: Local
// stores values in the state file of one host, Shared in a folder of the fleet's tree. The registry
// never interprets the values. sources/rest stores registrations in one, and pipeline/overrides
// stores overrides in another.
//
// Files:
//
//	registry.go  the Store contract and its types
//	local.go     Local
//	shared.go    Shared
//	journal.go   Journal: writes to a Shared while it is unavailable
//	transact.go  optimistic transactions on a Store
//	locks.go     locks by key
//	errors.go    the reasons why a write is refused
package registry

import (
	"context"
	"strings"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/vip"
)

// Store keeps values of one type durably. Its methods are safe for concurrent use, but only one
// Commit may run at a time for each key.
type Store[V any] interface {
	// Version returns the version of the value at key that this host knows, or 0 if there is no
	// readable value. Different values of a key have different versions. Versions have no order.
	Version(key string) uint64
	// Get returns the value and its version.
	Get(key string) Item[V]
	// Fetch reads key from the store. Afterwards Get returns what another host had written before
	// the call. The error is a *StoreError.
	Fetch(ctx context.Context, key string) error
	// Unreadable reports whether this host can't read the value at key. Shared never overwrites an
	// unreadable value, because another host may be able to read it.
	Unreadable(key string) bool
	// Commit writes each batch on its own. It sets the batch's Err and its edits' Written. When it
	// returns, the result is durable. Get then returns the written value or a later one, and for a
	// refused edit the conflicting value. The error is a *StoreError. The batches have no result
	// then.
	Commit(ctx context.Context, batches []*Batch[V]) error
	// Watch returns a feed that begins with all values.
	Watch() Feed[V]
	// Ready returns a channel that is closed when the store has been read completely.
	Ready() <-chan struct{}
	// Stale returns why the values may be outdated and can't be written, or "" while the store is
	// reachable. The channel is closed when that or Problems change. It is nil if they never
	// change.
	Stale() (why string, changed <-chan struct{})
	// Problems returns the problems with values that can't be read.
	Problems() []vip.Problem
}

// Feed returns changes to one reader. It returns only the newest value of each key.
type Feed[V any] interface {
	// TryNext returns the next changes, or none at the end of the feed. The channel is closed at
	// the next change. It is nil if no change will follow.
	TryNext() ([]Item[V], <-chan struct{})
}

// Item is a value of a store. Version 0 means that there is no readable value.
type Item[V any] struct {
	Key     string
	Value   V
	Version uint64
	Local   bool // it is stored on this host only: see Journal
}

// Edit is one conditional write.
type Edit[V any] struct {
	Key     string
	Version uint64 // the version that the writer has read; 0: no value
	Value   *V     // nil: remove it
	Written uint64 // the new version, set by Commit; 0 for a removal
	// Requires are other values on which the edit depends. The batch is refused unless they still
	// have these versions.
	Requires []Condition
	// With commits the edit together with other changes in one transaction of the fleet's tree. It
	// reports whether it has done so. If not, the edit is committed alone. With may be nil. It
	// applies only to a Commit of one edit to a Shared store.
	With func(ctx context.Context, b *fleet.Batch) (done bool, err error)
}

// Condition is the version of a value that a writer has read; 0: no value.
type Condition struct {
	Key     string
	Version uint64
}

// Batch is a list of edits that are written together or not at all. It has at most one edit or
// condition for a key.
type Batch[V any] struct {
	Edits []Edit[V]
	// Err is an *OutdatedError if a value had another version, and ErrTooLarge if the batch exceeds
	// the store's limits. Nothing was written then.
	Err error
}

// Drain passes all pending changes of a feed to receive. It returns the channel that is closed at
// the next change.
func Drain[V any](feed Feed[V], receive func([]Item[V])) <-chan struct{} {
	for {
		items, more := feed.TryNext()
		if len(items) == 0 {
			return more
		}
		receive(items)
	}
}

// Key returns the key of a service's value.
func Key(k vip.ServiceKey) string { return k.Namespace + "/" + k.Name }

// ServiceOf returns the service of a key that begins with NAMESPACE/NAME.
func ServiceOf(key string) vip.ServiceKey {
	namespace, rest, _ := strings.Cut(key, "/")
	name, _, _ := strings.Cut(rest, "/")
	return vip.ServiceKey{Namespace: namespace, Name: name}
}
