package registry

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/vip"
)

// Journal is a Store of a fleet that also accepts writes while the fleet's store is unavailable.
// Such a value is durable on this host's disk and hides the fleet's value on this host, until Merge
// writes it to the fleet's store or drops it. Only values are accepted then, no removals. They are
// accepted by what this host knows, so every value must say enough for Merge to compare it with
// another host's.
type Journal[V any] struct {
	Store[V] // the fleet's
	bucket   Bucket[V]
	problems []vip.Problem // with the journal's own values
	disk     sync.Mutex    // held while the bucket is written, so that no late deletion hits a new value; before mu

	mu      sync.Mutex
	pending map[string]Item[V]
	// garbage are keys of values that are no longer pending and still on the disk, because their
	// deletion failed. A restart before the next attempt would make them pending again.
	garbage  map[string]struct{}
	last     uint64
	restored []Item[V] // for the first Watch
}

// journaled is the bit that distinguishes the versions of pending values from the fleet's, which
// are the store's indexes.
const journaled = 1 << 63

// NewJournal reads the pending values of an earlier run from the bucket. Unreadable ones become
// Problems. An error concerns the whole bucket.
func NewJournal[V any](fleets Store[V], bucket Bucket[V]) (*Journal[V], error) {
	j := &Journal[V]{Store: fleets, bucket: bucket, pending: map[string]Item[V]{}, garbage: map[string]struct{}{}}
	all, err := bucket.All()
	if err != nil {
		if !errors.Is(err, store.ErrDamaged) {
			return nil, err
		}
		j.problems = []vip.Problem{{Code: vip.CodeStore, Message: err.Error()}}
	}
	for key, value := range all {
		j.restored = append(j.restored, j.put(key, value))
	}
	return j, nil
}

// put makes a value pending. The caller holds mu, or is the only user.
func (j *Journal[V]) put(key string, value V) Item[V] {
	j.last++
	item := Item[V]{Key: key, Value: value, Version: journaled | j.last, Local: true}
	j.pending[key] = item
	delete(j.garbage, key)
	return item
}

func (j *Journal[V]) get(key string) (Item[V], bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	item, is := j.pending[key]
	return item, is
}

// Version implements Store.
func (j *Journal[V]) Version(key string) uint64 {
	if item, is := j.get(key); is {
		return item.Version
	}
	return j.Store.Version(key)
}

// Get implements Store.
func (j *Journal[V]) Get(key string) Item[V] {
	if item, is := j.get(key); is {
		return item
	}
	return j.Store.Get(key)
}

// Pending returns the values that are stored on this host only, by key.
func (j *Journal[V]) Pending() []Item[V] {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := make([]Item[V], 0, len(j.pending))
	for _, key := range slices.Sorted(maps.Keys(j.pending)) {
		out = append(out, j.pending[key])
	}
	return out
}

// HasGarbage reports whether the disk still has values that are no longer pending, because it could
// not be written. Merge, also of no keys, tries again to delete them.
func (j *Journal[V]) HasGarbage() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.garbage) > 0
}

// Problems implements Store.
func (j *Journal[V]) Problems() []vip.Problem { return slices.Concat(j.Store.Problems(), j.problems) }

// Watch implements Store. The first feed begins with the pending values of an earlier run. Later
// ones are not in it, as their writer knows them. A feed may contain the fleet's value of a key with
// a pending one; its version is not the key's.
func (j *Journal[V]) Watch() Feed[V] {
	j.mu.Lock()
	defer j.mu.Unlock()
	feed := &journalFeed[V]{restored: j.restored, Feed: j.Store.Watch()}
	j.restored = nil
	return feed
}

type journalFeed[V any] struct {
	restored []Item[V]
	Feed[V]
}

// TryNext implements Feed.
func (f *journalFeed[V]) TryNext() ([]Item[V], <-chan struct{}) {
	if items := f.restored; len(items) > 0 {
		f.restored = nil
		return items, nil
	}
	return f.Feed.TryNext()
}

// Commit implements Store. If the fleet's store is unavailable, it writes all batches to the
// journal, even if the outcome is unknown: Merge then finds the value there.
func (j *Journal[V]) Commit(ctx context.Context, batches []*Batch[V]) error {
	var of, writes []*Batch[V]
	for _, b := range batches {
		if b.Err = j.check(b); b.Err == nil {
			of, writes = append(of, b), append(writes, j.forFleet(b))
		}
	}
	if len(of) == 0 {
		return nil
	}
	err := j.Store.Commit(ctx, writes)
	switch {
	case err == nil:
	case ctx.Err() == nil && errors.Is(err, fleet.ErrUnavailable) && !slices.ContainsFunc(of, removes):
		return j.write(of)
	default:
		return err
	}
	var merged []string
	for i, b := range of {
		if b.Err = writes[i].Err; b.Err != nil {
			continue
		}
		for k := range b.Edits {
			b.Edits[k].Written = writes[i].Edits[k].Written
			merged = append(merged, b.Edits[k].Key)
		}
	}
	_ = j.drop(merged...) // the write itself is durable; Merge tries again
	return nil
}

// removes reports whether a batch removes a value.
func removes[V any](b *Batch[V]) bool {
	return slices.ContainsFunc(b.Edits, func(e Edit[V]) bool { return e.Value == nil })
}

// check compares the versions of pending values.
func (j *Journal[V]) check(b *Batch[V]) error {
	var outdated []string
	compare := func(key string, version uint64) {
		if item, is := j.get(key); is && item.Version != version || !is && version&journaled != 0 {
			outdated = append(outdated, key)
		}
	}
	for _, e := range b.Edits {
		compare(e.Key, e.Version)
		for _, c := range e.Requires {
			compare(c.Key, c.Version)
		}
	}
	if len(outdated) > 0 {
		return &OutdatedError{outdated}
	}
	return nil
}

// forFleet returns the batch with the versions of the fleet's values.
func (j *Journal[V]) forFleet(b *Batch[V]) *Batch[V] {
	version := func(key string, version uint64) uint64 {
		if version&journaled != 0 {
			return j.Store.Version(key)
		}
		return version
	}
	out := &Batch[V]{Edits: slices.Clone(b.Edits)}
	for i := range out.Edits {
		e := &out.Edits[i]
		e.Version = version(e.Key, e.Version)
		e.Requires = slices.Clone(e.Requires)
		for k := range e.Requires {
			c := &e.Requires[k]
			c.Version = version(c.Key, c.Version)
		}
	}
	return out
}

// write writes batches to the journal, all at once.
func (j *Journal[V]) write(batches []*Batch[V]) error {
	for _, b := range batches {
		var outdated []string
		for _, e := range b.Edits {
			for _, c := range append([]Condition{{e.Key, e.Version}}, e.Requires...) {
				if j.Version(c.Key) != c.Version {
					outdated = append(outdated, c.Key)
				}
			}
		}
		if b.Err = nil; len(outdated) > 0 {
			b.Err = &OutdatedError{outdated}
		}
	}
	j.disk.Lock()
	defer j.disk.Unlock()
	err := j.bucket.Batch(func(tx *store.Tx[V]) {
		for _, b := range batches {
			for _, e := range b.Edits {
				if b.Err == nil {
					tx.Put(e.Key, *e.Value)
				}
			}
		}
	})
	if err != nil {
		return &StoreError{Err: err}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, b := range batches {
		for i := range b.Edits {
			if b.Err == nil {
				b.Edits[i].Written = j.put(b.Edits[i].Key, *b.Edits[i].Value).Version
			}
		}
	}
	return nil
}

// drop removes values that are no longer pending. The error is a *StoreError if some remain on the
// disk; see HasGarbage.
func (j *Journal[V]) drop(keys ...string) error {
	j.disk.Lock()
	defer j.disk.Unlock()
	j.mu.Lock()
	for _, key := range keys {
		if _, is := j.pending[key]; is {
			delete(j.pending, key)
			j.garbage[key] = struct{}{}
		}
	}
	remove := slices.Sorted(maps.Keys(j.garbage))
	j.mu.Unlock()
	if len(remove) == 0 {
		return nil
	}
	err := j.bucket.Batch(func(tx *store.Tx[V]) {
		for _, key := range remove {
			tx.Delete(key)
		}
	})
	if err != nil {
		return &StoreError{Err: err}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, key := range remove {
		delete(j.garbage, key)
	}
	return nil
}

// Merge ends the pending state of keys, for which the caller holds the locks. Wins decides whether
// a pending value replaces the fleet's value, which has version 0 if there is none. Merge writes by
// compare-and-set, and decides again after a conflict. It returns the keys that are no longer
// pending. The error is a *StoreError, or that of a key that remains pending. Merge also deletes the
// garbage on the disk, and returns an error if it still can't.
func (j *Journal[V]) Merge(ctx context.Context, keys []string, wins func(pending V, there Item[V]) bool) (done []string, err error) {
	var ops []*Op[V]
	for _, key := range keys {
		item, is := j.get(key)
		if !is {
			continue
		}
		ops = append(ops, &Op[V]{Key: key, Apply: func(confirmed bool) (*Edit[V], error) {
			there := j.Store.Get(key)
			switch {
			case there.Version == 0 && j.Store.Unreadable(key):
				return nil, &ConflictError{Service: ServiceOf(key), Unreadable: true}
			case wins(item.Value, there):
				return &Edit[V]{Key: key, Version: there.Version, Value: &item.Value}, nil
			case !confirmed:
				return nil, ErrConfirm
			}
			return nil, nil
		}})
	}
	err = Transact(ctx, j.Store, ops, false, func([]int) {})
	for _, op := range ops {
		switch {
		case op.Err != nil:
			err = cmp.Or(err, op.Err)
		case err == nil || op.Edit == nil || op.Edit.Written != 0:
			done = append(done, op.Key)
		}
	}
	return done, cmp.Or(err, j.drop(done...))
}
