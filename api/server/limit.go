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
	each int // of one client; 0: no limit

	closing sync.Once

	mu             sync.Mutex
	within, excess connections
}

// connections are those within the limit, or those in excess.
type connections struct {
	tally
	silent list.List // of *limitedConn without a request, longest first
}

// limitedConn is a connection of a limitedListener.
type limitedConn struct {
	net.Conn
	l     *limitedListener
	peer  *peer         // nil: unknown
	mine  bool          // in excess because of its client's limit
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

// Close implements net.Listener. Only the first call has an effect: http.Server closes it, too.
func (l *limitedListener) Close() (err error) {
	l.closing.Do(func() { err = l.Listener.Close() })
	return err
}

// add returns the connection for the server, or nil if it was closed.
func (l *limitedListener) add(c net.Conn) *limitedConn {
	noticeLoss(c, lossTimeout)
	out := &limitedConn{Conn: c, l: l, of: &l.within, peer: newPeer(c)}
	l.mu.Lock()
	victim := l.place(out)
	if victim != nil {
		victim.remove()
	}
	admitted := out.of == &l.within || l.excess.open < excessConnections
	if admitted {
		out.of.count(out.client(), 1)
		out.silent()
	}
	l.mu.Unlock()
	if victim != nil {
		_ = victim.Conn.Close()
	}
	if !admitted {
		_ = c.Close()
		return nil
	}
	return out
}

// place decides whether a new connection is within the limits or in excess, and returns the connection
// that it replaces, or nil. At its own limit, a client replaces only its own connections. The caller
// holds mu.
func (l *limitedListener) place(c *limitedConn) (victim *limitedConn) {
	who := c.client()
	switch {
	case l.each > 0 && who != client{} && l.within.of[who] >= l.each:
		c.mine = true
		victim = l.within.first(who)
	case l.most > 0 && l.within.open >= l.most:
		victim = l.within.first(client{})
	default:
		return nil
	}
	if victim != nil && time.Since(victim.since) >= minIdle {
		return victim
	}
	if c.mine {
		l.s.RefusedOfClients.add()
	} else {
		l.s.RefusedConnections.add()
	}
	c.of, victim = &l.excess, nil
	if l.excess.open >= excessConnections {
		victim = l.excess.first(client{})
	}
	return victim
}

// first returns the connection that has had no request for longest, or nil: of one client, or of any
// if who is the zero value. For one client, it costs O(connections).
func (cs *connections) first(who client) *limitedConn {
	for e := cs.silent.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*limitedConn); who == (client{}) || c.client() == who {
			return c
		}
	}
	return nil
}

func (c *limitedConn) client() client {
	if c.peer == nil {
		return client{}
	}
	return c.peer.client
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
	c.of.count(c.client(), -1)
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

// withConnection is a ConnContext of http.Server. It records the peer of the connection in the context
// of its requests, and marks the requests of connections beyond a limit.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	limited, ok := plain(c).(*limitedConn)
	if !ok {
		return ctx
	}
	if limited.inExcess() {
		ctx = context.WithValue(ctx, excessKey{}, limited)
	}
	if limited.peer == nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, limited.peer)
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
	c, is := r.Context().Value(excessKey{}).(*limitedConn)
	if !is {
		return nil
	}
	w.Header().Set("Connection", "close")
	detail := "too many connections to the API"
	if c.mine {
		detail += " of " + c.client().String()
	}
	return Refuse(http.StatusServiceUnavailable, v1.CodeOverloaded, detail,
		"try again later; close connections and streams that are not needed").RetryAfter(1)
}
