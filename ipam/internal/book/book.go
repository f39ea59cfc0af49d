// Package book is what lease stores share: the leases in memory, the
// conditions of a commit, and the changes in order.
//
// In come commits; what they change goes to the store's own persist function,
// and only when that says it is durable does the book change and wake those
// who wait for changes. Finding what changed costs O(changes). The book
// remembers some thousand removals; for older ones it says ipam.ErrCompacted.
// A store that is not this process's alone works with Leases and Trial, of which
// a Book is made.
package book

import (
	"context"
	"fmt"
	"sync"

	"github.com/ironvip/ironvip/ipam"
)

// Persist makes changes durable, all or none; nil is a removal. It must not
// change them, or keep them.
type Persist func(changes map[ipam.Resource]*ipam.Lease) error

// Book implements ipam.Store for a store with one writer. Make one with New.
type Book struct {
	persist Persist

	mu      sync.Mutex
	leases  *Leases
	changed chan struct{}
}

// New returns a book that holds the leases; the map stays the caller's.
func New(leases map[ipam.Resource]ipam.Lease, persist Persist) *Book {
	b := &Book{persist: persist, leases: NewLeases(), changed: make(chan struct{})}
	for r, l := range leases {
		b.leases.Set(r, &l)
	}
	return b
}

// Commit implements ipam.Store.
func (b *Book) Commit(ctx context.Context, ops []ipam.Op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	trial := NewTrial(b.leases, len(ops))
	for i := range ops {
		ops[i].Err = trial.Try(&ops[i])
	}
	if len(trial.Changes) == 0 {
		return nil
	}
	if err := b.persist(trial.Changes); err != nil {
		for i := range ops {
			ops[i].Err = nil
		}
		return fmt.Errorf("%w: %w", ipam.ErrUnavailable, err)
	}
	for r, l := range trial.Changes {
		b.leases.Set(r, l)
	}
	close(b.changed)
	b.changed = make(chan struct{})
	return nil
}

// Changes implements ipam.Store.
func (b *Book) Changes(ctx context.Context, since ipam.Version) ([]ipam.LeaseChange, ipam.Version, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, since, err
		}
		changes, version, wait, err := b.after(since)
		if err != nil || len(changes) > 0 || since == 0 {
			return changes, version, err
		}
		select {
		case <-ctx.Done():
			return nil, since, ctx.Err()
		case <-wait:
		}
	}
}

func (b *Book) after(since ipam.Version) ([]ipam.LeaseChange, ipam.Version, <-chan struct{}, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changes, version, err := b.leases.After(since)
	return changes, version, b.changed, err
}
