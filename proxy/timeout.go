package proxy

import (
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/proxy/loop"
)

// activity is the part of a connection that its timeouts depend on.
type activity struct {
	last atomic.Int64 // when bytes were last passed on in either direction, by Target.now
	half atomic.Bool  // one side has ended its direction
	kept bool         // the socket to the backend has, or soon gets, keep-alives; guarded by deadlines.mu
}

// keepAliveDelay bounds the time until the socket to a backend gets its keep-alives. Most connections end before, and
// save the calls.
const keepAliveDelay = int64(30 * time.Second)

// used records that bytes were passed on, and returns the time.
func (c *connection) used() int64 {
	now := c.f.target.balance.Now()
	c.last.Store(now)
	return now
}

// watch starts the timeouts of an established connection. The caller ends them with timeouts.remove.
func (c *connection) watch() {
	c.f.target.timeouts.Add(c, min(c.used()+keepAliveDelay, c.nextVisit()))
}

// halfClose starts the half-close timeout after one side has ended its direction.
func (c *connection) halfClose() {
	c.used()
	if !c.half.Swap(true) {
		c.f.target.timeouts.Move(c, c.nextVisit())
	}
}

// nextVisit returns when the connection is visited next if no more bytes are passed on.
func (c *connection) nextVisit() int64 {
	t := c.f.Settings()
	return c.last.Load() + int64(min(t.HalfCloseTimeout, t.IdleTimeout))
}

// Visit implements loop.Expirer. It uses the present timeouts of the service, so that a change applies
// to open connections, too.
//
// A side that ends while the other one accepts no bytes is found only here: the relay doesn't read
// from a side while it waits to pass on earlier bytes. Therefore, a connection is visited whenever
// it has been silent for the half-close timeout, which for 50,000 idle connections is 1,700 times a
// second with the default.
func (c *connection) Visit(now int64) (next int64, expired bool) {
	if !c.kept {
		c.kept = true
		go c.keepAlive() // it may wait
	}
	t := c.f.Settings()
	last := c.last.Load()
	half, idle := last+int64(t.HalfCloseTimeout), last+int64(t.IdleTimeout)
	switch {
	case now >= idle:
		return 0, true
	case now < half:
		return min(half, idle), false
	case c.half.Load():
		return 0, true
	case c.up.stuck.Load() && c.isEnded(c.client), c.down.stuck.Load() && c.isEnded(c.server):
		c.half.Store(true)
		return 0, true
	}
	return min(now+int64(t.HalfCloseTimeout), idle), false
}

// Expire implements loop.Expirer. It resets both sides, so that neither takes the end for that of a
// complete transfer.
func (c *connection) Expire() {
	c.Abort()
}

// keepAlive turns on the keep-alives of the socket to the backend.
func (c *connection) keepAlive() {
	c.io.Lock()
	defer c.io.Unlock()
	c.server.KeepAlive()
}

// isEnded reports whether a side has ended. While bytes are copied, it has not: the connection doesn't
// wait for that, because visit is called with the deadlines locked.
func (c *connection) isEnded(s *loop.Socket) bool {
	if !c.io.TryLock() {
		return false
	}
	defer c.io.Unlock()
	return s.IsEnded()
}
