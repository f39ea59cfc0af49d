// Package workqueue is a queue of unique keys to process, in the order in which they were added.
//
// The pipeline and the allocator use it for services to process again. It has no goroutine and no
// lock: its owner adds keys, waits for Some if it has to, and takes them.
package workqueue

import (
	"container/list"
	"iter"
)

// Queue holds each key once. Every method costs O(1). The zero Queue is empty and ready to use. An
// empty Queue keeps no memory of a large number of former keys. It is not safe for concurrent use, and
// must not be copied after its first use.
type Queue[K comparable] struct {
	places map[K]*list.Element
	keys   list.List     // of K, in order
	most   int           // the largest number of keys since places was made
	some   chan struct{} // see Some; nil until it is called
}

// keep bounds the keys for which an empty queue keeps room. A map never shrinks, so the keys of a
// start would stay allocated for ever.
const keep = 1024

// Add adds k at the end. A key that is in the queue keeps its place.
func (q *Queue[K]) Add(k K) {
	if q.Has(k) {
		return
	}
	if q.places == nil {
		q.places = make(map[K]*list.Element)
	}
	if len(q.places) == 0 && q.some != nil {
		close(q.some)
	}
	q.places[k] = q.keys.PushBack(k)
	q.most = max(q.most, len(q.places))
}

// Remove removes k. It does nothing if k is not in the queue.
func (q *Queue[K]) Remove(k K) {
	place := q.places[k]
	if place == nil {
		return
	}
	q.keys.Remove(place)
	delete(q.places, k)
	if len(q.places) > 0 {
		return
	}
	if q.most > keep {
		q.places, q.most = nil, 0
	}
	if q.some != nil {
		q.some = make(chan struct{})
	}
}

// Take removes and returns the first key.
func (q *Queue[K]) Take() (k K, ok bool) {
	for k := range q.All() {
		q.Remove(k)
		return k, true
	}
	return k, false
}

// All iterates over the keys in order. The loop body may remove its key, and no others, and may not
// add keys.
func (q *Queue[K]) All() iter.Seq[K] {
	return func(yield func(K) bool) {
		for place := q.keys.Front(); place != nil; {
			k := place.Value.(K)
			place = place.Next()
			if !yield(k) {
				return
			}
		}
	}
}

// Has reports whether k is in the queue.
func (q *Queue[K]) Has(k K) bool { return q.places[k] != nil }

// Len returns the number of keys.
func (q *Queue[K]) Len() int { return len(q.places) }

// Some returns a channel that is closed while the queue has a key. It is replaced when the last key
// goes.
func (q *Queue[K]) Some() <-chan struct{} {
	if q.some == nil {
		q.some = make(chan struct{})
		if len(q.places) > 0 {
			close(q.some)
		}
	}
	return q.some
}
