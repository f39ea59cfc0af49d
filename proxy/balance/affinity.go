package balance

import (
	"container/list"
	"net/netip"
	"sync"
	"time"
)

// maxAffinity bounds the clients that one frontend remembers, which take about 13 MiB.
const maxAffinity = 1 << 16

// affinity remembers the backend of each client address until the timeout after the end of its last
// connection. It holds at most limit clients. When it is full, it forgets the client that has been
// idle longest; if none is idle, it doesn't remember a new client. A claim removes the clients whose
// timeout has passed. The methods may be called concurrently; each costs O(1) on average.
type affinity struct {
	limit int

	mu      sync.Mutex
	timeout time.Duration
	clients map[netip.Addr]*affine
	idle    list.List // of *affine without connections, longest idle first
}

// affine is one client's affinity.
type affine struct {
	client  netip.Addr
	backend netip.AddrPort
	open    int           // number of connections
	since   time.Time     // end of the last connection
	place   *list.Element // in idle; nil while a connection is open
}

func newAffinity(timeout time.Duration, limit int) *affinity {
	return &affinity{limit: limit, timeout: timeout, clients: make(map[netip.Addr]*affine)}
}

// claim returns the client's backend if usable accepts it, else the backend that choose returns. It
// counts a connection of the client. Two simultaneous first connections get the same backend. The
// caller passes the entry to release afterwards. The entry is nil if choose found no backend or the
// table has no room. Both functions are called with the table locked.
func (a *affinity) claim(client netip.Addr, usable func(netip.AddrPort) bool, choose func() (netip.AddrPort, bool)) (*affine, netip.AddrPort) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Expire()
	e := a.clients[client]
	if e == nil || !usable(e.backend) {
		backend, ok := choose()
		if !ok {
			return nil, netip.AddrPort{}
		}
		if e == nil {
			if e = a.enter(client); e == nil {
				return nil, backend
			}
		}
		e.backend = backend
	}
	if e.place != nil {
		a.idle.Remove(e.place)
		e.place = nil
	}
	e.open++
	return e, e.backend
}

// enter creates an entry, or returns nil if there is no room.
func (a *affinity) enter(client netip.Addr) *affine {
	if len(a.clients) >= a.limit {
		oldest := a.idle.Front()
		if oldest == nil {
			return nil
		}
		a.forget(oldest)
	}
	e := &affine{client: client}
	a.clients[client] = e
	return e
}

func (a *affinity) forget(place *list.Element) {
	delete(a.clients, a.idle.Remove(place).(*affine).client)
}

// move changes the entry's backend after the claimed one failed.
func (a *affinity) move(e *affine, backend netip.AddrPort) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e.backend = backend
}

// release ends one connection that claim counted.
func (a *affinity) release(e *affine) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.open--; e.open > 0 {
		return
	}
	e.since = time.Now()
	e.place = a.idle.PushBack(e)
}

// expire removes the clients whose timeout has passed. The caller holds mu.
func (a *affinity) Expire() {
	for first := a.idle.Front(); first != nil && time.Since(first.Value.(*affine).since) >= a.timeout; first = a.idle.Front() {
		a.forget(first)
	}
}

// setTimeout changes the timeout, also for clients that are already idle.
func (a *affinity) setTimeout(timeout time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timeout = timeout
}
