package proxy

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The descriptors of a client: its socket and the one to its backend; a session has only the
// second.
const (
	clientFiles     = 1
	backendFiles    = 1
	connectionFiles = clientFiles + backendFiles
	sessionFiles    = backendFiles
)

// capacity counts the descriptors of this host's connections and sessions against a bound. Taking
// and giving cost O(1) without a lock.
type capacity struct {
	most    atomic.Int64 // without those of the listeners
	used    atomic.Int64
	tenants atomic.Int64 // services with frontends

	connections, sessions atomic.Int64 // open
}

// take takes files descriptors for a client of s, or returns the reason to refuse the client.
//
// A service may hold at most three times as many descriptors as are then left (dynamic thresholds,
// as in the shared buffers of switches). This never refuses while a quarter is left, so any service
// can use three quarters. In the last quarter, it refuses those that hold the most and admits the
// others: a single service leaves a quarter, two that take all they get leave a seventh, ten leave
// 1/31. A service is alone if no other one has a frontend; it may use everything.
func (c *capacity) take(s *service, files int64) reason {
	left := c.most.Load() - c.used.Add(files)
	held := s.files.Add(files)
	switch {
	case left < 0:
		c.give(s, files)
		return overCapacity
	case held > 3*left && held > files && c.tenants.Load() > 1:
		c.give(s, files)
		return overReserve
	}
	return admitted
}

func (c *capacity) give(s *service, files int64) {
	s.files.Add(-files)
	c.used.Add(-files)
}

// throttle allows one message in a time, for errors that a flood of clients could repeat.
type throttle struct{ next atomic.Int64 }

func (t *throttle) pass(now int64, every time.Duration) bool {
	next := t.next.Load()
	return now >= next && t.next.CompareAndSwap(next, now+int64(every))
}

// reserveListener reserves the descriptor of a listening socket. It fails like an exhausted process if listeners have used
// three quarters of the descriptors for traffic.
func (t *Target) reserveListener() error {
	if t.listening.Add(1) > int64(max(t.opts.Files/4*3, 1)) {
		t.listening.Add(-1)
		return unix.EMFILE
	}
	t.capacity.most.Add(-1)
	return nil
}

// releaseListener reverts reserveListener.
func (t *Target) releaseListener() {
	t.listening.Add(-1)
	t.capacity.most.Add(1)
}
