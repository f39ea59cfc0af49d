package proxy

import (
	"net/netip"
	"sync"

	"github.com/ironvip/ironvip/vip"
)

// relayed are the connections that an earlier dataplane still relays after this one has taken over
// its listeners. They count for the limits, the scheduler and the drains of their backends like
// connections of this Target. When a backend is removed, the earlier dataplane must end them. A nil
// relayed has none.
type relayed struct {
	end func(vip.FrontendKey, netip.AddrPort)

	mu        sync.Mutex
	counts    map[backendKey]int64
	endpoints map[backendKey]*endpoint // of this Target
}

type backendKey struct {
	frontend vip.FrontendKey
	addr     netip.AddrPort
}

func newRelayed(end func(vip.FrontendKey, netip.AddrPort)) *relayed {
	if end == nil {
		return nil
	}
	return &relayed{end: end, counts: make(map[backendKey]int64), endpoints: make(map[backendKey]*endpoint)}
}

func (e *endpoint) key() backendKey { return backendKey{e.frontend.key, e.addr} }

// count adds n of them to the counts of their endpoint.
func (e *endpoint) count(n int64) {
	e.state.Open.Add(n)
	e.state.Shared.Add(n)
	e.of.open.Add(n)
	if n < 0 {
		e.of.wake()
	}
}

// join adds a new endpoint.
func (r *relayed) join(e *endpoint) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endpoints == nil {
		return // they have ended
	}
	r.endpoints[e.key()] = e
	e.count(r.counts[e.key()])
}

// part removes a closed endpoint. Their connections remain, for an endpoint that replaces it.
func (r *relayed) part(e *endpoint) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endpoints[e.key()] == e {
		delete(r.endpoints, e.key())
		e.count(-r.counts[e.key()])
	}
}

// drop makes the earlier dataplane end the connections to a backend that was removed.
func (r *relayed) drop(e *endpoint) {
	if r == nil {
		return
	}
	r.mu.Lock()
	n := r.counts[e.key()]
	delete(r.counts, e.key())
	r.mu.Unlock()
	if n > 0 {
		r.end(e.frontend.key, e.addr)
	}
}

// set sets the number of connections to one backend.
func (r *relayed) set(k backendKey, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endpoints == nil {
		return
	}
	if e := r.endpoints[k]; e != nil {
		e.count(n - r.counts[k])
	}
	if r.counts[k] = n; n == 0 {
		delete(r.counts, k)
	}
}

// ended ends all counts.
func (r *relayed) ended() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, n := range r.counts {
		if e := r.endpoints[k]; e != nil {
			e.count(-n)
		}
	}
	r.counts, r.endpoints = nil, nil
}

// Relayed sets how many connections and sessions an earlier dataplane relays for a backend. It
// requires Options.EndRelayed, and may be called concurrently with all other methods.
func (t *Target) Relayed(frontend vip.FrontendKey, backend netip.AddrPort, n int) {
	t.relayed.set(backendKey{frontend, backend}, int64(max(n, 0)))
}

// RelayedEnded reports that the earlier dataplane has none left.
func (t *Target) RelayedEnded() { t.relayed.ended() }

// own returns how many connections and sessions of an endpoint this Target relays itself.
func (r *relayed) own(e *endpoint) int64 {
	if r == nil {
		return e.state.Open.Load()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := e.state.Open.Load()
	if r.endpoints[e.key()] == e {
		n -= r.counts[e.key()]
	}
	return n
}

// Own returns what Connections does, without relayed ones.
func (t *Target) Own(key vip.FrontendKey) map[netip.AddrPort]int {
	return t.openOf(key, t.relayed.own)
}

// Busy returns the frontends with connections or sessions, including relayed ones. Final says that
// no others will have any, because Drain has ended the listeners. It costs O(frontends and
// endpoints).
func (t *Target) Busy() (keys []vip.FrontendKey, final bool) {
	final = t.drains.Load()
	t.mu.RLock()
	defer t.mu.RUnlock()
	for key, f := range t.frontends {
		for _, e := range f.backends.Load().all {
			if e.state.Open.Load() > 0 {
				keys = append(keys, key)
				break
			}
		}
	}
	return keys, final
}

// Abort ends the connections and sessions to a backend, except relayed ones. It may be called
// concurrently with all other methods.
func (t *Target) Abort(frontend vip.FrontendKey, backend netip.AddrPort) {
	f := t.frontend(frontend)
	if f == nil {
		return
	}
	if e := f.backends.Load().all.of(backend); e != nil {
		e.abort()
	}
}
