package rest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// The folders of the fleet's tree that hold registrations, by namespace/name,
// and what operators said of backends, by namespace/name/address:port.
const (
	ServicesFolder = "services"
	StatesFolder   = "states"
)

// sharedVersion is that of the values in both folders. Who finds another one
// leaves the value alone.
const sharedVersion = 1

// touchPatience is how long a write waits for a tree that is out of touch, as it
// is for a moment whenever Consul elects a leader.
const touchPatience = time.Second

// maxCommit is how many batches are given to the tree at once, whose patience is
// with each such call.
const maxCommit = 1000

// Shared is a Registry in a folder of the fleet's tree, which every host writes.
type Shared[V any] struct {
	tree   *fleet.Tree
	folder string
	values *fleet.Collection[V]
}

// SharedServices returns the registry of services that the fleet has. It is to
// be made before the tree runs.
func SharedServices(tree *fleet.Tree) *Shared[Record] {
	return newShared(tree, ServicesFolder, func(key string, r Record) error {
		namespace, name, _ := strings.Cut(key, "/")
		own := r.Spec.Namespace
		if own == "" {
			own = vip.DefaultNamespace
		}
		if namespace != own || name != r.Spec.Name {
			return fmt.Errorf("the value is of service \"%s/%s\"", own, r.Spec.Name)
		}
		return nil
	})
}

// SharedStates returns the registry of backends' states that the fleet has. It
// is to be made before the tree runs.
func SharedStates(tree *fleet.Tree) *Shared[Override] {
	return newShared(tree, StatesFolder, func(key string, o Override) error { return checkOverride(key, o.State) })
}

func newShared[V any](tree *fleet.Tree, folder string, check func(string, V) error) *Shared[V] {
	return &Shared[V]{tree: tree, folder: folder, values: fleet.NewCollection(tree, folder, sharedVersion, check)}
}

// Version implements Registry: it is Consul's index of the value.
func (s *Shared[V]) Version(key string) uint64 {
	_, version := s.Get(key)
	return version
}

// Get implements Registry.
func (s *Shared[V]) Get(key string) (V, uint64) {
	item, _ := s.values.Get(key)
	return item.Value, item.Index
}

// Look implements Registry.
func (s *Shared[V]) Look(ctx context.Context, key string) error {
	if err := s.inTouch(ctx); err != nil {
		return err
	}
	if err := s.tree.Look(ctx, s.folder, key); err != nil {
		return &StoreError{Err: err}
	}
	return nil
}

// Unreadable implements Registry.
func (s *Shared[V]) Unreadable(key string) bool {
	_, is := s.values.Unreadable(key)
	return is
}

// Commit implements Registry.
func (s *Shared[V]) Commit(ctx context.Context, batches []*Batch[V]) error {
	if err := s.inTouch(ctx); err != nil {
		return err
	}
	var of []*Batch[V]
	var writes []*fleet.Batch
	for _, b := range batches {
		w, err := s.encode(b)
		if b.Err = err; err == nil {
			of, writes = append(of, b), append(writes, w)
		}
	}
	alone := writes
	if len(writes) == 1 && of[0].With != nil {
		done, err := of[0].With(ctx, writes[0])
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
	return out, nil
}

// inTouch refuses a write while the tree is out of touch, before anything has
// happened.
func (s *Shared[V]) inTouch(ctx context.Context) error {
	late := time.NewTimer(touchPatience)
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
			return &StoreError{Err: errStale(why)}
		}
	}
}

// Watch implements Registry.
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

// Ready implements Registry.
func (s *Shared[V]) Ready() <-chan struct{} { return s.values.Rows().Ready() }

// Stale implements Registry.
func (s *Shared[V]) Stale() (string, <-chan struct{}) {
	changed := s.tree.StatusChanged()
	return s.tree.Stale(), changed
}

// Problems implements Registry.
func (s *Shared[V]) Problems() []vip.Problem { return s.values.Problems() }
