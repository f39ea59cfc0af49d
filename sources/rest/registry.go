package rest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/vip"
)

// Registry is where values of one kind are kept: durably, each under a key and
// with a version, for this host alone (Local) or for a fleet (Shared). It is
// written under conditions and followed, so that what another host writes takes
// the way of what is written here. Its methods may be called by any number of
// goroutines; of one key, one Commit is under way at a time.
type Registry[V any] interface {
	// Version returns the version of the value at key as far as this host knows,
	// 0 when there is none that can be read. Versions of a key differ; nothing
	// follows from which is greater.
	Version(key string) uint64
	// Get returns the value, too.
	Get(key string) (value V, version uint64)
	// Look has Get know what is at key by now, also what another host has written a
	// moment ago. The error is a *StoreError.
	Look(ctx context.Context, key string) error
	// Unreadable reports whether the registry has a value at key that it can't read.
	// Shared never overwrites it: another host may be able to read it.
	Unreadable(key string) bool
	// Commit tries every batch, each alone, and sets its Err and its edits'
	// Written. When it returns, what has happened is durable, and Get has it, or
	// what came after it; it has what a refused edit ran into, too. The error is a
	// *StoreError, and no batch may be acted on.
	Commit(ctx context.Context, batches []*Batch[V]) error
	// Watch returns a feed that begins with every value there is.
	Watch() Feed[V]
	// Ready is closed once the registry has been read in full, so that what Get
	// doesn't find isn't there.
	Ready() <-chan struct{}
	// Stale returns why the registry may be old, and can't be written; "" when it
	// is in touch. The channel is closed when that or Problems change; nil says
	// that they never do.
	Stale() (why string, changed <-chan struct{})
	// Problems names the values that can't be read. They are passed over.
	Problems() []vip.Problem
}

// Feed tells one reader what has changed, each key with its newest value.
type Feed[V any] interface {
	// TryNext returns the next changes; none at the end of the feed. The channel
	// is closed at the next one; nil says that there will be none.
	TryNext() ([]Item[V], <-chan struct{})
}

// Item is a value of a registry. One whose Version is 0 has been removed.
type Item[V any] struct {
	Key     string
	Value   V
	Version uint64
}

// Edit is one conditional write.
type Edit[V any] struct {
	Key     string
	Version uint64 // that the writer knows; 0: that there is none
	Value   *V     // nil: remove it
	Written uint64 // the version that it has come to be; 0 for a removal
}

// Batch is edits that happen all or not at all. It names each key once.
type Batch[V any] struct {
	Edits []Edit[V]
	// With, when not nil, commits what the batch comes to in a fleet's tree in one
	// transaction with something else, and reports whether it has its outcome then. If
	// not, it is to be committed alone. A registry without a tree has no use for it.
	With func(ctx context.Context, b *fleet.Batch) (done bool, err error)
	// Err is an *OutdatedError when some value was not of the version the writer
	// knew, and ErrTooLarge when the registry can't write so much at once. Nothing
	// of the batch has happened then.
	Err error
}

// OutdatedError names the keys of a batch that had other values.
type OutdatedError struct{ Keys []string }

func (e *OutdatedError) Error() string {
	return fmt.Sprintf("%s changed meanwhile", strings.Join(e.Keys, ", "))
}

// ErrTooLarge says that a batch, or a value, is more than the registry takes.
var ErrTooLarge = errors.New("too large to be stored")
