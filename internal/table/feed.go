package table

import (
	"context"
	"iter"
	"slices"
)

// chunk bounds the rows read per hold of a table's lock.
const chunk = 512

// Feed delivers the changes of a table to one reader. Except for Close, it is not safe for
// concurrent use.
type Feed[K comparable, V any] struct {
	table *Table[K, V]
	at    *node[V] // everything up to it in the ring has been delivered; nil once closed
	born  uint64   // tombstones up to here concern rows this feed never saw
	seen  uint64   // see Seen
}

// Watch implements Reader.
func (t *Table[K, V]) Watch() *Feed[K, V] {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := &Feed[K, V]{table: t, at: &t.order, born: t.rev}
	t.feeds = append(t.feeds, f)
	return f
}

// Next blocks until there are changes, and returns the next batch: at most 512 changes, each key
// once with its newest value, in revision order. It returns ctx's error if ctx ends first. The
// caller owns the slice.
func (f *Feed[K, V]) Next(ctx context.Context) ([]Change[V], error) {
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

// TryNext is Next without waiting. An empty batch means that the feed is at the end of the table.
// The channel is closed at the next change.
func (f *Feed[K, V]) TryNext() ([]Change[V], <-chan struct{}) { return f.poll() }

// Each calls with for the newest value of each row that has changed since the last call, or the last value of a
// deleted one. The first call has all rows.
func (f *Feed[K, V]) Each(with func(*V)) {
	for batch, _ := f.poll(); len(batch) > 0; batch, _ = f.poll() {
		for i := range batch {
			with(&batch[i].Value)
		}
	}
}

// Seen returns the revision up to which the feed has delivered everything. At the end of the table,
// this is the table's revision. It can be higher than the last delivered change, because deletions
// from before Watch are not delivered.
func (f *Feed[K, V]) Seen() uint64 { return f.seen }

func (f *Feed[K, V]) poll() ([]Change[V], <-chan struct{}) {
	t := f.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.at == nil {
		return nil, t.changed.Next()
	}
	ahead := 0
	for n := f.at.next; n != &t.order && ahead < chunk; n = n.next {
		ahead++
	}
	batch := make([]Change[V], 0, ahead)
	for ; f.at.next != &t.order && len(batch) < chunk; f.at = f.at.next {
		n := f.at.next
		deleted := t.isBuried(n)
		if !deleted || n.row.Rev > f.born {
			batch = append(batch, Change[V]{Row: &n.row, Deleted: deleted})
		}
		f.seen = n.row.Rev
	}
	if f.at.next == &t.order {
		f.seen = t.rev // the last change may have been a deletion that is long buried
	}
	t.bury()
	return batch, t.changed.Next()
}

// Close removes the feed from the table. A waiting Next returns when its context ends; later calls
// return nothing.
func (f *Feed[K, V]) Close() {
	t := f.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.at == nil {
		return
	}
	f.at = nil
	t.feeds = slices.DeleteFunc(t.feeds, func(o *Feed[K, V]) bool { return o == f })
	t.bury()
}

// isBuried reports whether a node is a tombstone. The caller holds mu.
func (t *Table[K, V]) isBuried(n *node[V]) bool {
	return len(t.buried) > 0 && t.buried[t.key(&n.row.Value)] == n
}

// bury removes the tombstones that every feed has passed. Tombstones are in revision order, so it
// visits only those that it removes. The caller holds mu.
func (t *Table[K, V]) bury() {
	passed := t.rev
	for _, f := range t.feeds {
		passed = min(passed, max(f.seen, f.born))
	}
	i := 0
	for ; i < len(t.tombstones) && t.tombstones[i].row.Rev <= passed; i++ {
		if n := t.tombstones[i]; n.next != nil { // else the key came back
			t.unlink(n)
			delete(t.buried, t.key(&n.row.Value))
		}
		t.tombstones[i] = nil
	}
	if t.tombstones = t.tombstones[i:]; len(t.tombstones) == 0 {
		t.tombstones = nil
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
				if !c.Deleted && !yield(t.key(&c.Value), c.Value) {
					return
				}
			}
		}
	}
}

// IsClosed reports whether c, such as a table's Ready channel, is closed. A nil channel never is.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
