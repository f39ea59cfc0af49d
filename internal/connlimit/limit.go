// Package connlimit bounds the open connections of listeners, of all clients together and of each client, so that
// neither slow nor many clients use up the descriptors that traffic needs, or keep others from an answer.
//
// Its input is accepted connections. Its output is those that may go on; it closes the others. It knows nothing of
// protocols: its user says when a connection has a request that keeps it, see [Conn.Busy].
package connlimit

import (
	"container/list"
	"net"
	"sync"
	"time"
)

// minIdle is how long a connection has no request before another one may replace it. The request of
// a younger one may be on its way.
const minIdle = time.Second

// Limit bounds the open connections of the listeners that share it. At the limit, a new connection replaces the one
// that has had no request for longest, and for at least a second. If there is none, the new one is in excess: its
// user answers that there are too many. A connection in excess without a request is replaced by the next one, so that
// silent clients can't keep others from an answer. At its own limit, a client replaces only its own connections.
//
// Set the fields before the first connection.
type Limit struct {
	Most    int                   // connections; 0: no limit
	Each    int                   // of one known client; 0: no limit
	Excess  int                   // how many beyond the limits are accepted, only for an answer; further ones are reset
	Refused func(ofClient bool)   // called for each connection beyond a limit; nil: not counted
	Who     func(net.Conn) Client // nil: ClientOf

	mu             sync.Mutex
	within, excess connections
}

// connections are those within the limit, or those in excess.
type connections struct {
	Tally
	silent list.List // of *Conn without a request, longest first
}

// Conn is a connection that counts until it is closed. It begins without a request.
type Conn struct {
	net.Conn
	Client  Client
	OfLimit bool // in excess because of its client's limit, not of that of all

	l     *Limit
	of    *connections  // of l; nil when c has ended
	place *list.Element // in of.silent; nil during a request
	since time.Time     // when it became silent
}

// Listener returns a listener that accepts what the limit admits, each a *Conn. Only the first Close has an effect:
// http.Server closes its listener, too.
func (l *Limit) Listener(of net.Listener) net.Listener { return &listener{Listener: of, limit: l} }

type listener struct {
	net.Listener
	limit *Limit
	close sync.Once
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if admitted := l.limit.Admit(c); admitted != nil {
			return admitted, nil
		}
	}
}

// Close implements net.Listener.
func (l *listener) Close() (err error) {
	l.close.Do(func() { err = l.Listener.Close() })
	return err
}

// Admit returns the connection for its user, or nil if it was reset.
func (l *Limit) Admit(c net.Conn) *Conn {
	who := l.Who
	if who == nil {
		who = ClientOf
	}
	out := &Conn{Conn: c, l: l, of: &l.within, Client: who(c)}
	l.mu.Lock()
	victim, refused := l.placeFor(out)
	if victim != nil {
		victim.remove()
	}
	admitted := out.of == &l.within || l.excess.Open < l.Excess
	if admitted {
		out.of.Add(out.Client, 1)
		out.beSilent()
	}
	l.mu.Unlock()
	if victim != nil {
		_ = victim.Conn.Close()
	}
	if refused && l.Refused != nil {
		l.Refused(out.OfLimit)
	}
	if !admitted {
		if t, is := c.(*net.TCPConn); is {
			_ = t.SetLinger(0) // no state stays behind
		}
		_ = c.Close()
		return nil
	}
	return out
}

// placeFor decides whether a new connection is within the limits or in excess, and returns the connection
// that it replaces, or nil. The caller holds mu.
func (l *Limit) placeFor(c *Conn) (victim *Conn, refused bool) {
	switch {
	case l.Each > 0 && c.Client != Client{} && l.within.Of(c.Client) >= l.Each:
		c.OfLimit = true
		victim = l.within.first(c.Client)
	case l.Most > 0 && l.within.Open >= l.Most:
		victim = l.within.first(Client{})
	default:
		return nil, false
	}
	if victim != nil && time.Since(victim.since) >= minIdle {
		return victim, false
	}
	c.of, victim = &l.excess, nil
	if l.Excess > 0 && l.excess.Open >= l.Excess {
		victim = l.excess.first(Client{})
	}
	return victim, true
}

// first returns the connection that has had no request for longest, or nil: of one client, or of any
// if who is the zero value. For one client, it costs O(connections).
func (cs *connections) first(who Client) *Conn {
	for e := cs.silent.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*Conn); who == (Client{}) || c.Client == who {
			return c
		}
	}
	return nil
}

// Open returns how many connections are within the limits, and how many of these have a request.
func (l *Limit) Open() (all, busy int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.within.Open, l.within.Open - l.within.silent.Len()
}

// Busy records that c has a request: no other connection replaces it.
func (c *Conn) Busy() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.place != nil {
		c.of.silent.Remove(c.place)
		c.place = nil
	}
}

// Silent records that c has no request.
func (c *Conn) Silent() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.of != nil && c.place == nil {
		c.beSilent()
	}
}

// InExcess reports whether c is beyond a limit.
func (c *Conn) InExcess() bool {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	return c.of == &c.l.excess
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.l.mu.Lock()
	c.remove()
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// beSilent is Silent for a caller that holds mu.
func (c *Conn) beSilent() { c.place, c.since = c.of.silent.PushBack(c), time.Now() }

// remove ends the count of c. The caller holds mu.
func (c *Conn) remove() {
	if c.of == nil {
		return
	}
	if c.place != nil {
		c.of.silent.Remove(c.place)
		c.place = nil
	}
	c.of.Add(c.Client, -1)
	c.of = nil
}
