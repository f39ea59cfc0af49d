package reconcile

import (
	"iter"

	"github.com/ironvip/ironvip/internal/table"
)

// content is the known content of the Target, by key. Few keys have a fault, so a key without one takes little more
// than a pointer to the row of the desired table.
type content[K comparable, V any] struct {
	key     func(*V) K
	rows    map[K]*table.Row[V]
	faults  map[K]*fault
	orphans map[K]struct{}
}

// entry is the known state of one key in the Target. It is immutable.
type entry[V any] struct {
	row    *table.Row[V] // the desired row, shared; for the result of a read, a row without a revision
	fault  *fault        // nil: none
	orphan bool          // to be removed; its key can't be desired
}

// fault is a known error of a key in the Target.
type fault struct {
	damage  []string
	suspect bool // an update failed half-way, so the Target has any state between two values
	tries   int  // failed attempts in a row
}

func newContent[K comparable, V any](key func(*V) K) content[K, V] {
	return content[K, V]{
		key:     key,
		rows:    make(map[K]*table.Row[V]),
		faults:  make(map[K]*fault),
		orphans: make(map[K]struct{}),
	}
}

func (h content[K, V]) get(k K) (e entry[V], has bool) {
	row := h.rows[k]
	if row == nil {
		return e, false
	}
	return h.entry(k, row), true
}

func (h content[K, V]) entry(k K, row *table.Row[V]) entry[V] {
	_, orphan := h.orphans[k]
	return entry[V]{row: row, fault: h.faults[k], orphan: orphan}
}

// put stores the entry under its value's key.
func (h content[K, V]) put(e entry[V]) {
	k := h.key(&e.row.Value)
	h.rows[k] = e.row
	if e.fault != nil {
		h.faults[k] = e.fault
	} else {
		delete(h.faults, k)
	}
	if e.orphan {
		h.orphans[k] = struct{}{}
	} else {
		delete(h.orphans, k)
	}
}

func (h content[K, V]) drop(k K) {
	delete(h.rows, k)
	delete(h.faults, k)
	delete(h.orphans, k)
}

// all yields every key, in no particular order. The content must not change meanwhile.
func (h content[K, V]) all() iter.Seq2[K, entry[V]] {
	return func(yield func(K, entry[V]) bool) {
		for k, row := range h.rows {
			if !yield(k, h.entry(k, row)) {
				return
			}
		}
	}
}

// with returns the entry with the fault t, or with none if t is empty.
func (e entry[V]) with(t fault) entry[V] {
	e.fault = nil
	if t.suspect || len(t.damage) > 0 {
		e.fault = &t
	}
	return e
}

func (e entry[V]) suspect() bool { return e.fault != nil && e.fault.suspect }

func (e entry[V]) damage() []string {
	if e.fault == nil {
		return nil
	}
	return e.fault.damage
}
