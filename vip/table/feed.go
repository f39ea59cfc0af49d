package table

import (
	"context"
	"iter"
)

// chunk bounds how many rows are read under one hold of a table's lock.
const chunk = 512

// Feed delivers the changes of a table to one reader. It is not safe for
// concurrent use, apart from Close.
type Feed[K comparable, V any] struct {
	table  *Table[K, V]
	cursor *node[K, V] // everything before it in the ring has been delivered
	born   uint64      // tombstones up to here concern rows this feed never saw
	seen   uint64      // revision of the last delivered change
}

// Watch implements Reader.
func (t *Table[K, V]) Watch() *Feed[K, V] {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := &Feed[K, V]{table: t, cursor: &node[K, V]{kind: cursor}, born: t.rev}
	f.cursor.insertBefore(t.order.next)
	t.feeds[f] = struct{}{}
	return f
}

// Next blocks until something changed and returns the next batch: at most 512
// changes, each key once with its newest value, in revision order. It returns
// the context's error when that ends first. The slice is the caller's.
func (f *Feed[K, V]) Next(ctx context.Context) ([]Change[K, V], error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		batch, wait := f.poll()
		if len(batch) > 0 {
			return batch, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-wait:
		}
	}
}

// TryNext returns what Next would without waiting; an empty batch means that
// the feed is at the table's end. The channel is closed at the next change.
func (f *Feed[K, V]) TryNext() ([]Change[K, V], <-chan struct{}) { return f.poll() }

func (f *Feed[K, V]) poll() ([]Change[K, V], <-chan struct{}) {
	t := f.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.cursor.next == nil { // closed
		return nil, t.next()
	}
	var batch []Change[K, V]
	n := f.cursor.next
	for ; n != &t.order && len(batch) < chunk; n = n.next {
		switch n.kind {
		case row:
			batch = append(batch, Change[K, V]{Row: &n.row})
			f.seen = n.row.Rev
		case tombstone:
			if n.row.Rev > f.born {
				batch = append(batch, Change[K, V]{Row: &n.row, Deleted: true})
			}
			f.seen = n.row.Rev
		}
	}
	f.cursor.unlink()
	f.cursor.insertBefore(n)
	t.bury()
	return batch, t.next()
}

// Close takes the feed off the table. A Next that waits returns at its
// context's end; later ones find nothing.
func (f *Feed[K, V]) Close() {
	t := f.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, open := t.feeds[f]; !open {
		return
	}
	delete(t.feeds, f)
	f.cursor.unlink()
	t.bury()
}

// bury drops the tombstones that every feed has passed. The caller holds mu.
// Graves are in revision order, so it touches only what it drops; a table has
// a handful of feeds.
func (t *Table[K, V]) bury() {
	passed := t.rev
	for f := range t.feeds {
		passed = min(passed, max(f.seen, f.born))
	}
	i := 0
	for ; i < len(t.graves) && t.graves[i].row.Rev <= passed; i++ {
		if n := t.graves[i]; n.next != nil { // else the key came back
			n.unlink()
			delete(t.buried, n.row.Key)
		}
		t.graves[i] = nil
	}
	if t.graves = t.graves[i:]; len(t.graves) == 0 {
		t.graves = nil
	}
}

// All implements Reader, through a feed of its own.
func (t *Table[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		f := t.Watch()
		defer f.Close()
		for {
			batch, _ := f.poll()
			if len(batch) == 0 {
				return
			}
			for _, c := range batch {
				if !c.Deleted && !yield(c.Key, c.Value) {
					return
				}
			}
		}
	}
}
