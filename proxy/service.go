package proxy

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// service is what all frontends of a service share.
type service struct {
	key   vip.ServiceKey
	users int // frontends; guarded by services.mu

	files   atomic.Int64 // descriptors of its connections and sessions
	refused refusals
	log     throttle
}

// services are the services that have frontends.
type services struct {
	mu sync.Mutex
	m  map[vip.ServiceKey]*service
}

// join returns the service of a new frontend.
func (t *Target) join(key vip.ServiceKey) *service {
	t.services.mu.Lock()
	defer t.services.mu.Unlock()
	s := t.services.m[key]
	if s == nil {
		s = &service{key: key}
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
		t.capacity.tenants.Store(int64(len(t.services.m)))
	}
}

// service returns a service with frontends, or nil.
func (t *Target) service(key vip.ServiceKey) *service {
	t.services.mu.Lock()
	defer t.services.mu.Unlock()
	return t.services.m[key]
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

// refuse counts a client of s that is refused, and logs it at most once a minute.
func (t *Target) refuse(s *service, why reason) {
	now := t.now()
	t.refused.add(why, now)
	s.refused.add(why, now)
	if why.limits() && s.log.pass(now, time.Minute) {
		t.log.Warn("clients refused", "service", s.key.String(), "reason", why.String(), "refused", s.refused.count(why),
			"used", t.capacity.used.Load(), "of", t.capacity.most.Load())
	}
}
