// Package registry stores values under keys, each with a version, and writes
// them by compare-and-set.
//
// In come edits, each with the version that its writer has read; out come the
// values and their changes, from this host and from others. A Store is the
// contract: Local keeps values in the state file of one host, Shared in a folder
// of the fleet's tree. The registry doesn't interpret the values: sources/rest
// keeps registrations in one, internal/overrides the operators' overrides.
//
// Files:
//
//	registry.go  the Store contract and its types
//	local.go     Local
//	shared.go    Shared
//	transact.go  optimistic transactions on a Store
//	locks.go     locks by key
//	errors.go    the reasons to refuse a write
package registry

import (
	"context"
	"strings"

	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/vip"
)

// Store keeps values of one type durably. Any number of goroutines may call its
// methods, but only one Commit may run at a time for each key.
type Store[V any] interface {
	// Version returns the version of the value at key that this host knows, 0 if
	// there is no readable value. Two values of a key have different versions, in
	// no order.
	Version(key string) uint64
	// Get returns the value and its version.
	Get(key string) (value V, version uint64)
	// Fetch reads key from the store, so that Get returns what another host has
	// written before the call. The error is a *StoreError.
	Fetch(ctx context.Context, key string) error
	// Unreadable reports whether this host can't read the value at key. Shared never
	// overwrites it: another host may be able to read it.
	Unreadable(key string) bool
	// Commit writes each batch on its own, and sets its Err and the Written of its
	// edits. When it returns, the outcome is durable, and Get returns what was
	// written or a later value; for a refused edit, the value that it conflicted
	// with. The error is a *StoreError; the batches have no result then.
	Commit(ctx context.Context, batches []*Batch[V]) error
	// Watch returns a feed that begins with every value.
	Watch() Feed[V]
	// Ready is closed when the store has been read completely.
	Ready() <-chan struct{}
	// Stale returns why the values may be old and can't be written, "" while the
	// store can be reached. The channel is closed when that or Problems change; it
	// is nil if they never do.
	Stale() (why string, changed <-chan struct{})
	// Problems lists the values that can't be read.
	Problems() []vip.Problem
}

// Feed returns changes to one reader, each key with its newest value.
type Feed[V any] interface {
	// TryNext returns the next changes, none at the end of the feed. The channel is
	// closed at the next change; it is nil if there won't be one.
	TryNext() ([]Item[V], <-chan struct{})
}

// Item is a value of a store. Version 0 means that it was removed.
type Item[V any] struct {
	Key     string
	Value   V
	Version uint64
}

// Edit is one conditional write.
type Edit[V any] struct {
	Key     string
	Version uint64 // that the writer has read; 0: no value
	Value   *V     // nil: remove it
	Written uint64 // the new version, set by Commit; 0 for a removal
	// With, when not nil, commits the edit in one transaction of the fleet's tree with
	// something else, and reports whether it has done so. If not, the edit is
	// committed alone. It is used for a Commit of one edit to a Shared store.
	With func(ctx context.Context, b *fleet.Batch) (done bool, err error)
}

// Batch is edits that are written together or not at all. It has at most one
// edit for a key.
type Batch[V any] struct {
	Edits []Edit[V]
	// Err is an *OutdatedError if a value had another version, and ErrTooLarge if the
	// store can't write so much at once. Nothing was written then.
	Err error
}

// Drain passes everything that a feed has to receive, and returns the channel that
// is closed at the next change.
func Drain[V any](feed Feed[V], receive func([]Item[V])) <-chan struct{} {
	for {
		items, more := feed.TryNext()
		if len(items) == 0 {
			return more
		}
		receive(items)
	}
}

// Key returns the key of what is stored about a service.
func Key(k vip.ServiceKey) string { return k.Namespace + "/" + k.Name }

// ServiceOf returns the service that a key belongs to: NAMESPACE/NAME, or that
// and more.
func ServiceOf(key string) vip.ServiceKey {
	namespace, rest, _ := strings.Cut(key, "/")
	name, _, _ := strings.Cut(rest, "/")
	return vip.ServiceKey{Namespace: namespace, Name: name}
}
