// Package agenda has things in the order of the times when something is due of
// them.
package agenda

import (
	"container/heap"
	"iter"
	"time"
)

// Agenda is things by the time when something is due of each. A thing is there
// once, with its newest time. One change costs O(log n), finding the first O(1).
// The zero Agenda is empty and ready to use. It is not safe for concurrent use.
type Agenda[K comparable] struct {
	entries map[K]*entry[K]
	queue   queue[K]
}

type entry[K comparable] struct {
	key   K
	at    time.Time
	place int // in the queue
}

// Set adds k, or gives it another time.
func (a *Agenda[K]) Set(k K, at time.Time) {
	if e := a.entries[k]; e != nil {
		e.at = at
		heap.Fix(&a.queue, e.place)
		return
	}
	if a.entries == nil {
		a.entries = make(map[K]*entry[K])
	}
	e := &entry[K]{key: k, at: at}
	a.entries[k] = e
	heap.Push(&a.queue, e)
}

// Drop takes k out, if it is there.
func (a *Agenda[K]) Drop(k K) {
	if e := a.entries[k]; e != nil {
		delete(a.entries, k)
		heap.Remove(&a.queue, e.place)
	}
}

// Has reports whether k is there.
func (a *Agenda[K]) Has(k K) bool { return a.entries[k] != nil }

// First returns the thing with the earliest time, and that; ok is false when
// there is nothing.
func (a *Agenda[K]) First() (k K, at time.Time, ok bool) {
	if len(a.queue) == 0 {
		return k, at, false
	}
	return a.queue[0].key, a.queue[0].at, true
}

// Due yields the things whose time has come by now, the earliest first. Whoever
// takes one drops it or gives it a later time before taking the next: else that
// is the same once more.
func (a *Agenda[K]) Due(now time.Time) iter.Seq[K] {
	return func(yield func(K) bool) {
		for len(a.queue) > 0 && !a.queue[0].at.After(now) {
			if !yield(a.queue[0].key) {
				return
			}
		}
	}
}

// Len returns how many things there are.
func (a *Agenda[K]) Len() int { return len(a.queue) }

// All yields every thing, in no particular order. Nothing may change meanwhile
// but the times of things that are there.
func (a *Agenda[K]) All() iter.Seq[K] {
	return func(yield func(K) bool) {
		for k := range a.entries {
			if !yield(k) {
				return
			}
		}
	}
}

// queue is the heap.
type queue[K comparable] []*entry[K]

func (q queue[K]) Len() int           { return len(q) }
func (q queue[K]) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q queue[K]) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

func (q *queue[K]) Push(v any) {
	e := v.(*entry[K])
	e.place = len(*q)
	*q = append(*q, e)
}

func (q *queue[K]) Pop() any {
	end := len(*q) - 1
	last := (*q)[end]
	(*q)[end] = nil
	*q = (*q)[:end]
	return last
}
