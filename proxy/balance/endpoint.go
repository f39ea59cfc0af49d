package balance

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/passive"
	"github.com/ironvip/ironvip/proxy/pick"
)

// Link is a connection, a session, or an attempt at one, of an endpoint.
type Link interface {
	// Abort ends the link without waiting, because the endpoint is closed.
	Abort()
	// Describe returns the connection, without its frontend and backend. now is that of the Balancer.
	Describe(now int64) reconcile.Connection
}

// endpoints are those of a frontend, in the order of their addresses.
type endpoints []*Endpoint

// of returns the endpoint of an address, or nil.
func (all endpoints) of(addr netip.AddrPort) *Endpoint {
	if i, found := all.index(addr); found {
		return all[i]
	}
	return nil
}

// index returns the index of the endpoint of an address, if there is one.
func (all endpoints) index(addr netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(all, addr, func(e *Endpoint, addr netip.AddrPort) int { return e.Addr.Compare(addr) })
}

// Endpoint is a backend of a frontend, with any weight. An update of the frontend keeps it with its
// connections.
type Endpoint struct {
	Addr    netip.AddrPort
	Passive passive.Member

	of    *Service   // at its creation
	State pick.State // how many clients have a place, and how many may; the scheduler reads it
	tally tally

	gone  bool              // guarded by mu, as the next field
	links map[Link]struct{} // nil before the first one
	mu    sync.Mutex
}

// enter counts a connection that Attempt.next has counted for the limit, too. If the backend is
// full, it counts it for neither and returns false.
func (e *Endpoint) enter() bool {
	for {
		n, most := e.State.Shared.Load(), e.State.Most.Load()
		if most > 0 && n >= most {
			e.State.Open.Add(-1)
			return false
		}
		if e.State.Shared.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Leave gives back the place of a client at the backend, after its connection.
func (e *Endpoint) Leave() {
	e.State.Open.Add(-1)
	e.State.Shared.Add(-1)
}

// Add adds l to the endpoint's links. It returns false if the endpoint is closed.
func (e *Endpoint) Add(l Link) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return false
	}
	if e.links == nil {
		e.links = make(map[Link]struct{})
	}
	e.links[l] = struct{}{}
	return true
}

// Swap replaces the link last by next. It returns false if the endpoint is closed.
func (e *Endpoint) Swap(last, next Link) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return false
	}
	delete(e.links, last)
	e.links[next] = struct{}{}
	return true
}

// Remove removes a link, if it is there.
func (e *Endpoint) Remove(l Link) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.links, l)
}

// Links returns the links.
func (e *Endpoint) Links() []Link {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.links))
}

// close ends all links immediately and accepts no new ones.
func (e *Endpoint) close() {
	e.of.forget(e.Addr)
	e.Passive.Leave()
	e.mu.Lock()
	e.gone = true
	links := e.links
	e.links = nil
	e.mu.Unlock()
	for l := range links {
		l.Abort()
	}
}
