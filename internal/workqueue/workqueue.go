// Package workqueue is a queue of unique keys to process, in the order in which they were added.
//
// The pipeline and the allocator use it for services to process again. It has no goroutine and no
// lock: its owner adds keys, waits for Some if it has to, and takes them.
package workqueue

import "iter"

// Queue holds each key once. Every method costs O(1), amortized. The zero Queue is empty and ready
// to use. An empty Queue keeps no memory of a large number of former keys. It is not safe for
// concurrent use.
type Queue[K comparable] struct {
	live  map[K]uint64 // the number of each key's item
	items []item[K]    // in order; one with another number than live was taken or removed
	first int          // of items that may be live
	next  uint64
	some  chan struct{} // see Some; nil until it is called
}

// keep bounds the items for which an empty queue keeps room. A map never shrinks, so the keys of a
// start would stay allocated for ever.
const keep = 1024

type item[K comparable] struct {
	key    K
	number uint64
}

// Add adds k at the end. A key that is in the queue keeps its place.
func (q *Queue[K]) Add(k K) {
	if q.Has(k) {
		return
	}
	if q.live == nil {
		q.live = make(map[K]uint64)
	}
	if len(q.live) == 0 {
		q.items, q.first = q.items[:0], 0
		if q.some != nil {
			close(q.some)
		}
	}
	if len(q.items) >= 2*len(q.live)+16 {
		q.compact()
	}
	q.next++
	q.live[k] = q.next
	q.items = append(q.items, item[K]{k, q.next})
}

// compact drops the items that were taken or removed.
func (q *Queue[K]) compact() {
	kept := q.items[:0]
	for _, i := range q.items[q.first:] {
		if q.live[i.key] == i.number {
			kept = append(kept, i)
		}
	}
	clear(q.items[len(kept):])
	q.items, q.first = kept, 0
}

// Remove removes k. It does nothing if k is not in the queue.
func (q *Queue[K]) Remove(k K) {
	if !q.Has(k) {
		return
	}
	delete(q.live, k)
	if len(q.live) > 0 {
		return
	}
	if cap(q.items) > keep {
		q.live, q.items, q.first = nil, nil, 0
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

// All iterates over the keys in order. Keys may be removed meanwhile, and not added.
func (q *Queue[K]) All() iter.Seq[K] {
	return func(yield func(K) bool) {
		for n := q.first; n < len(q.items); n++ {
			i := q.items[n]
			if q.live[i.key] != i.number {
				if n == q.first {
					q.first++
				}
				continue
			}
			if !yield(i.key) {
				return
			}
		}
	}
}

// Has reports whether k is in the queue.
func (q *Queue[K]) Has(k K) bool {
	_, there := q.live[k]
	return there
}

// Len returns the number of keys.
func (q *Queue[K]) Len() int { return len(q.live) }

// Some returns a channel that is closed while the queue has a key. It is replaced when the last key
// goes.
func (q *Queue[K]) Some() <-chan struct{} {
	if q.some == nil {
		q.some = make(chan struct{})
		if len(q.live) > 0 {
			close(q.some)
		}
	}
	return q.some
}
