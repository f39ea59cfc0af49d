package server

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/ironvip/ironvip/dns/message"
	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/connlimit"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/sockets"
)

// Limits of connections.
const (
	maxConnections = 64                     // open at once at one address
	maxOfClient    = 8                      // of one client
	idleTime       = 5 * time.Second        // between queries
	messageTime    = 2 * time.Second        // from the first byte of a query to its last one, and for sending a reply
	stopTime       = 200 * time.Millisecond // for queries under way when the socket ends
	maxTCPQuery    = 4096                   // bytes; a longer query is malformed
	minQuery       = 12                     // bytes, of which a reply can be made
)

// connections is the open connections of an address.
type connections struct {
	limit connlimit.Limit
	mu    sync.Mutex
	open  map[*connlimit.Conn]bool
	until time.Time // when all must have ended; zero: never

	turn sync.Mutex // held while a connection works; see turnConn
}

// add returns a connection that counts, or nil if there is no room for it.
func (c *connections) add(conn *net.TCPConn) *connlimit.Conn {
	limited := c.limit.Admit(conn)
	if limited == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[limited] = true
	if !c.until.IsZero() {
		_ = conn.SetDeadline(c.until)
	}
	return limited
}

// close closes a connection.
func (c *connections) close(conn *connlimit.Conn) {
	c.mu.Lock()
	delete(c.open, conn)
	c.mu.Unlock()
	conn.Close()
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
	running, ctx := parallel.NewGroup(ctx)
	running.Go(func() error { return s.acceptTCP(ctx, e, l, running, end) })
	return running.Wait()
}

// acceptTCP serves connections until the context ends.
func (s *Server) acceptTCP(ctx context.Context, e *endpoint, l *net.TCPListener, running parallel.Group, end func(sockets.Socket)) error {
	open := &connections{limit: connlimit.Limit{Most: maxConnections, Each: maxOfClient, Who: s.clientOf}, open: make(map[*connlimit.Conn]bool)}
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
		if !e.admits(s.policy.Load(), conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()) {
			s.counters.drop(NotAllowed)
			_ = conn.SetLinger(0) // no state stays behind
			conn.Close()
			continue
		}
		limited := open.add(conn)
		if limited == nil {
			s.counters.drop(ConnectionLimit)
			continue
		}
		s.counters.connections.Add(1)
		running.Go(func() error {
			defer s.counters.connections.Add(-1)
			defer open.close(limited)
			if c, err := newTurnConn(conn, &open.turn); err == nil {
				s.serveConn(c, limited, open)
			}
			return nil
		})
	}
}

// serveConn answers the queries of a connection, one after the other, each in its turn.
func (s *Server) serveConn(conn net.Conn, limited *connlimit.Conn, all *connections) {
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
		limited.Busy()
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
		limited.Silent()
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
