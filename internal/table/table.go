// Package table has the tables that connect the stages of the pipeline: each one has one writer,
// revisions, and change feeds for any number of readers.
//
// All tables of a process take revisions from one Clock, so revisions of different tables can be
// compared. A Feed starts at revision 0, so the initial sync and later changes use one path. It
// delivers each changed key once with its newest value, in revision order, including deletions.
// Setting and delivering a change costs O(1). A writer never waits for a reader.
//
// Rows are shared, not copied, and immutable: a change creates a new Row. A value contains its own
// key.
package table

import (
	"iter"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/internal/wake"
)

// Clock assigns revisions. Revisions of tables with the same clock are comparable. The zero Clock
// starts at 0. NewClock starts above the revisions of earlier processes.
type Clock struct{ now atomic.Uint64 }

// NewClock returns a clock that starts at the time of day in microseconds. A revision can repeat in
// the next process only after a million changes per second for the whole life of this one. The
// value fits a float64 (JSON) exactly until the year 2255.
func NewClock(now time.Time) *Clock {
	c := &Clock{}
	c.now.Store(uint64(now.UnixMicro()))
	return c
}

// Revision returns the newest assigned revision.
func (c *Clock) Revision() uint64 { return c.now.Load() }

// Row is one row, shared by all readers.
type Row[V any] struct {
	Value V
	Rev   uint64
}

// Change is one changed row. For a deletion, Deleted is set, Rev is the revision of the deletion,
// and Value is the last value.
type Change[V any] struct {
	*Row[V]
	Deleted bool
}

// Reader is the read access to a table, for every package except its owner.
type Reader[K comparable, V any] interface {
	// Get returns the value, its revision, and whether the row exists.
	Get(K) (V, uint64, bool)
	// Row returns the shared row, or nil.
	Row(K) *Row[V]
	// KeyOf returns the key of a value.
	KeyOf(*V) K
	// Len returns the number of rows.
	Len() int
	// All iterates over the rows in no particular order. It reads in chunks, so a writer waits for
	// at most one chunk. A row that changes meanwhile can appear twice, the newer value later.
	All() iter.Seq2[K, V]
	// Sum makes the table maintain the sum of what over all rows, and returns a function that reads
	// it. A change costs two calls of what.
	Sum(of func(*V) int) (now func() int)
	// Track calls f with each row that is put or deleted, and first with those that are there: with
	// its value before the change, nil if it is new, and after it, nil if it is deleted. The table is
	// locked meanwhile, so a reader that sees what f has done sees the change, too. f must be quick,
	// and must not use this table.
	Track(f func(before, after *V))
	// Revision returns the revision of the newest change in this table.
	Revision() uint64
	// Changed returns a channel that is closed at the next change.
	Changed() <-chan struct{}
	// Watch returns a feed from revision 0. Close it when done.
	Watch() *Feed[K, V]
	// Ready is closed when every registered initializer is done.
	Ready() <-chan struct{}
}

// Table implements Reader and is the owner's handle for writing. Its methods may be called
// concurrently.
type Table[K comparable, V any] struct {
	clock *Clock
	key   func(*V) K
	equal func(a, b V) bool

	mu         sync.Mutex
	rows       map[K]*node[V]
	order      node[V]        // ring of live rows and tombstones by revision; the sentinel
	tombstones []*node[V]     // tombstones in revision order, for bury
	buried     map[K]*node[V] // the same by key; a key that returns removes its tombstone
	feeds      []*Feed[K, V]  // a handful
	trackers   []func(before, after *V)
	rev        uint64
	changed    wake.Broadcast

	pending int // initializers still running
	ready   chan struct{}
}

// node is a row or a tombstone in the ring, which is a node in buried. Its row is immutable.
type node[V any] struct {
	prev, next *node[V]
	row        Row[V]
}

// New returns an empty table. key returns a value's key. If equal is not nil, Set of an equal value
// does nothing, so that no reader wakes.
func New[K comparable, V any](clock *Clock, key func(*V) K, equal func(a, b V) bool) *Table[K, V] {
	t := &Table[K, V]{
		clock:  clock,
		key:    key,
		equal:  equal,
		rows:   make(map[K]*node[V]),
		buried: make(map[K]*node[V]),
		ready:  make(chan struct{}),
	}
	t.order.prev, t.order.next = &t.order, &t.order
	close(t.ready)
	return t
}

// Initializer registers a writer that must publish its initial content before the table is ready.
// Call the returned function when that is done; further calls do nothing. Register every
// initializer before the first is done.
func (t *Table[K, V]) Initializer() (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pending == 0 {
		t.ready = make(chan struct{})
	}
	t.pending++
	var once sync.Once
	return func() {
		once.Do(func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.pending--; t.pending == 0 {
				close(t.ready)
			}
		})
	}
}

// Ready implements Reader.
func (t *Table[K, V]) Ready() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ready
}

// KeyOf implements Reader.
func (t *Table[K, V]) KeyOf(v *V) K { return t.key(v) }

// Set adds or replaces the row of v's key, and returns its revision. The revision does not change
// if v equals the current value.
func (t *Table[K, V]) Set(v V) uint64 { return t.Put(v).Rev }

// Put is Set that returns the row.
func (t *Table[K, V]) Put(v V) *Row[V] {
	n := &node[V]{row: Row[V]{Value: v}} // v itself would be moved to the heap for its key
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.put(n)
}

// SetAll is Set for each value. A reader receives all of them together, in batches of the usual
// size, because it can't run between two of them.
func (t *Table[K, V]) SetAll(vs []V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, v := range vs {
		t.put(&node[V]{row: Row[V]{Value: v}})
	}
}

// put is Put for a new node. The caller holds mu.
func (t *Table[K, V]) put(n *node[V]) *Row[V] {
	k := t.key(&n.row.Value)
	former := t.rows[k]
	if former != nil {
		if t.equal != nil && t.equal(former.row.Value, n.row.Value) {
			return &former.row
		}
	} else if grave := t.buried[k]; grave != nil {
		t.unlink(grave)
		delete(t.buried, k)
	}
	t.add(n, former)
	return &n.row
}

// Touch gives the row at k a new revision, as if its value had changed, and reports whether it exists.
func (t *Table[K, V]) Touch(k K) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	former := t.rows[k]
	if former == nil {
		return false
	}
	t.add(&node[V]{row: Row[V]{Value: former.row.Value}}, former)
	return true
}

// add adds a node with a new revision, in place of the former one of its key, nil if there is none.
// The caller holds mu.
func (t *Table[K, V]) add(n, former *node[V]) {
	var before *V
	if former != nil {
		t.unlink(former)
		before = &former.row.Value
	}
	t.append(n)
	t.rows[t.key(&n.row.Value)] = n
	t.track(before, &n.row.Value)
	t.changed.Send()
}

// Delete removes the row at k and reports whether it existed.
func (t *Table[K, V]) Delete(k K) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	former := t.rows[k]
	if former == nil {
		return false
	}
	delete(t.rows, k)
	t.unlink(former)
	if len(t.feeds) > 0 {
		n := &node[V]{row: Row[V]{Value: former.row.Value}}
		t.append(n)
		t.tombstones = append(t.tombstones, n)
		t.buried[k] = n
	} else {
		t.rev = t.clock.now.Add(1)
	}
	t.track(&former.row.Value, nil)
	t.changed.Send()
	return true
}

// append adds a node at the end, with the next revision. The caller holds mu.
func (t *Table[K, V]) append(n *node[V]) {
	t.rev = t.clock.now.Add(1)
	n.row.Rev = t.rev
	n.prev, n.next = t.order.prev, &t.order
	n.prev.next, t.order.prev = n, n
}

// unlink removes a node from the ring. Feeds at this node move to the previous one. The caller
// holds mu.
func (t *Table[K, V]) unlink(n *node[V]) {
	for _, f := range t.feeds {
		if f.at == n {
			f.at = n.prev
		}
	}
	n.prev.next, n.next.prev = n.next, n.prev
	n.prev, n.next = nil, nil // a reader that keeps this row must not keep others alive
}

// track calls the trackers. The caller holds mu.
func (t *Table[K, V]) track(before, after *V) {
	for _, f := range t.trackers {
		f(before, after)
	}
}

// Get implements Reader.
func (t *Table[K, V]) Get(k K) (v V, rev uint64, ok bool) {
	if r := t.Row(k); r != nil {
		return r.Value, r.Rev, true
	}
	return v, 0, false
}

// Row implements Reader.
func (t *Table[K, V]) Row(k K) *Row[V] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.rows[k]; n != nil {
		return &n.row
	}
	return nil
}

// Len implements Reader.
func (t *Table[K, V]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.rows)
}

// Sum implements Reader.
func (t *Table[K, V]) Sum(of func(*V) int) (now func() int) {
	var sum atomic.Int64
	t.Track(func(before, after *V) {
		if before != nil {
			sum.Add(-int64(of(before)))
		}
		if after != nil {
			sum.Add(int64(of(after)))
		}
	})
	return func() int { return int(sum.Load()) }
}

// Track implements Reader.
func (t *Table[K, V]) Track(f func(before, after *V)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.rows {
		f(nil, &n.row.Value)
	}
	t.trackers = append(t.trackers, f)
}

// Revision implements Reader.
func (t *Table[K, V]) Revision() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rev
}

// Changed implements Reader.
func (t *Table[K, V]) Changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed.Next()
}

// Counts makes a table maintain how many rows are of each kind, and returns a function that copies the numbers. A change
// costs two calls of what, and a copy O(kinds).
func Counts[K, C comparable, V any](t Reader[K, V], of func(*V) C) (now func() map[C]int) {
	var mu sync.Mutex
	counts := map[C]int{}
	add := func(v *V, n int) {
		if v == nil {
			return
		}
		kind := of(v)
		if counts[kind] += n; counts[kind] == 0 {
			delete(counts, kind)
		}
	}
	t.Track(func(before, after *V) {
		mu.Lock()
		defer mu.Unlock()
		add(before, -1)
		add(after, 1)
	})
	return func() map[C]int {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(counts)
	}
}
