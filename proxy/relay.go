package proxy

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/proxy/loop"
)

// direction is one of a connection's two streams. The connection's io guards it, except the atomics.
type direction struct {
	stream
	finished atomic.Bool // the end of the stream was passed on to dst
	over     bool        // nothing more is copied
	flushing bool        // dst gets what was written before both sides are reset
	readErr  error       // of the copy, after its end
	writeErr error
}

// fillsPerTurn bounds what one direction of a connection copies before the others of its loop.
const fillsPerTurn = 4

// relay begins to copy in both directions. The copying goes on in ready until both have ended. It
// passes on each end separately (half-close), and a reset as a reset.
func (c *connection) relay() {
	defer c.f.Contain(c.owner, c.Abort)
	c.watch()
	c.change(func() {
		c.up.dst, c.up.src = c.server, c.client
		c.down.dst, c.down.src = c.client, c.server
		c.relays = true
		if !c.client.IsOpen() { // aborted meanwhile
			c.cut()
			return
		}
		c.client.Readable = true // most clients have sent something by now: it needs no event
		c.copy()
		if !c.client.IsOpen() {
			return
		}
		if err := c.loop.Add(c.client, c); err != nil {
			c.f.complain("wait for a client", err)
			c.cut()
		}
	})
}

// Ready implements loop.Watcher.
func (c *connection) Ready(s *loop.Socket, events uint32) {
	defer c.f.Contain(c.owner, c.Abort)
	if c.turn(s, events) {
		c.finish()
	}
}

func (c *connection) turn(s *loop.Socket, events uint32) (ended bool) {
	c.io.Lock()
	defer c.io.Unlock()
	s.Note(events)
	c.copy()
	return c.settle()
}

// copy copies what it can without waiting. The caller holds io.
func (c *connection) copy() {
	c.pump(&c.up, &c.down)
	c.pump(&c.down, &c.up)
}

// pump runs one direction; back is the other.
func (c *connection) pump(d, back *direction) {
	for range fillsPerTurn {
		if d.over || d.flushing {
			return
		}
		if d.pending == 0 {
			switch n, err := d.fill(c.f.target.pipes); {
			case err != nil || n == 0 && d.src.Readable:
				c.ends(d, back, err, nil)
				return
			case n == 0:
				d.release(c.f.target.pipes)
				return
			}
		}
		for d.pending > 0 {
			n, err := d.drain()
			switch {
			case err != nil:
				c.ends(d, back, nil, err)
				return
			case n == 0:
				d.stuck.Store(true)
				d.dst.AwaitRoom()
				return
			}
			if d == &c.up {
				c.in(n)
			} else {
				c.out(n)
			}
			if d.stuck.Load() {
				d.stuck.Store(false)
			}
		}
		if !d.src.Readable {
			d.release(c.f.target.pipes)
			return
		}
	}
	d.src.Again()
}

// ends ends a direction. Both errors are nil if the source has ended normally.
func (c *connection) ends(d, back *direction, readErr, writeErr error) {
	d.readErr, d.writeErr = readErr, writeErr
	d.release(c.f.target.pipes)
	if d == &c.up && writeErr == nil && (readErr == nil || loop.IsReset(readErr)) {
		c.request.GiveUp(&c.endpoint.Passive)
	}
	switch {
	case readErr == nil && writeErr == nil && (back.finished.Load() || !d.src.Broken && back.writeErr == nil || !d.src.Dead()):
		d.finished.Store(true)
		d.over = true
		if !back.finished.Load() { // otherwise, settle closes both sides
			d.dst.CloseWrite()
			c.halfClose()
		}
	case writeErr != nil && d.dst.Dead():
		// The source may have sent data before it failed: the other direction reads this to its end
		// and then ends the connection.
		d.over = true
	default:
		// The source was reset; or it has ended, and the other direction found the reset. The
		// destination gets the data sent before and then a reset, because an end would make an
		// incomplete response look complete.
		d.flushing = true
		c.flush(d.dst, func() {
			d.flushing, d.over = false, true
			c.cut()
		})
	}
}

// settle closes both sides when both directions have ended. It reports whether finish must follow.
func (c *connection) settle() (ended bool) {
	if !c.relays || c.flushes || !c.up.over || !c.down.over {
		return false
	}
	if c.up.writeErr != nil && !c.flushed {
		// The backend answered and closed without reading everything, as for a rejected upload.
		// Closing a socket with unread bytes sends a reset, which can overtake the answer, so flush
		// the answer to the client first.
		c.flushes, c.flushed = true, true
		c.flush(c.client, func() { c.flushes = false })
		if c.flushes {
			return false
		}
	}
	c.relays = false
	c.client.Close()
	c.server.Close()
	return true
}

// cut resets both sides, and ends the directions that are still copied. The caller holds io.
func (c *connection) cut() {
	c.client.Reset()
	if c.server != nil {
		c.server.Reset()
	}
	for _, d := range []*direction{&c.up, &c.down} {
		if c.relays && !d.over && !d.flushing {
			d.readErr, d.over = net.ErrClosed, true
			d.release(c.f.target.pipes)
		}
	}
}

// abort resets both sides immediately. It is called from the deadlines, too, and from where all
// connections are ended; a panic ends neither.
func (c *connection) Abort() {
	defer c.f.Contain(c.owner, nil)
	c.change(c.cut)
}

// cutOff resets a socket that may be the backend's side.
func (c *connection) cutOff(s *loop.Socket) {
	c.io.Lock()
	defer c.io.Unlock()
	if s != nil {
		s.Reset()
	}
}

// change calls do with io, and ends the connection if nothing is copied any more.
func (c *connection) change(do func()) {
	if c.changed(do) {
		c.finish()
	}
}

func (c *connection) changed(do func()) (ended bool) {
	c.io.Lock()
	defer c.io.Unlock()
	do()
	return c.settle()
}

// flushTime bounds the wait of flush.
const flushTime = 2 * time.Second

// flush calls then when the peer of s has received everything written to it, or the connection has
// ended: at once, or later with io. The caller holds io, too.
func (c *connection) flush(s *loop.Socket, then func()) {
	if s.Unsent() == 0 {
		then()
		return
	}
	go func() {
		defer c.f.Contain(c.owner, c.Abort)
		wait := 200 * time.Microsecond
		for end := time.Now().Add(flushTime); c.isUnsent(s) && time.Now().Before(end); time.Sleep(wait) {
			wait = min(2*wait, 50*time.Millisecond)
		}
		c.change(then)
	}()
}

func (c *connection) isUnsent(s *loop.Socket) bool {
	c.io.Lock()
	defer c.io.Unlock()
	return s.Unsent() > 0
}

// finish gives back what the connection has, after its sockets were closed.
func (c *connection) finish() {
	defer c.f.Contain(c.owner, nil)
	defer c.leave(over)
	defer c.endpoint.Leave()
	defer c.endpoint.Remove(c)
	c.f.target.timeouts.Remove(c)
	c.judge()
}

// judge takes in a connection without an answer as evidence about the backend. A client that ends
// its direction first may be the cause of a reset.
func (c *connection) judge() {
	switch {
	case c.request.IsAnswered():
	case (loop.IsReset(c.down.readErr) || loop.IsReset(c.up.writeErr)) && !c.up.finished.Load():
		c.endpoint.Passive.Reset()
	case c.down.finished.Load():
		c.endpoint.Passive.Closed()
	case c.up.finished.Load():
		c.request.GiveUp(&c.endpoint.Passive)
	}
}
