package proxy

import (
	"net/netip"
	"sync"
	"time"

	"github.com/ironvip/ironvip/proxy/pick"
)

// How long a backend that refused is passed over: doubled for each failure in a
// row. Short, because a refusal costs a client nothing but the next attempt.
const (
	avoidFirst = 500 * time.Millisecond
	avoidMost  = 5 * time.Second
)

// link is a connection, session or attempt at one that an endpoint has.
type link interface{ abort() }

// endpoint is a backend of a frontend for as long as the frontend has it,
// whatever its weight: an update of the frontend keeps it, and so its
// connections.
type endpoint struct {
	addr  netip.AddrPort
	state pick.State
	tally tally

	mu       sync.Mutex
	links    map[link]struct{}
	gone     bool
	failures int // in a row
}

func newEndpoint(addr netip.AddrPort) *endpoint {
	return &endpoint{addr: addr, links: make(map[link]struct{})}
}

// leave gives back a connection that attempt.next has counted.
func (e *endpoint) leave() { e.state.Open.Add(-1) }

// add makes l one of the endpoint's links. It reports false, and does not, when
// the endpoint is gone.
func (e *endpoint) add(l link) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return false
	}
	e.links[l] = struct{}{}
	return true
}

// swap has next for a link in place of last, or reports false as add does.
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

// close ends everything the endpoint has, at once, and lets nothing new in.
func (e *endpoint) close() {
	e.mu.Lock()
	e.gone = true
	links := e.links
	e.links = nil
	e.mu.Unlock()
	for l := range links {
		l.abort()
	}
}

// failed has the endpoint passed over for a while from now (Target.now), and
// returns for how long and whether it was well before.
func (e *endpoint) failed(now int64) (avoid time.Duration, first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	avoid = min(avoidFirst<<min(e.failures, 10), avoidMost)
	e.failures++
	e.state.Avoid.Store(now + int64(avoid))
	return avoid, e.failures == 1
}

// works forgets earlier failures.
func (e *endpoint) works() {
	if e.state.Avoid.Load() == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failures = 0
	e.state.Avoid.Store(0)
}
