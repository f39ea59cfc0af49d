package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// sharedVersion is the version of the values' format. A host does not change a value with another
// version.
const sharedVersion = 1

// staleTimeout is how long a write waits while the tree can't reach the store. The tree is briefly out
// of reach at each election of a Consul leader.
const staleTimeout = time.Second

// maxCommit is the maximum number of batches in one call of the tree. Each call has its own
// timeout.
const maxCommit = 1000

// Shared is a Store in a folder of the fleet's tree. Every host writes to it.
type Shared[V any] struct {
	tree   *fleet.Tree
	folder string
	values *fleet.Collection[V]
}

// NewShared returns the values of a folder. Check returns an error for an invalid value at its key.
// Call NewShared before the tree runs.
func NewShared[V any](tree *fleet.Tree, folder string, check func(string, V) error) *Shared[V] {
	return &Shared[V]{tree: tree, folder: folder, values: fleet.NewCollection(tree, folder, sharedVersion, check)}
}

// Version implements Store. The version is the value's index in the store.
func (s *Shared[V]) Version(key string) uint64 { return s.Get(key).Version }

// Get implements Store.
func (s *Shared[V]) Get(key string) Item[V] {
	item, _ := s.values.Get(key)
	return Item[V]{Key: key, Value: item.Value, Version: item.Index}
}

// Fetch implements Store.
func (s *Shared[V]) Fetch(ctx context.Context, key string) error {
	if err := s.waitFresh(ctx); err != nil {
		return err
	}
	if err := s.tree.Look(ctx, s.folder, key); err != nil {
		return &StoreError{Err: err}
	}
	return nil
}

// Unreadable implements Store.
func (s *Shared[V]) Unreadable(key string) bool {
	_, is := s.values.Unreadable(key)
	return is
}

// Commit implements Store.
func (s *Shared[V]) Commit(ctx context.Context, batches []*Batch[V]) error {
	if err := s.waitFresh(ctx); err != nil {
		return err
	}
	var of []*Batch[V]
	var writes []*fleet.Batch
	for _, b := range batches {
		if i := slices.IndexFunc(b.Edits, func(e Edit[V]) bool { return e.Value == nil && e.Version == 0 }); i >= 0 {
			b.Err = &OutdatedError{[]string{b.Edits[i].Key}} // only an unreadable value can exist there
			continue
		}
		w, err := s.encode(b)
		if b.Err = err; err == nil {
			of, writes = append(of, b), append(writes, w)
		}
	}
	alone := writes
	if len(writes) == 1 && len(of[0].Edits) == 1 && of[0].Edits[0].With != nil {
		done, err := of[0].Edits[0].With(ctx, writes[0])
		if err != nil {
			return &StoreError{Unknown: true, Err: err}
		}
		if done {
			alone = nil
		}
	}
	for part := range slices.Chunk(alone, maxCommit) {
		if err := s.tree.Commit(ctx, part); err != nil {
			return &StoreError{Unknown: true, Err: err}
		}
	}
	for i, w := range writes {
		b := of[i]
		var conflict *fleet.ConflictError
		switch {
		case errors.As(w.Err, &conflict):
			outdated := &OutdatedError{}
			for _, c := range conflict.Writes {
				outdated.Keys = append(outdated.Keys, c.Key)
			}
			b.Err = outdated
		case w.Err != nil:
			b.Err = fmt.Errorf("%w: %w", ErrTooLarge, w.Err)
		default:
			for j := range b.Edits {
				b.Edits[j].Written = w.Indexes[j]
			}
		}
	}
	return nil
}

func (s *Shared[V]) encode(b *Batch[V]) (*fleet.Batch, error) {
	out := &fleet.Batch{Writes: make([]fleet.Write, 0, len(b.Edits))}
	for _, e := range b.Edits {
		w := s.values.Remove(e.Key, e.Version)
		if e.Value != nil {
			var err error
			if w, err = s.values.Put(e.Key, e.Version, *e.Value); err != nil {
				return nil, err
			}
		}
		out.Writes = append(out.Writes, w)
	}
	for _, e := range b.Edits {
		for _, c := range e.Requires {
			out.Writes = append(out.Writes, fleet.Write{Folder: s.folder, Key: c.Key, Index: c.Version, Check: true})
		}
	}
	return out, nil
}

// waitFresh returns an error if the tree can't reach the store within staleTimeout. A write then fails
// before it has changed anything.
func (s *Shared[V]) waitFresh(ctx context.Context) error {
	late := time.NewTimer(staleTimeout)
	defer late.Stop()
	for {
		why, changed := s.Stale()
		if why == "" {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return &StoreError{Err: ctx.Err()}
		case <-late.C:
			return &StoreError{Err: Unavailable(why)}
		}
	}
}

// Watch implements Store.
func (s *Shared[V]) Watch() Feed[V] { return sharedFeed[V]{s.values.Rows().Watch()} }

type sharedFeed[V any] struct {
	rows *table.Feed[string, fleet.Item[V]]
}

// TryNext implements Feed.
func (f sharedFeed[V]) TryNext() ([]Item[V], <-chan struct{}) {
	changes, more := f.rows.TryNext()
	items := make([]Item[V], len(changes))
	for i, c := range changes {
		items[i].Key = c.Value.Key
		if !c.Deleted {
			items[i].Value, items[i].Version = c.Value.Value, c.Value.Index
		}
	}
	return items, more
}

// Ready implements Store.
func (s *Shared[V]) Ready() <-chan struct{} { return s.values.Rows().Ready() }

// Stale implements Store.
func (s *Shared[V]) Stale() (string, <-chan struct{}) {
	changed := s.tree.StatusChanged()
	return s.tree.Stale(), changed
}

// Problems implements Store.
func (s *Shared[V]) Problems() []vip.Problem { return s.values.Problems() }
