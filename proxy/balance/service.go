package balance

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ironvip/ironvip/proxy/passive"
	"github.com/ironvip/ironvip/vip"
)

// Service is what all frontends of a service share.
type Service struct {
	key   vip.ServiceKey
	users int // frontends; guarded by Balancer.mu

	files   atomic.Int64                      // descriptors of its connections and sessions
	open    atomic.Int64                      // connections and sessions that have a place; see enter
	relay   atomic.Pointer[vip.ProxySettings] // of the frontend that changed last
	queue   queue
	refused atomic.Pointer[refusals] // nil before the first one
	noted   atomic.Bool              // in Balancer.reported
	log     Throttle
	passive *passive.Service

	mu    sync.Mutex
	loads map[netip.AddrPort]*load // nil before the first client
}

// load is how many connections and sessions the frontends of a service have to one address.
type load struct {
	open  atomic.Int64
	users int // endpoints; guarded by service.mu
}

// newEndpoint returns an endpoint that shares its load with those of the same address.
func (s *Service) newEndpoint(addr netip.AddrPort) *Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loads == nil {
		s.loads = make(map[netip.AddrPort]*load)
	}
	l := s.loads[addr]
	if l == nil {
		l = &load{}
		s.loads[addr] = l
	}
	l.users++
	e := &Endpoint{Addr: addr, of: s}
	e.State.Shared = &l.open
	return e
}

// forget ends an endpoint's use of its load.
func (s *Service) forget(addr netip.AddrPort) {
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
func (s *Service) enter() bool {
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
func (s *Service) leave() {
	s.open.Add(-1)
	s.wake()
}

// full reports whether enter would return false.
func (s *Service) full() bool {
	most := int64(s.relay.Load().MaxConnections)
	return most > 0 && s.open.Load() >= most
}

// isFull reports whether the next client of s has no place, or has to let others go first.
func (s *Service) isFull() bool { return s.full() || s.queue.length.Load() > 0 }
