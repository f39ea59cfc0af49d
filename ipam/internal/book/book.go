// Package book is what lease stores of one process share: the leases in
// memory, the conditions of a commit, and the changes in order.
//
// In come commits; what they change goes to the store's own persist function,
// and only when that says it is durable does the book change and wake those
// who wait for changes. Finding what changed costs O(changes). The book
// remembers some thousand removals; for older ones it says ipam.ErrCompacted.
package book

import (
	"container/list"
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/ironvip/ironvip/ipam"
)

// graves is how many removals are remembered.
const graves = 4096

// Persist makes changes durable, all or none; nil is a removal.
type Persist func(changes map[ipam.Resource]*ipam.Lease) error

// Book implements ipam.Store. Make one with New.
type Book struct {
	persist Persist

	mu      sync.Mutex
	entries map[ipam.Resource]*list.Element
	order   *list.List // of *entry, oldest change first
	removed []removal  // in the order of their versions
	horizon ipam.Version
	version ipam.Version
	changed chan struct{}
}

type entry struct {
	resource ipam.Resource
	lease    *ipam.Lease // nil: removed
	version  ipam.Version
}

type removal struct {
	resource ipam.Resource
	version  ipam.Version
}

// New returns a book that holds the leases; the map stays the caller's.
func New(leases map[ipam.Resource]ipam.Lease, persist Persist) *Book {
	b := &Book{
		persist: persist,
		entries: make(map[ipam.Resource]*list.Element, len(leases)),
		order:   list.New(),
		changed: make(chan struct{}),
	}
	for r, l := range leases {
		b.set(r, &l)
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
	changes := make(map[ipam.Resource]*ipam.Lease, len(ops))
	for i := range ops {
		ops[i].Err = b.try(&ops[i], changes)
	}
	if len(changes) == 0 {
		return nil
	}
	if err := b.persist(maps.Clone(changes)); err != nil {
		for i := range ops {
			ops[i].Err = nil
		}
		return fmt.Errorf("%w: %w", ipam.ErrUnavailable, err)
	}
	for r, l := range changes {
		b.set(r, l)
	}
	close(b.changed)
	b.changed = make(chan struct{})
	return nil
}

// try notes what op changes if its condition holds, after the ops before it.
func (b *Book) try(op *ipam.Op, changes map[ipam.Resource]*ipam.Lease) error {
	var r ipam.Resource
	switch {
	case op.New != nil:
		r = op.New.Resource
	case op.Old != nil:
		r = op.Old.Resource
	}
	if r == (ipam.Resource{}) || op.Old != nil && op.Old.Resource != r {
		return fmt.Errorf("commit: an op that names no resource, or two")
	}
	now, pending := changes[r]
	if !pending {
		now = b.get(r)
	}
	if (now == nil) != (op.Old == nil) || now != nil && !now.Equal(*op.Old) {
		var actual *ipam.Lease
		if now != nil {
			actual = new(*now)
		}
		return &ipam.ConflictError{Resource: r, Actual: actual}
	}
	var lease *ipam.Lease
	if op.New != nil {
		lease = new(*op.New)
	}
	changes[r] = lease
	return nil
}

func (b *Book) get(r ipam.Resource) *ipam.Lease {
	if e := b.entries[r]; e != nil {
		return e.Value.(*entry).lease
	}
	return nil
}

// set books one durable change. The caller holds mu.
func (b *Book) set(r ipam.Resource, l *ipam.Lease) {
	b.version++
	if e := b.entries[r]; e != nil {
		b.order.Remove(e)
	}
	b.entries[r] = b.order.PushBack(&entry{r, l, b.version})
	if l != nil {
		return
	}
	b.removed = append(b.removed, removal{r, b.version})
	for len(b.removed) > graves {
		oldest := b.removed[0]
		b.removed = b.removed[1:]
		if e := b.entries[oldest.resource]; e.Value.(*entry).version == oldest.version {
			b.order.Remove(e)
			delete(b.entries, oldest.resource)
			b.horizon = oldest.version
		}
	}
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

// after returns what changed after since, oldest first, and a channel that is
// closed at the next change. From 0 there are no removals to tell of. The
// version is at least 1, so that asking again doesn't start anew.
func (b *Book) after(since ipam.Version) ([]ipam.LeaseChange, ipam.Version, <-chan struct{}, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if since != 0 && since < b.horizon {
		return nil, since, nil, ipam.ErrCompacted
	}
	first := b.order.Back()
	for e := first; e != nil && e.Value.(*entry).version > since; e = e.Prev() {
		first = e
	}
	var changes []ipam.LeaseChange
	for e := first; e != nil; e = e.Next() {
		n := e.Value.(*entry)
		if n.version <= since || since == 0 && n.lease == nil {
			continue
		}
		c := ipam.LeaseChange{Resource: n.resource}
		if n.lease != nil {
			c.Lease = new(*n.lease)
		}
		changes = append(changes, c)
	}
	if b.version == 0 {
		b.version = 1
	}
	return changes, b.version, b.changed, nil
}
