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
// immutable.
package table

import (
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/vip/table/keyed"
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
type Row[K comparable, V any] struct {
	Key   K
	Value V
	Rev   uint64
}

// Change is one changed row. For a deletion, Deleted is set, Rev is that of the
// deletion and Value the last one the row had.
type Change[K comparable, V any] struct {
	*Row[K, V]
	Deleted bool
}

// Reader is what everyone but a table's owner holds.
type Reader[K comparable, V any] interface {
	// Get returns the row, its revision, and whether it is there.
	Get(K) (V, uint64, bool)
	// Row returns the row as it is shared, without a copy, or nil.
	Row(K) *Row[K, V]
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
	equal func(a, b V) bool

	mu      sync.Mutex
	rows    *keyed.Set[K, node[K, V]]
	order   node[K, V]        // ring of live rows, tombstones and feed cursors by revision; the sentinel
	graves  []*node[K, V]     // tombstones in revision order, for bury
	buried  map[K]*node[K, V] // the same by key, so that a key that returns takes its tombstone away
	feeds   map[*Feed[K, V]]struct{}
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

// node is a row, a tombstone or a feed's cursor in the ring. Its row never
// changes once it is there.
type node[K comparable, V any] struct {
	prev, next *node[K, V]
	kind       kind
	row        Row[K, V]
}

type kind uint8

const (
	sentinel kind = iota
	row
	tombstone
	cursor
)

// New returns an empty table. Equal, when not nil, makes Set of an equal value
// a no-op, so that no reader is woken for nothing.
func New[K comparable, V any](clock *Clock, equal func(a, b V) bool) *Table[K, V] {
	t := &Table[K, V]{
		clock:  clock,
		equal:  equal,
		rows:   keyed.New(func(n *node[K, V]) K { return n.row.Key }),
		buried: make(map[K]*node[K, V]),
		feeds:  make(map[*Feed[K, V]]struct{}),
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

// Set puts the row at k and returns its revision, which stays as it was when
// the value equals the present one.
func (t *Table[K, V]) Set(k K, v V) uint64 { return t.Put(k, v).Rev }

// Put is Set that returns the row.
func (t *Table[K, V]) Put(k K, v V) *Row[K, V] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if former := t.rows.Get(k); former != nil {
		if t.equal != nil && t.equal(former.row.Value, v) {
			return &former.row
		}
		former.unlink()
		t.count(former, -1)
	} else if grave := t.buried[k]; grave != nil {
		grave.unlink()
		delete(t.buried, k)
	}
	n := t.append(row, k, v)
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
	former.unlink()
	t.count(former, -1)
	if len(t.feeds) > 0 {
		n := t.append(tombstone, k, former.row.Value)
		t.graves = append(t.graves, n)
		t.buried[k] = n
	} else {
		t.rev = t.clock.now.Add(1)
	}
	t.wake()
	return true
}

// append puts a node with the next revision last. The caller holds mu.
func (t *Table[K, V]) append(as kind, k K, v V) *node[K, V] {
	t.rev = t.clock.now.Add(1)
	n := &node[K, V]{kind: as, row: Row[K, V]{Key: k, Value: v, Rev: t.rev}}
	n.insertBefore(&t.order)
	return n
}

// count adds a row to the sums, or takes it off. The caller holds mu.
func (t *Table[K, V]) count(n *node[K, V], by int) {
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
func (t *Table[K, V]) Row(k K) *Row[K, V] {
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
	for n := t.order.next; n != &t.order; n = n.next {
		if n.kind == row {
			s.now += of(&n.row.Value)
		}
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

func (n *node[K, V]) unlink() {
	n.prev.next, n.next.prev = n.next, n.prev
	n.prev, n.next = nil, nil
}

func (n *node[K, V]) insertBefore(at *node[K, V]) {
	n.prev, n.next = at.prev, at
	n.prev.next, at.prev = n, n
}
