package proxy

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/ironvip/ironvip/proxy/passive"
	"github.com/ironvip/ironvip/proxy/pick"
)

// link is a connection, a session, or an attempt at one, of an endpoint.
type link interface{ abort() }

// endpoints are those of a frontend, in the order of their addresses.
type endpoints []*endpoint

// of returns the endpoint of an address, or nil.
func (all endpoints) of(addr netip.AddrPort) *endpoint {
	if i, found := all.index(addr); found {
		return all[i]
	}
	return nil
}

// index returns the index of the endpoint of an address, if there is one.
func (all endpoints) index(addr netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(all, addr, func(e *endpoint, addr netip.AddrPort) int { return e.addr.Compare(addr) })
}

// endpoint is a backend of a frontend, with any weight. An update of the frontend keeps it with its
// connections.
type endpoint struct {
	addr  netip.AddrPort
	of    *service // at its creation
	state pick.State
	tally tally

	passive passive.Member

	gone  bool              // guarded by mu, as the next field
	links map[link]struct{} // nil before the first one
	mu    sync.Mutex
}

// enter counts a connection that attempt.next has counted for the limit, too. If the backend is
// full, it counts it for neither and returns false.
func (e *endpoint) enter() bool {
	for {
		n, most := e.state.Shared.Load(), e.state.Most.Load()
		if most > 0 && n >= most {
			e.state.Open.Add(-1)
			return false
		}
		if e.state.Shared.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave ends a connection that enter has counted.
func (e *endpoint) leave() {
	e.state.Open.Add(-1)
	e.state.Shared.Add(-1)
}

// add adds l to the endpoint's links. It returns false if the endpoint is closed.
func (e *endpoint) add(l link) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return false
	}
	if e.links == nil {
		e.links = make(map[link]struct{})
	}
	e.links[l] = struct{}{}
	return true
}

// swap replaces the link last by next. It returns false if the endpoint is closed.
func (e *endpoint) swap(last, next link) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return false
	}
	delete(e.links, last)
	e.links[next] = struct{}{}
	return true
}

func (e *endpoint) remove(l link) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.links, l)
}

// close ends all links immediately and accepts no new ones.
func (e *endpoint) close() {
	e.of.forget(e.addr)
	e.passive.Leave()
	e.mu.Lock()
	e.gone = true
	links := e.links
	e.links = nil
	e.mu.Unlock()
	for l := range links {
		l.abort()
	}
}
