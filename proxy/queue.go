package proxy

import (
	"container/list"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// queue has the clients of a service that wait for a place, because the service or all of its
// backends have as many connections as they may.
//
// It is first in, first out: one client at a time has its turn, and passes it on when it has a
// place. Clients of a frontend that has no place don't hold up those of another one.
type queue struct {
	length atomic.Int64

	mu      sync.Mutex
	waiters list.List // of *waiter, in the order of their arrival
	turn    *waiter   // it looks for a place
}

// waiter is one client in a queue.
type waiter struct {
	f     *frontend
	place *list.Element
	turn  chan struct{} // receives each time it is the waiter's turn
}

// push adds a client of f at the end. It returns nil if the queue is as long as it may be.
func (s *service) push(f *frontend) *waiter {
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiters.Len() >= int(s.relay.Load().MaxQueue) {
		return nil
	}
	w := &waiter{f: f, turn: make(chan struct{}, 1)}
	w.place = q.waiters.PushBack(w)
	q.length.Store(int64(q.waiters.Len()))
	return w
}

// wake gives the turn to the first client with a place, unless another one has it. Whoever frees a
// place calls it afterwards. It costs a load if nobody waits.
func (s *service) wake() {
	q := &s.queue
	if q.length.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.turn != nil {
		return // it calls wake afterwards
	}
	var without []*frontend
	for e := q.waiters.Front(); e != nil; e = e.Next() {
		w := e.Value.(*waiter)
		switch {
		case slices.Contains(without, w.f):
		case s.hasPlace(w.f.backends.Load()):
			q.turn = w
			w.turn <- struct{}{}
			return
		default:
			without = append(without, w.f)
		}
	}
}

// pass ends the turn of w, if it has it. If w is done, it also leaves the queue.
func (s *service) pass(w *waiter, done bool) {
	q := &s.queue
	q.mu.Lock()
	if q.turn == w {
		q.turn = nil
	}
	if done {
		q.waiters.Remove(w.place)
		q.length.Store(int64(q.waiters.Len()))
	}
	q.mu.Unlock()
	s.wake()
}

// hasPlace reports whether a waiting client needn't wait longer: there is a place for it, or no
// backend to wait for.
func (s *service) hasPlace(b *backends) bool {
	if len(b.usable) == 0 {
		return true
	}
	return !s.full() && slices.ContainsFunc(b.usable, func(e *endpoint) bool { return !e.state.Full() })
}

// place returns a backend with a place for the client, and counts the connection there and in the
// service, until leave. If there is none, the client waits in the queue, if it may.
func (a *attempt) place() (*endpoint, error) {
	s := a.service
	if a.entered || s.queue.length.Load() == 0 || !a.waits() {
		if e, why := a.take(); !why.waits() || !a.waits() {
			return e, why.err()
		}
	}
	w := s.push(a.f)
	if w == nil {
		return nil, queueFull
	}
	defer s.pass(w, true)
	if a.patience == nil {
		a.patience = time.NewTimer(s.relay.Load().QueueTimeout)
	}
	for s.wake(); ; s.pass(w, false) {
		select {
		case <-w.turn:
			a.tried = a.tried[:0]
			if e, why := a.take(); !why.waits() {
				return e, why.err()
			}
		case <-a.patience.C:
			return nil, queueTimeout
		case <-a.f.ctx.Done():
			return nil, a.f.ctx.Err()
		}
	}
}

// waits reports whether the client may wait in the queue.
func (a *attempt) waits() bool { return a.mayWait && a.service.relay.Load().MaxQueue > 0 }

// take is place without a queue.
func (a *attempt) take() (*endpoint, reason) {
	if len(a.f.backends.Load().usable) == 0 {
		return nil, noBackend
	}
	if !a.entered && !a.service.enter() {
		return nil, serviceFull
	}
	a.entered = true
	full := false
	for {
		e := a.next()
		if e == nil {
			break
		}
		if e.enter() {
			return e, admitted
		}
		full = true // a simultaneous client took the last place
	}
	if full || slices.ContainsFunc(a.from.usable, func(e *endpoint) bool { return e.state.Full() }) {
		a.exit() // clients of other frontends may have a place
		return nil, backendsFull
	}
	return nil, unreachable
}

// exit ends the count of the client in its service.
func (a *attempt) exit() {
	if a.entered {
		a.entered = false
		a.service.leave()
	}
}
