package proxy

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/proxy/passive"
	"github.com/ironvip/ironvip/vip"
)

// service is what all frontends of a service share.
type service struct {
	key   vip.ServiceKey
	users int // frontends; guarded by services.mu

	files   atomic.Int64                      // descriptors of its connections and sessions
	open    atomic.Int64                      // connections and sessions that have a place; see enter
	relay   atomic.Pointer[vip.ProxySettings] // of the frontend that changed last
	queue   queue
	refused refusals
	noted   atomic.Bool // in services.reported
	log     throttle
	passive *passive.Service

	mu    sync.Mutex
	loads map[netip.AddrPort]*load
}

// load is how many connections and sessions the frontends of a service have to one address.
type load struct {
	open  atomic.Int64
	users int // endpoints; guarded by service.mu
}

// services are the services that have frontends.
type services struct {
	mu       sync.Mutex
	m        map[vip.ServiceKey]*service
	reported map[*service]struct{} // those that have, or had, limits, or have refused clients
}

// report adds a service to those of which a Report has something.
func (s *services) report(one *service) {
	if one.noted.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.noted.Store(true); s.m[one.key] == one { // else it is gone
		s.reported[one] = struct{}{}
	}
}

// join returns the service of a new frontend, which has these settings if it is new.
func (t *Target) join(key vip.ServiceKey, r *vip.ProxySettings) *service {
	t.services.mu.Lock()
	defer t.services.mu.Unlock()
	s := t.services.m[key]
	if s == nil {
		s = &service{key: key, loads: make(map[netip.AddrPort]*load)}
		s.relay.Store(r)
		s.passive = passive.NewService(s.wake)
		t.services.m[key] = s
		t.capacity.tenants.Store(int64(len(t.services.m)))
	}
	s.users++
	return s
}

// part ends a frontend's use of s.
func (t *Target) part(s *service) {
	t.services.mu.Lock()
	defer t.services.mu.Unlock()
	if s.users--; s.users == 0 {
		delete(t.services.m, s.key)
		delete(t.services.reported, s)
		t.capacity.tenants.Store(int64(len(t.services.m)))
	}
}

// largest returns the service that holds the most descriptors. It costs O(services).
func (t *Target) largest() (key vip.ServiceKey, files int64) {
	t.services.mu.Lock()
	defer t.services.mu.Unlock()
	for k, s := range t.services.m {
		if n := s.files.Load(); n > files {
			key, files = k, n
		}
	}
	return key, files
}

// newEndpoint returns an endpoint that shares its load with those of the same address.
func (s *service) newEndpoint(addr netip.AddrPort) *endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.loads[addr]
	if l == nil {
		l = &load{}
		s.loads[addr] = l
	}
	l.users++
	e := &endpoint{addr: addr, of: s}
	e.state.Shared = &l.open
	return e
}

// forget ends an endpoint's use of its load.
func (s *service) forget(addr netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.loads[addr]; l != nil {
		if l.users--; l.users == 0 {
			delete(s.loads, addr)
		}
	}
}

// enter counts a connection or session that may have a place at a backend. It returns false if the
// service has as many as it may.
func (s *service) enter() bool {
	for {
		n, most := s.open.Load(), int64(s.relay.Load().MaxConnections)
		if most > 0 && n >= most {
			return false
		}
		if s.open.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave ends what enter has counted.
func (s *service) leave() {
	s.open.Add(-1)
	s.wake()
}

// full reports whether enter would return false.
func (s *service) full() bool {
	most := int64(s.relay.Load().MaxConnections)
	return most > 0 && s.open.Load() >= most
}

// isFull reports whether the next client of s has no place, or has to let others go first.
func (s *service) isFull() bool { return s.full() || s.queue.length.Load() > 0 }

// refuse counts a client of s that is refused, and logs it at most once a minute.
func (t *Target) refuse(s *service, why reason) {
	now := t.now()
	t.refused.add(why, now)
	s.refused.add(why, now)
	t.services.report(s)
	if why.limits() && s.log.pass(now, time.Minute) {
		t.log.Warn("clients refused", "service", s.key.String(), "reason", why.String(), "because", reasonTexts[why].meaning, "refused", s.refused.count(why))
	}
}
