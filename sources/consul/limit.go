package consul

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// about returns d with a jitter of up to a tenth in both directions.
func about(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }

// slots limits the concurrent queries after Consul has refused a connection.
type slots struct {
	mu      sync.Mutex
	used    int
	limit   int // 0: no limit
	waiting []chan struct{}
	lowered time.Time
}

// Consul accepts 200 connections from a host by default, and other programs of the host need some
// of them. If firstLimit is still too high, each refusal lowers the limit by a quarter.
const (
	firstLimit = 150
	minLimit   = 8
)

// take waits for a slot and reports whether it got one before the context ended.
func (s *slots) take(ctx context.Context) bool {
	s.mu.Lock()
	if s.limit == 0 || s.used < s.limit {
		s.used++
		s.mu.Unlock()
		return ctx.Err() == nil || s.giveBack()
	}
	granted := make(chan struct{})
	s.waiting = append(s.waiting, granted)
	s.mu.Unlock()
	select {
	case <-granted:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	for i, w := range s.waiting {
		if w == granted {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			s.mu.Unlock()
			return false
		}
	}
	s.mu.Unlock()
	return s.giveBack() // pass granted the slot at the same time
}

// giveBack releases a slot. It returns false for the callers in take.
func (s *slots) giveBack() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	s.pass()
	return false
}

// pass grants free slots to the waiting callers. The caller holds mu.
func (s *slots) pass() {
	for len(s.waiting) > 0 && (s.limit == 0 || s.used < s.limit) {
		close(s.waiting[0])
		s.waiting = s.waiting[1:]
		s.used++
	}
}

// busy lowers the limit and reports whether it did. Queries that fail within a second lower it
// once.
func (s *slots) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.lowered) < time.Second {
		return false
	}
	s.lowered = now
	s.limit = max(minLimit, min(firstLimit, s.used*3/4))
	return true
}

// open removes the limit.
func (s *slots) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = 0
	s.pass()
}

// bound returns the limit; 0: none.
func (s *slots) bound() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limit
}
