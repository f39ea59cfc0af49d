package server

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/ironvip/ironvip/dns/message"
	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/sockets"
)

// Limits of connections.
const (
	maxConnections = 64                     // open at once at one address
	maxPerSource   = 4                      // of one IPv4 address or IPv6 /64, except loopback: all local resolvers share that
	idleTime       = 5 * time.Second        // between queries
	messageTime    = 2 * time.Second        // from the first byte of a query to its last one, and for sending a reply
	stopTime       = 200 * time.Millisecond // for queries under way when the socket ends
	maxTCPQuery    = 4096                   // bytes; a longer query is malformed
	minQuery       = 12                     // bytes, of which a reply can be made
)

// connections is the open connections of an address.
type connections struct {
	mu       sync.Mutex
	open     map[*net.TCPConn]bool
	bySource map[netip.Prefix]int
	until    time.Time // when all must have ended; zero: never

	turn sync.Mutex // held while a connection works; see turnConn
}

// sourceOf returns what counts as one source.
func sourceOf(client netip.Addr) netip.Prefix {
	bits := 64
	if client.Is4() {
		bits = 32
	}
	p, _ := client.Prefix(bits)
	return p
}

// add reports whether there is room for a connection.
func (c *connections) add(conn *net.TCPConn, client netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	source := sourceOf(client)
	if len(c.open) >= maxConnections || !client.IsLoopback() && c.bySource[source] >= maxPerSource {
		return false
	}
	c.open[conn] = true
	c.bySource[source]++
	if !c.until.IsZero() {
		_ = conn.SetDeadline(c.until)
	}
	return true
}

func (c *connections) remove(conn *net.TCPConn, client netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, conn)
	source := sourceOf(client)
	if c.bySource[source]--; c.bySource[source] == 0 {
		delete(c.bySource, source)
	}
}

// end lets each connection end after the query that it has, or that is on its way, for up to some time.
func (c *connections) end(within time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = time.Now().Add(within)
	for conn := range c.open {
		_ = conn.SetDeadline(c.until)
	}
}

func (c *connections) ending() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.until.IsZero()
}

// deadline sets a deadline with set, no later than the end of all connections.
func (c *connections) deadline(set func(time.Time) error, at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.until.IsZero() && c.until.Before(at) {
		at = c.until
	}
	return set(at)
}

// serveTCP opens the TCP socket of an endpoint, and answers until the context ends.
func (s *Server) serveTCP(ctx context.Context, e *endpoint, end func(sockets.Socket)) error {
	l, err := s.Sockets.ListenTCP(ctx, e.at)
	if err != nil {
		return err
	}
	open := &connections{open: make(map[*net.TCPConn]bool), bySource: make(map[netip.Prefix]int)}
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer endWith(ctx, func() {
		open.end(s.stop)
		end(l)
	})()
	e.up()
	retry := backoff.Backoff{Lo: 5 * time.Millisecond, Hi: time.Second}
	for {
		conn, err := l.AcceptTCP()
		switch {
		case err == nil: // also one from before the end
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, net.ErrClosed):
			return err
		default: // no descriptors, or a client that is gone
			backoff.Sleep(ctx, retry.Next())
			continue
		}
		retry.Reset()
		client := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		reason := NotAllowed
		if e.admits(s.policy.Load(), client) {
			reason = ConnectionLimit
			if open.add(conn, client) {
				s.counters.connections.Add(1)
				tasks.Go(func() {
					if c, err := newTurnConn(conn, &open.turn); err == nil {
						s.serveConn(c, open)
					}
					conn.Close()
					open.remove(conn, client)
					s.counters.connections.Add(-1)
				})
				continue
			}
		}
		s.counters.drop(reason)
		_ = conn.SetLinger(0) // no state stays behind
		conn.Close()
	}
}

// serveConn answers the queries of a connection, one after the other, each in its turn.
func (s *Server) serveConn(conn net.Conn, all *connections) {
	in := make([]byte, 2+maxTCPQuery)
	var out []byte
	have := 0
	for {
		// The time for a query begins with its first byte, which can be here already.
		wait := s.idle
		if have > 0 {
			wait = s.message
		}
		need := 2
		for start := time.Now(); ; {
			if have >= 2 {
				need = 2 + int(binary.BigEndian.Uint16(in))
			}
			if have >= need {
				break
			}
			if need > len(in) && have >= 2+minQuery {
				s.refuse(conn, all, in[2:have])
				return
			}
			if all.deadline(conn.SetReadDeadline, start.Add(wait)) != nil {
				return
			}
			n, err := conn.Read(in[have:])
			if have == 0 && n > 0 {
				start, wait = time.Now(), s.message
			}
			if have += n; err != nil && n == 0 {
				if have > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
					s.counters.drop(Timeout)
				}
				return
			}
		}
		start := time.Now()
		var outcome zone.Outcome
		all.turn.Lock()
		out, outcome = s.Answerer.Answer(append(out[:0], 0, 0), in[2:need], true)
		all.turn.Unlock()
		if len(out) == 2 {
			s.counters.drop(Malformed)
			return
		}
		s.counters.answered(TCP, outcome)
		if !s.write(conn, all, out) {
			return
		}
		s.counters.took(time.Since(start), 1)
		if have = copy(in, in[need:have]); have == 0 && all.ending() {
			return
		}
	}
}

// refuse answers a query that is too long, of which only the begin was read.
func (s *Server) refuse(conn net.Conn, all *connections, query []byte) {
	out := message.Malformed([]byte{0, 0}, query)
	if len(out) == 2 {
		s.counters.drop(Malformed)
		return
	}
	s.counters.answered(TCP, malformed)
	s.write(conn, all, out)
}

// write sends a reply behind its length, for which out has room, and reports whether that worked.
func (s *Server) write(conn net.Conn, all *connections, out []byte) bool {
	binary.BigEndian.PutUint16(out, uint16(len(out)-2))
	if all.deadline(conn.SetWriteDeadline, time.Now().Add(s.message)) != nil {
		return false
	}
	_, err := conn.Write(out)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.counters.drop(Timeout)
	case err != nil:
		s.counters.drop(SendFailed)
	}
	return err == nil
}
