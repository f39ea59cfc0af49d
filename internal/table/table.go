// Package table is the joint of the pipeline: a revisioned table with one
// writer and a change feed for any number of readers.
//
// A row's revision is drawn from a clock that all tables of a process share, so
// revisions of different tables can be compared. A Feed starts at revision 0,
// so that the first synchronisation and every later change take one path, and
// delivers each changed key once with its newest value, in revision order,
// deletions included. Setting and delivering one change costs O(1), whatever
// the table holds; a writer never waits for a reader.
//
// Rows are shared, not copied: a Row is as it was set for as long as somebody
// holds it, and a change of its key makes another. Treat what is in it as
// immutable. A value knows its own key, which is nowhere else in memory.
package table

import (
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/internal/table/keyed"
)

// Clock hands out revisions. Tables that share a clock have comparable
// revisions. The zero Clock starts at 0; NewClock starts above any revision
// that an earlier process is likely to have shown.
type Clock struct{ now atomic.Uint64 }

// NewClock returns a clock that starts at the time of day in microseconds. A
// process would have to make a million changes a second all its life for a
// successor to repeat one of its revisions. The value fits a float64 (JSON)
// exactly until the year 2255.
func NewClock(now time.Time) *Clock {
	c := &Clock{}
	c.now.Store(uint64(now.UnixMicro()))
	return c
}

// Revision returns the newest revision handed out.
func (c *Clock) Revision() uint64 { return c.now.Load() }

// Row is one row as it was set, shared by everybody who reads it.
type Row[V any] struct {
	Value V
	Rev   uint64
}

// Change is one changed row. For a deletion, Deleted is set, Rev is that of the
// deletion and Value the last one the row had.
type Change[V any] struct {
	*Row[V]
	Deleted bool
}

// Reader is what everyone but a table's owner holds.
type Reader[K comparable, V any] interface {
	// Get returns the row, its revision, and whether it is there.
	Get(K) (V, uint64, bool)
	// Row returns the row as it is shared, without a copy, or nil.
	Row(K) *Row[V]
	// KeyOf returns the key of a value.
	KeyOf(*V) K
	// Len returns the number of rows.
	Len() int
	// All iterates over the rows in no particular order, in chunks, so that a
	// writer waits for no more than one chunk. A row that changes meanwhile may
	// come twice, the newer form later.
	All() iter.Seq2[K, V]
	// Sum makes the table keep the sum of what of says of each row, for its life,
	// and returns what reads it. A change costs two calls of it.
	Sum(of func(*V) int) (now func() int)
	// Revision returns the revision of the newest change in this table.
	Revision() uint64
	// Changed returns a channel that is closed at the next change.
	Changed() <-chan struct{}
	// Watch returns a feed from revision 0. Close it when done.
	Watch() *Feed[K, V]
	// Ready is closed once every registered initializer is done.
	Ready() <-chan struct{}
}

// Table implements Reader and is its owner's handle for writing. Its methods
// may be called by any number of goroutines at once.
type Table[K comparable, V any] struct {
	clock *Clock
	key   func(*V) K
	equal func(a, b V) bool

	mu      sync.Mutex
	rows    *keyed.Set[K, node[V]]
	order   node[V]        // ring of live rows and tombstones by revision; the sentinel
	graves  []*node[V]     // tombstones in revision order, for bury
	buried  map[K]*node[V] // the same by key, so that a key that returns takes its tombstone away
	feeds   []*Feed[K, V]  // a handful
	sums    []*sum[V]
	rev     uint64
	changed chan struct{} // nil until somebody waits

	pending int // initializers still running
	ready   chan struct{}
}

type sum[V any] struct {
	of  func(*V) int
	now int
}

// node is a row or a tombstone in the ring. Its row never changes once it is
// there. A fleet has many, so it says nothing twice: the key is in the value, and
// a tombstone is what the table has in buried.
type node[V any] struct {
	prev, next *node[V]
	row        Row[V]
}

// New returns an empty table. Key tells a value's key, by which the value is
// kept. Equal, when not nil, makes Set of an equal value a no-op, so that no
// reader is woken for nothing.
func New[K comparable, V any](clock *Clock, key func(*V) K, equal func(a, b V) bool) *Table[K, V] {
	t := &Table[K, V]{
		clock:  clock,
		key:    key,
		equal:  equal,
		rows:   keyed.New(func(n *node[V]) K { return key(&n.row.Value) }),
		buried: make(map[K]*node[V]),
		ready:  make(chan struct{}),
	}
	t.order.prev, t.order.next = &t.order, &t.order
	close(t.ready)
	return t
}

// Initializer registers a party whose first full contribution readers should
// wait for. Call the returned function when it is in the table; further calls
// do nothing. Register every initializer before the first is done.
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

// Set puts a row with the value in, in the place of one with the same key, and
// returns its revision, which stays as it was when the value equals the present
// one.
func (t *Table[K, V]) Set(v V) uint64 { return t.Put(v).Rev }

// Put is Set that returns the row.
func (t *Table[K, V]) Put(v V) *Row[V] {
	n := &node[V]{row: Row[V]{Value: v}} // v itself would be moved to the heap for its key
	k := t.key(&n.row.Value)
	t.mu.Lock()
	defer t.mu.Unlock()
	if former := t.rows.Get(k); former != nil {
		if t.equal != nil && t.equal(former.row.Value, v) {
			return &former.row
		}
		t.unlink(former)
		t.count(former, -1)
	} else if grave := t.buried[k]; grave != nil {
		t.unlink(grave)
		delete(t.buried, k)
	}
	t.append(n)
	t.rows.Put(n)
	t.count(n, 1)
	t.wake()
	return &n.row
}

// Delete removes the row at k and reports whether there was one.
func (t *Table[K, V]) Delete(k K) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	former := t.rows.Get(k)
	if former == nil {
		return false
	}
	t.rows.Delete(k)
	t.unlink(former)
	t.count(former, -1)
	if len(t.feeds) > 0 {
		n := &node[V]{row: Row[V]{Value: former.row.Value}}
		t.append(n)
		t.graves = append(t.graves, n)
		t.buried[k] = n
	} else {
		t.rev = t.clock.now.Add(1)
	}
	t.wake()
	return true
}

// append puts a node last, with the next revision. The caller holds mu.
func (t *Table[K, V]) append(n *node[V]) {
	t.rev = t.clock.now.Add(1)
	n.row.Rev = t.rev
	n.prev, n.next = t.order.prev, &t.order
	n.prev.next, t.order.prev = n, n
}

// unlink takes a node out of the ring. Feeds that were there stand at the one
// before. The caller holds mu.
func (t *Table[K, V]) unlink(n *node[V]) {
	for _, f := range t.feeds {
		if f.at == n {
			f.at = n.prev
		}
	}
	n.prev.next, n.next.prev = n.next, n.prev
	n.prev, n.next = nil, nil // who holds the row holds no other
}

// count adds a row to the sums, or takes it off. The caller holds mu.
func (t *Table[K, V]) count(n *node[V], by int) {
	for _, s := range t.sums {
		s.now += by * s.of(&n.row.Value)
	}
}

// wake tells those who wait, and costs nothing without one. The caller holds mu.
func (t *Table[K, V]) wake() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// next returns the channel that is closed at the next change. The caller holds
// mu.
func (t *Table[K, V]) next() <-chan struct{} {
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.changed
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
	if n := t.rows.Get(k); n != nil {
		return &n.row
	}
	return nil
}

// Len implements Reader.
func (t *Table[K, V]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rows.Len()
}

// Sum implements Reader.
func (t *Table[K, V]) Sum(of func(*V) int) (now func() int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &sum[V]{of: of}
	for n := range t.rows.All() {
		s.now += of(&n.row.Value)
	}
	t.sums = append(t.sums, s)
	return func() int {
		t.mu.Lock()
		defer t.mu.Unlock()
		return s.now
	}
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
	return t.next()
}
