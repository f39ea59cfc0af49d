package registry

import (
	"context"
	"errors"
	"sync"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/vip"
)

// Bucket stores values durably by string key. *store.Bucket implements it.
type Bucket[V any] interface {
	// All returns every value. If the error is store.ErrDamaged, the map holds the readable values.
	All() (map[string]V, error)
	// Get returns the value at key and whether it exists.
	Get(key string) (V, bool, error)
	// Batch makes all writes by fill durable, or none.
	Batch(fill func(tx *store.Tx[V])) error
}

// Local is a Store in this host's state file. It keeps only versions in memory. The values are on
// the disk.
type Local[V any] struct {
	bucket   Bucket[V]
	problems []vip.Problem // while any value is damaged

	mu       sync.Mutex
	damaged  map[string]struct{} // keys of values that can't be read, until they are replaced or removed
	repaired wake.Broadcast      // when a damaged value was replaced or removed
	versions map[string]uint64
	writing  map[string]int // keys that are being written: the disk may be newer than versions
	written  *sync.Cond     // with mu: a key is no longer being written
	last     uint64
	restored []Item[V] // for the first Watch
}

// NewLocal reads the bucket. Unreadable values become Problems. An error concerns the whole bucket.
func NewLocal[V any](bucket Bucket[V]) (*Local[V], error) {
	l := &Local[V]{bucket: bucket, versions: map[string]uint64{}, writing: map[string]int{}, damaged: map[string]struct{}{}}
	l.written = sync.NewCond(&l.mu)
	all, err := bucket.All()
	if err != nil {
		var damage *store.Error
		if !errors.Is(err, store.ErrDamaged) || !errors.As(err, &damage) {
			return nil, err
		}
		l.problems = []vip.Problem{{Code: vip.CodeStore, Message: err.Error()}}
		for _, key := range damage.Keys {
			l.damaged[key] = struct{}{}
		}
	}
	l.restored = make([]Item[V], 0, len(all))
	for key, value := range all {
		l.last++
		l.versions[key] = l.last
		l.restored = append(l.restored, Item[V]{Key: key, Value: value, Version: l.last})
	}
	return l, nil
}

// Version implements Store.
func (l *Local[V]) Version(key string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.versions[key]
}

// Get implements Store. It reads the disk, and waits for a write of the key: the value and the
// version must belong together.
func (l *Local[V]) Get(key string) Item[V] {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for l.writing[key] > 0 {
			l.written.Wait()
		}
		item := Item[V]{Key: key, Version: l.versions[key]}
		l.mu.Unlock()
		value, ok, err := l.bucket.Get(key)
		l.mu.Lock()
		if l.writing[key] > 0 || l.versions[key] != item.Version {
			continue // it was written meanwhile
		}
		if err != nil || !ok {
			item.Version = 0
		}
		item.Value = value
		return item
	}
}

// Fetch implements Store. It does nothing, because no other host writes.
func (l *Local[V]) Fetch(context.Context, string) error { return nil }

// Unreadable implements Store. Commit may replace or remove a damaged value, because no other
// version of ironvip could read it.
func (l *Local[V]) Unreadable(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, is := l.damaged[key]
	return is
}

// Commit implements Store. It writes all batches to the disk at once. If the write fails, no batch
// is written.
func (l *Local[V]) Commit(_ context.Context, batches []*Batch[V]) error {
	var written []*Edit[V]
	l.mu.Lock()
	for _, b := range batches {
		b.Err = nil
		var outdated []string
		for i := range b.Edits {
			e := &b.Edits[i]
			if l.versions[e.Key] != e.Version {
				outdated = append(outdated, e.Key)
			}
			for _, c := range e.Requires {
				if l.versions[c.Key] != c.Version {
					outdated = append(outdated, c.Key)
				}
			}
		}
		if len(outdated) > 0 {
			b.Err = &OutdatedError{outdated}
			continue
		}
		for i := range b.Edits {
			written = append(written, &b.Edits[i])
			l.writing[b.Edits[i].Key]++
		}
	}
	l.mu.Unlock()
	if len(written) == 0 {
		return nil
	}
	err := l.bucket.Batch(func(tx *store.Tx[V]) {
		for _, e := range written {
			if e.Value == nil {
				tx.Delete(e.Key)
			} else {
				tx.Put(e.Key, *e.Value)
			}
		}
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range written {
		if l.writing[e.Key]--; l.writing[e.Key] == 0 {
			delete(l.writing, e.Key)
		}
	}
	l.written.Broadcast()
	if err != nil {
		return &StoreError{Err: err}
	}
	for _, e := range written {
		if _, was := l.damaged[e.Key]; was {
			delete(l.damaged, e.Key)
			l.repaired.Send()
		}
		if e.Written = 0; e.Value == nil {
			delete(l.versions, e.Key)
			continue
		}
		l.last++
		l.versions[e.Key], e.Written = l.last, l.last
	}
	return nil
}

// Watch implements Store. Only the first feed contains the values, because they are not kept in
// memory.
func (l *Local[V]) Watch() Feed[V] {
	l.mu.Lock()
	defer l.mu.Unlock()
	feed := &restoredFeed[V]{l.restored}
	l.restored = nil
	return feed
}

type restoredFeed[V any] struct{ items []Item[V] }

// TryNext implements Feed.
func (f *restoredFeed[V]) TryNext() ([]Item[V], <-chan struct{}) {
	items := f.items
	f.items = nil
	return items, nil
}

// Ready implements Store.
func (l *Local[V]) Ready() <-chan struct{} { return always }

var always = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Stale implements Store.
func (l *Local[V]) Stale() (string, <-chan struct{}) {
	return "", l.repaired.Next()
}

// Problems implements Store.
func (l *Local[V]) Problems() []vip.Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.damaged) == 0 {
		return nil
	}
	return l.problems
}
