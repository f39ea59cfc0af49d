package proxy

import (
	"sync"
	"time"
)

// receivers are the goroutines that receive datagrams, of many frontends or of one. A receiver makes a turn
// with each datagram. While it waits for one, Go's poller has it, which the acceptPoller shows to work. The
// zero value is ready.
type receivers struct {
	mu  sync.Mutex
	all map[*turns]struct{}
}

// join adds a receiver. It calls begin of the turns when it has received a datagram, and end when it has
// passed it on. It calls leave at its end.
func (r *receivers) join() (t *turns, leave func()) {
	t = &turns{}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = make(map[*turns]struct{})
	}
	r.all[t] = struct{}{}
	return t, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.all, t)
	}
}

// lastTurn returns when the datagram was received that has been passed on for the longest time, and zero if
// none is being passed on. It costs O(receivers).
func (r *receivers) lastTurn() (last time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for t := range r.all {
		last = earlier(last, t.at())
	}
	return last
}
