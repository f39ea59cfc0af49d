package reconcile

import "github.com/ironvip/ironvip/internal/table"

// entry is the known state of one key in the Target. It is immutable.
type entry[V any] struct {
	row    *table.Row[V] // the desired row, shared; for what a read has found changed, a row without a revision
	fault  *fault        // nil: none
	orphan bool          // to be removed; its key can't be desired
}

// fault is a known error of a key in the Target.
type fault struct {
	damage  []string
	suspect bool // an update failed half-way, so the Target has any state between two values
	tries   int  // failed attempts in a row
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
