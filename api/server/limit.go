package server

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// excessConnections is how many connections beyond the limit of a listener are accepted, only to
// answer that they are too many.
const excessConnections = 8

// minIdle is how long a connection has no request before another one may replace it. The request of
// a younger one may be on its way.
const minIdle = time.Second

// Refusals counts refused callers.
type Refusals struct {
	n    atomic.Uint64
	last atomic.Pointer[time.Time]
}

func (r *Refusals) add() {
	now := time.Now()
	r.n.Add(1)
	r.last.Store(&now)
}

// Count returns the number of callers since the start.
func (r *Refusals) Count() uint64 { return r.n.Load() }

// Within reports whether a caller was refused in the last d.
func (r *Refusals) Within(d time.Duration) bool {
	last := r.last.Load()
	return last != nil && time.Since(*last) < d
}

// limitedListener bounds the open connections of a listener, so that callers can't use up the
// descriptors that traffic needs. At the limit, a new connection replaces the one that has had no
// request for longest, and for at least minIdle. If there is none, the new one is in excess: its
// request gets the answer 503. A connection in excess without a request is replaced by the next
// one, so that silent callers can't keep others from an answer.
type limitedListener struct {
	net.Listener
	s    *Server
	most int // 0: no limit

	mu             sync.Mutex
	within, excess connections
}

// connections are those within the limit, or those in excess.
type connections struct {
	open   int
	silent list.List // of *limitedConn without a request, longest first
}

// limitedConn is a connection of a limitedListener.
type limitedConn struct {
	net.Conn
	l     *limitedListener
	of    *connections  // of l; nil when c has ended
	place *list.Element // in of.silent; nil during a request
	since time.Time     // when it became silent
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if accepted := l.add(c); accepted != nil {
			return accepted, nil
		}
	}
}

// add returns the connection for the server, or nil if it was closed.
func (l *limitedListener) add(c net.Conn) *limitedConn {
	l.mu.Lock()
	of, victim := &l.within, (*limitedConn)(nil)
	if l.most > 0 && l.within.open >= l.most {
		if victim = l.within.first(); victim == nil || time.Since(victim.since) < minIdle {
			l.s.RefusedConnections.add()
			of, victim = &l.excess, nil
			if l.excess.open >= excessConnections {
				victim = l.excess.first()
			}
		}
	}
	if victim != nil {
		victim.remove()
	}
	var out *limitedConn
	if of == &l.within || of.open < excessConnections {
		out = &limitedConn{Conn: c, l: l, of: of}
		of.open++
		out.silent()
	}
	l.mu.Unlock()
	if victim != nil {
		_ = victim.Conn.Close()
	}
	if out == nil {
		_ = c.Close()
	}
	return out
}

// first returns the connection that has had no request for longest, or nil.
func (cs *connections) first() *limitedConn {
	if e := cs.silent.Front(); e != nil {
		return e.Value.(*limitedConn)
	}
	return nil
}

// silent records that c has no request. The caller holds mu.
func (c *limitedConn) silent() { c.place, c.since = c.of.silent.PushBack(c), time.Now() }

// busy records that c has a request. The caller holds mu.
func (c *limitedConn) busy() {
	c.of.silent.Remove(c.place)
	c.place = nil
}

// remove ends the count of c. The caller holds mu.
func (c *limitedConn) remove() {
	if c.of == nil {
		return
	}
	if c.place != nil {
		c.busy()
	}
	c.of.open--
	c.of = nil
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.l.mu.Lock()
	c.remove()
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// setState is a ConnState of http.Server. It records which connections have a request.
func (l *limitedListener) setState(conn net.Conn, state http.ConnState) {
	c, ok := plain(conn).(*limitedConn)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.of == nil:
	case state == http.StateActive && c.place != nil:
		c.busy()
	case state == http.StateIdle && c.place == nil:
		c.silent()
	}
}

type excessKey struct{}

// withConnection is a ConnContext of http.Server: see withPeer. It also marks the requests of
// connections beyond the limit.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	c = plain(c)
	if limited, ok := c.(*limitedConn); ok {
		if limited.inExcess() {
			ctx = context.WithValue(ctx, excessKey{}, true)
		}
		c = limited.Conn
	}
	return withPeer(ctx, c)
}

// plain returns the connection below TLS.
func plain(c net.Conn) net.Conn {
	if t, is := c.(*tls.Conn); is {
		return t.NetConn()
	}
	return c
}

// inExcess reports whether c is beyond the limit.
func (c *limitedConn) inExcess() bool {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	return c.of == &c.l.excess
}

// excess returns the problem of a request on a connection beyond the limit, or nil. The connection
// is closed after the answer.
func excess(w http.ResponseWriter, r *http.Request) *Problem {
	if r.Context().Value(excessKey{}) == nil {
		return nil
	}
	w.Header().Set("Connection", "close")
	return Refuse(http.StatusServiceUnavailable, v1.CodeOverloaded, "too many connections to the API",
		"try again later; close connections and event streams that are not needed").RetryAfter(1)
}

// MostStreams returns how many responses without an end may be open: as many as half of the
// connections of a listener, so that other requests are answered. 0: no bound.
func (s *Server) MostStreams() int {
	if s.Connections == 0 {
		return 0
	}
	return max(s.Connections/2, 1)
}

// OpenStream counts a response without an end. The caller calls done at its end.
func (s *Server) OpenStream() (done func(), err error) {
	if n, most := s.streams.Add(1), s.MostStreams(); most > 0 && n > int64(most) {
		s.streams.Add(-1)
		s.RefusedStreams.add()
		return nil, Refuse(http.StatusServiceUnavailable, v1.CodeOverloaded, "too many event streams",
			"try again later, or list events: the same address without Accept: text/event-stream").RetryAfter(5)
	}
	return sync.OnceFunc(func() { s.streams.Add(-1) }), nil
}
