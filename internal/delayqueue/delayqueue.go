// Package delayqueue is a priority queue of keys by deadline.
//
// The pipeline uses it wherever something has to happen later: drain deadlines, retries,
// heartbeats that expire. It holds no timer of its own: the owner asks for the first deadline,
// waits for it, and takes what is due.
package delayqueue

import (
	"container/heap"
	"iter"
	"time"
)

// Queue holds each key once, with the deadline that it was given last. Set and Drop cost
// O(log n), First costs O(1). The zero Queue is empty and ready to use. It is not safe for
// concurrent use.
type Queue[K comparable] struct {
	entries map[K]*entry[K]
	heap    deadlines[K]
	spare   []*entry[K] // dropped, for keys that are added next
}

// keep bounds the keys for which an empty queue keeps room. A map never shrinks, so the keys of a
// start would stay allocated for ever. keepEntries bounds spare: a key that is dropped when it is due
// and added again then allocates nothing.
const (
	keep        = 1024
	keepEntries = 64
)

type entry[K comparable] struct {
	key   K
	at    time.Time
	place int // in the heap
}

// Set adds k, or moves its deadline.
func (q *Queue[K]) Set(k K, at time.Time) {
	if e := q.entries[k]; e != nil {
		e.at = at
		heap.Fix(&q.heap, e.place)
		return
	}
	if q.entries == nil {
		q.entries = make(map[K]*entry[K])
	}
	e := q.newEntry()
	e.key, e.at = k, at
	q.entries[k] = e
	heap.Push(&q.heap, e)
}

func (q *Queue[K]) newEntry() *entry[K] {
	n := len(q.spare) - 1
	if n < 0 {
		return &entry[K]{}
	}
	e := q.spare[n]
	q.spare = q.spare[:n]
	return e
}

// Hasten adds k, or moves its deadline if at is earlier.
func (q *Queue[K]) Hasten(k K, at time.Time) {
	if e := q.entries[k]; e == nil || at.Before(e.at) {
		q.Set(k, at)
	}
}

// Drop removes k. It does nothing if k is not in the queue.
func (q *Queue[K]) Drop(k K) {
	e := q.entries[k]
	if e == nil {
		return
	}
	delete(q.entries, k)
	heap.Remove(&q.heap, e.place)
	if *e = (entry[K]{}); len(q.spare) < keepEntries {
		q.spare = append(q.spare, e)
	}
	if len(q.heap) == 0 && cap(q.heap) > keep {
		q.entries, q.heap = nil, nil
	}
}

// Has reports whether k is in the queue.
func (q *Queue[K]) Has(k K) bool { return q.entries[k] != nil }

// First returns the key with the earliest deadline; ok is false if the queue is empty.
func (q *Queue[K]) First() (k K, at time.Time, ok bool) {
	if len(q.heap) == 0 {
		return k, at, false
	}
	return q.heap[0].key, q.heap[0].at, true
}

// Due yields the keys whose deadline is now or earlier, the earliest first. The loop body
// must drop each key or move its deadline past now; otherwise the same key comes again.
func (q *Queue[K]) Due(now time.Time) iter.Seq[K] {
	return func(yield func(K) bool) {
		for len(q.heap) > 0 && !q.heap[0].at.After(now) {
			if !yield(q.heap[0].key) {
				return
			}
		}
	}
}

// Len returns the number of keys.
func (q *Queue[K]) Len() int { return len(q.heap) }

// All yields every key, in no particular order. The loop body may move deadlines, but may
// not add or drop keys.
func (q *Queue[K]) All() iter.Seq[K] {
	return func(yield func(K) bool) {
		for k := range q.entries {
			if !yield(k) {
				return
			}
		}
	}
}

// deadlines implements heap.Interface.
type deadlines[K comparable] []*entry[K]

func (d deadlines[K]) Len() int           { return len(d) }
func (d deadlines[K]) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d deadlines[K]) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].place, d[j].place = i, j
}

func (d *deadlines[K]) Push(v any) {
	e := v.(*entry[K])
	e.place = len(*d)
	*d = append(*d, e)
}

func (d *deadlines[K]) Pop() any {
	end := len(*d) - 1
	last := (*d)[end]
	(*d)[end] = nil
	*d = (*d)[:end]
	return last
}
