package balance

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// queue has the clients of a service that wait for a place, because the service or all of its
// backends have as many connections as they may.
//
// It is first in, first out: one client at a time has its turn, and passes it on when it has a
// place. Each frontend has a line of its own, so that its clients don't hold up those of another
// one. All methods cost O(lines) and, for each line, O(backends), however many clients wait.
type queue struct {
	length atomic.Int64

	mu       sync.Mutex
	lines    []*line // those with clients
	arrivals uint64
	turn     *waiter     // it looks for a place
	retry    *time.Timer // calls wake when a backend may be tried again
}

// line is the part of a queue that waits for the backends of one frontend.
type line struct {
	f       *Frontend
	waiters list.List // of *waiter, in the order of their arrival
}

// waiter is one client in a queue.
type waiter struct {
	a     *Attempt // what the queue reads of it doesn't change while the client waits
	line  *line
	place *list.Element
	turn  chan struct{} // receives each time it is the waiter's turn
}

// add puts w before those that arrived later. The insertion costs O(1) for a new client and for one
// that was the first before.
func (l *line) add(w *waiter) {
	later := func(e *list.Element) bool { return e != nil && e.Value.(*waiter).a.arrival > w.a.arrival }
	if !later(l.waiters.Back()) {
		w.place = l.waiters.PushBack(w)
		return
	}
	e := l.waiters.Front()
	for !later(e) {
		e = e.Next()
	}
	w.place = l.waiters.InsertBefore(w, e)
}

// push adds a client at the end, or at its former position if it had a turn that led to nothing. It
// returns nil if the queue is as long as it may be.
func (s *Service) push(a *Attempt) *waiter {
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if a.arrival == 0 {
		if q.length.Load() >= int64(s.relay.Load().MaxQueue) {
			return nil
		}
		q.arrivals++
		a.arrival = q.arrivals
	}
	i := slices.IndexFunc(q.lines, func(l *line) bool { return l.f == a.f })
	if i < 0 {
		i = len(q.lines)
		q.lines = append(q.lines, &line{f: a.f})
	}
	q.length.Add(1)
	w := &waiter{a: a, line: q.lines[i], turn: make(chan struct{}, 1)}
	w.line.add(w)
	return w
}

// wake gives the turn to the client that came first, of those first in their lines with a place,
// unless another one has it. A caller that frees a place calls it afterwards. It costs a load if
// nobody waits.
func (s *Service) wake() {
	q := &s.queue
	if q.length.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.turn != nil || len(q.lines) == 0 {
		return // the one with the turn calls it afterwards
	}
	var next *waiter
	now, retry := q.lines[0].f.balancer.Now(), int64(never)
	for _, l := range q.lines {
		w := l.waiters.Front().Value.(*waiter)
		if at := w.a.opening(now); at > now {
			retry = min(retry, at)
		} else if next == nil || w.a.arrival < next.a.arrival {
			next = w
		}
	}
	switch {
	case next != nil:
		q.turn = next
		next.turn <- struct{}{}
	case retry == never:
	case q.retry == nil:
		q.retry = time.AfterFunc(time.Duration(retry-now), s.wake)
	default:
		q.retry.Reset(time.Duration(retry - now))
	}
}

// pass ends the turn of w, if it has it. If w is done, it also leaves the queue.
func (s *Service) pass(w *waiter, done bool) {
	q := &s.queue
	q.mu.Lock()
	if q.turn == w {
		q.turn = nil
	}
	if done {
		q.length.Add(-1)
		w.line.waiters.Remove(w.place)
		if w.line.waiters.Len() == 0 {
			q.lines = slices.DeleteFunc(q.lines, func(l *line) bool { return l == w.line })
		}
	}
	q.mu.Unlock()
	s.wake()
}

// opening returns from when on a client that waits needn't wait longer, by Balancer.Now: there may be
// a place for it, or it has no backend to wait for. It is never if only the end of a connection
// can help.
func (a *Attempt) opening(now int64) int64 {
	b := a.f.backends.Load()
	switch {
	case len(b.usable) == 0:
		return now
	case a.service.full():
		return never
	}
	first := int64(never)
	for _, e := range b.usable {
		if !e.State.Full() {
			first = min(first, max(e.Passive.Avoid().Load(), a.refusedUntil(e)))
		}
	}
	if first > now && !a.awaits(b, now) {
		return now
	}
	return first
}

// awaits reports whether the client should rather wait than try an ejected backend: another one,
// which hasn't refused it, is only full.
func (a *Attempt) awaits(b *backends, now int64) bool {
	return slices.ContainsFunc(b.usable, func(e *Endpoint) bool { return e.State.Full() && a.refusedUntil(e) <= now })
}

// place returns a backend with a place for the client, and counts the connection there and in the
// service, until Leave. If all are full, the client waits in the queue, if it may. The caller holds
// mu, which is free during the wait. No backend is tried meanwhile. It returns ErrMustWait instead of
// waiting if the caller can't.
func (a *Attempt) place(canWait bool) (*Endpoint, error) {
	s := a.service
	if a.entered || s.queue.length.Load() == 0 || !a.waits() {
		if e, why := a.take(); !why.waits() || !a.waits() {
			return e, why.err()
		}
	}
	if !canWait {
		a.from = nil // a place that it missed may be free later
		return nil, ErrMustWait
	}
	if !a.enterSource() { // those who wait count: one client must not fill the queue
		return nil, sourceFull
	}
	w := s.push(a)
	if w == nil {
		return nil, queueFull
	}
	defer s.pass(w, true)
	if a.patience == nil {
		a.patience = time.NewTimer(s.relay.Load().QueueTimeout)
	}
	for s.wake(); ; s.pass(w, false) {
		if err := a.wait(w); err != nil {
			return nil, err
		} else if a.over {
			return nil, ErrElsewhere
		}
		a.from, a.tries = nil, 0
		if e, why := a.take(); !why.waits() {
			return e, why.err()
		}
	}
}

// wait waits for the turn of w, without mu. Another goroutine that comes for a backend meanwhile
// finds the client waiting.
func (a *Attempt) wait(w *waiter) error {
	a.waiting = true
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.waiting = false
	}()
	select {
	case <-w.turn:
		return nil
	case <-a.patience.C: // or end was called
		return queueTimeout
	case <-a.f.Life.Done():
		return context.Canceled
	}
}

// waits reports whether the client may wait in the queue.
func (a *Attempt) waits() bool { return a.mayWait && a.service.relay.Load().MaxQueue > 0 }

// take is place without a queue. The caller holds mu.
func (a *Attempt) take() (*Endpoint, Reason) {
	if len(a.f.backends.Load().usable) == 0 {
		return nil, noBackend
	}
	if !a.entered {
		if !a.enterSource() {
			return nil, sourceFull
		}
		if !a.service.enter() {
			return nil, serviceFull
		}
		a.entered = true
	}
	full := false
	for {
		e := a.next()
		if e == nil {
			break
		}
		if e.enter() {
			return e, Admitted
		}
		full = true // a simultaneous client took the last place
	}
	if full || a.awaits(a.from, a.f.balancer.Now()) {
		if a.running == 0 {
			a.exit() // clients of other frontends may have a place
		}
		return nil, backendsFull
	}
	return nil, Unreachable
}

// exit ends the count of the client in its service.
func (a *Attempt) exit() {
	if a.entered {
		a.entered = false
		a.service.leave()
	}
}
