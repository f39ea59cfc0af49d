package consul

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// about returns d, or a tenth more or less.
func about(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }

// slots bounds how many questions are under way, once Consul has said that it
// takes no more connections.
type slots struct {
	mu      sync.Mutex
	used    int
	limit   int // 0: none
	waiting []chan struct{}
	lowered time.Time
}

// Consul takes 200 connections from a host, unless configured otherwise, and
// other programs of the host want some of them. Where that is still too many, we
// take a quarter less each time.
const (
	firstLimit = 150
	minLimit   = 8
)

// take waits for a slot, and reports whether it came before the context ended.
func (s *slots) take(ctx context.Context) bool {
	s.mu.Lock()
	if s.limit == 0 || s.used < s.limit {
		s.used++
		s.mu.Unlock()
		return ctx.Err() == nil || s.giveBack()
	}
	turn := make(chan struct{})
	s.waiting = append(s.waiting, turn)
	s.mu.Unlock()
	select {
	case <-turn:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	for i, w := range s.waiting {
		if w == turn {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			s.mu.Unlock()
			return false
		}
	}
	s.mu.Unlock()
	return s.giveBack() // it came at the same time
}

// giveBack ends the use of a slot.
func (s *slots) giveBack() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	s.pass()
	return false
}

// pass gives what is free to who waits. The caller holds mu.
func (s *slots) pass() {
	for len(s.waiting) > 0 && (s.limit == 0 || s.used < s.limit) {
		close(s.waiting[0])
		s.waiting = s.waiting[1:]
		s.used++
	}
}

// busy lowers the limit, once for all questions that fail together, and reports
// whether it did.
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

// open forgets the limit.
func (s *slots) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = 0
	s.pass()
}

// bound returns the limit, 0 for none.
func (s *slots) bound() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limit
}
