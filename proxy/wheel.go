package proxy

import (
	"math/bits"
	"sync"
	"time"
)

// A wheel has wheelSlots slots of one tick each: 128 s with the tick of the timeouts, and 5 s with that
// of connects. Visits are late by up to a tick.
const (
	wheelTick  = 250 * time.Millisecond
	dialTick   = 10 * time.Millisecond
	wheelSlots = 512
)

// wheel visits its entries at the times that they ask for. A deadline that moves with every byte
// needs no change of the wheel: the entry is visited at the old deadline and asks for a later one.
// There is one timer for all entries, set to the next slot that has some. Adding, removing and
// visiting an entry cost O(1) and allocate nothing. The methods may be called concurrently.
type wheel struct {
	now  func() int64  // the time of all visits, in nanoseconds
	tick time.Duration // of a slot

	mu     sync.Mutex
	slots  [wheelSlots]*timed
	full   [wheelSlots / 64]uint64 // a bit for each slot with entries
	seen   int64                   // the last tick that was visited
	alarm  int64                   // the tick that timer is set to; 0: not set
	spread int64
	timer  *time.Timer
}

// timed is an entry of a wheel. It is part of what it times.
type timed struct {
	of         expirer
	prev, next *timed
	slot       int
	in         bool
}

// expirer is something with a deadline.
type expirer interface {
	// visit returns whether the deadline has passed, else when to visit again. It is called with
	// the wheel locked.
	visit(now int64) (next int64, expired bool)
	// expire is called once, after visit has returned true. It must not block.
	expire()
}

// add visits e at a time, and from then on.
func (w *wheel) add(e *timed, at int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.put(e, at)
	w.arm()
}

// move visits e at another time. It does nothing after remove or expire.
func (w *wheel) move(e *timed, at int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.in {
		w.take(e)
		w.put(e, at)
		w.arm()
	}
}

// remove ends the visits of e. A call of expire may be in progress.
func (w *wheel) remove(e *timed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.in {
		w.take(e)
	}
}

// close ends all visits.
func (w *wheel) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
	clear(w.full[:])
	for i, e := range w.slots {
		for ; e != nil; e = e.next {
			e.in = false
		}
		w.slots[i] = nil
	}
}

// put inserts e into the slot of a time. Times that are too far away are distributed over the second
// half of the wheel, because entries that arrived together would be visited together.
func (w *wheel) put(e *timed, at int64) {
	if w.empty() {
		w.seen = w.now() / int64(w.tick)
	}
	due := (at + int64(w.tick) - 1) / int64(w.tick)
	if due >= w.seen+wheelSlots {
		w.spread++
		due = w.seen + wheelSlots/2 + w.spread%(wheelSlots/2)
	}
	e.slot, e.in = int(max(due, w.seen+1)%wheelSlots), true
	e.prev, e.next = nil, w.slots[e.slot]
	if e.next != nil {
		e.next.prev = e
	}
	w.slots[e.slot] = e
	w.full[e.slot/64] |= 1 << (e.slot % 64)
}

// take removes e from its slot.
func (w *wheel) take(e *timed) {
	if e.prev != nil {
		e.prev.next = e.next
	} else if w.slots[e.slot] = e.next; e.next == nil {
		w.full[e.slot/64] &^= 1 << (e.slot % 64)
	}
	if e.next != nil {
		e.next.prev = e.prev
	}
	e.prev, e.next, e.in = nil, nil, false
}

func (w *wheel) empty() bool { return w.full == [wheelSlots / 64]uint64{} }

// next returns the first tick after seen with entries, or 0 without entries.
func (w *wheel) next() int64 {
	for k := int64(1); k <= wheelSlots; {
		slot := (w.seen + k) % wheelSlots
		rest := w.full[slot/64] >> (slot % 64)
		if rest != 0 {
			return w.seen + k + int64(bits.TrailingZeros64(rest))
		}
		k += 64 - slot%64
	}
	return 0
}

// arm sets the timer to the next slot with entries.
func (w *wheel) arm() {
	next := w.next()
	if next == 0 || w.alarm != 0 && w.alarm <= next {
		return
	}
	w.alarm = next
	wait := time.Duration(next*int64(w.tick) - w.now())
	if w.timer == nil {
		w.timer = time.AfterFunc(wait, w.turn)
	} else {
		w.timer.Reset(wait)
	}
}

// turn visits the entries in the slots up to now.
func (w *wheel) turn() {
	w.mu.Lock()
	now := w.now()
	w.alarm = 0
	var expired *timed // linked by next
	for tick := w.next(); tick != 0 && tick*int64(w.tick) <= now; tick = w.next() {
		w.seen = tick
		e := w.slots[tick%wheelSlots]
		for e != nil {
			following := e.next
			w.take(e)
			if again, over := e.of.visit(now); over {
				e.next, expired = expired, e
			} else {
				w.put(e, again)
			}
			e = following
		}
	}
	w.seen = max(w.seen, now/int64(w.tick)) // also if all entries that were due have been removed
	w.arm()
	w.mu.Unlock()
	for e := expired; e != nil; {
		following := e.next
		e.next = nil
		e.of.expire()
		e = following
	}
}
