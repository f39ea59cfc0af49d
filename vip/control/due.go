package control

import (
	"container/heap"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// dues are frontends by the time when something is due of them, each once. One
// change costs O(log frontends). The zero value is empty and ready to use.
type dues struct {
	byKey map[vip.FrontendKey]*due
	queue dueQueue
}

type due struct {
	key   vip.FrontendKey
	at    time.Time
	place int // in the queue
}

// set adds the frontend, or gives it another time.
func (d *dues) set(key vip.FrontendKey, at time.Time) {
	if e := d.byKey[key]; e != nil {
		if !e.at.Equal(at) {
			e.at = at
			heap.Fix(&d.queue, e.place)
		}
		return
	}
	if d.byKey == nil {
		d.byKey = make(map[vip.FrontendKey]*due)
	}
	e := &due{key: key, at: at}
	d.byKey[key] = e
	heap.Push(&d.queue, e)
}

func (d *dues) drop(key vip.FrontendKey) {
	if e := d.byKey[key]; e != nil {
		delete(d.byKey, key)
		heap.Remove(&d.queue, e.place)
	}
}

// first returns the frontend with the earliest time.
func (d *dues) first() (key vip.FrontendKey, at time.Time, ok bool) {
	if len(d.queue) == 0 {
		return key, at, false
	}
	return d.queue[0].key, d.queue[0].at, true
}

func (d *dues) len() int { return len(d.queue) }

type dueQueue []*due

func (q dueQueue) Len() int           { return len(q) }
func (q dueQueue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q dueQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

func (q *dueQueue) Push(v any) {
	e := v.(*due)
	e.place = len(*q)
	*q = append(*q, e)
}

func (q *dueQueue) Pop() any {
	end := len(*q) - 1
	last := (*q)[end]
	(*q)[end] = nil
	*q = (*q)[:end]
	return last
}
