package reconcile

import (
	"iter"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/table/keyed"
)

// holdings are what is known of each key in the Target. A value has its key in it,
// and few are in trouble, so that a key without any takes little more than a
// pointer to what the desired table keeps anyway.
type holdings[K comparable, V any] struct {
	key      func(*V) K
	rows     *keyed.Set[K, table.Row[V]]
	troubles map[K]*trouble
	orphans  map[K]struct{}
}

// entry is what is known of one key in the Target. Nothing in it changes.
type entry[V any] struct {
	row     *table.Row[V] // the desired row, shared; of what a reading found, one without a revision
	trouble *trouble      // nil: there is none
	orphan  bool          // it is there to be removed: nobody can want its key
}

// trouble is what is wrong with a key in the Target.
type trouble struct {
	damage  []string
	suspect bool // an update failed half-way: the Target may have anything between two values
	tries   int  // failed attempts in a row
}

func newHoldings[K comparable, V any](key func(*V) K) holdings[K, V] {
	return holdings[K, V]{
		key:      key,
		rows:     keyed.New(func(r *table.Row[V]) K { return key(&r.Value) }),
		troubles: make(map[K]*trouble),
		orphans:  make(map[K]struct{}),
	}
}

func (h holdings[K, V]) get(k K) (e entry[V], has bool) {
	row := h.rows.Get(k)
	if row == nil {
		return e, false
	}
	return h.entry(k, row), true
}

func (h holdings[K, V]) entry(k K, row *table.Row[V]) entry[V] {
	_, orphan := h.orphans[k]
	return entry[V]{row: row, trouble: h.troubles[k], orphan: orphan}
}

// put notes the entry under its value's key, in the place of a former one.
func (h holdings[K, V]) put(e entry[V]) {
	h.rows.Put(e.row)
	k := h.key(&e.row.Value)
	if e.trouble != nil {
		h.troubles[k] = e.trouble
	} else {
		delete(h.troubles, k)
	}
	if e.orphan {
		h.orphans[k] = struct{}{}
	} else {
		delete(h.orphans, k)
	}
}

func (h holdings[K, V]) drop(k K) {
	h.rows.Delete(k)
	delete(h.troubles, k)
	delete(h.orphans, k)
}

// all yields every key, in no particular order. Nothing may change meanwhile.
func (h holdings[K, V]) all() iter.Seq2[K, entry[V]] {
	return func(yield func(K, entry[V]) bool) {
		for row := range h.rows.All() {
			k := h.key(&row.Value)
			if !yield(k, h.entry(k, row)) {
				return
			}
		}
	}
}

// with returns the entry with that trouble, or with none if it is none.
func (e entry[V]) with(t trouble) entry[V] {
	e.trouble = nil
	if t.suspect || len(t.damage) > 0 {
		e.trouble = &t
	}
	return e
}

func (e entry[V]) suspect() bool { return e.trouble != nil && e.trouble.suspect }

func (e entry[V]) damage() []string {
	if e.trouble == nil {
		return nil
	}
	return e.trouble.damage
}
