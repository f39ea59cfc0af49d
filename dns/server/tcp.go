package server

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

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
)

// maxQuery is in bytes. The connection of a longer query is closed, and the end of a longer datagram is
// not read. Queries are below 512 bytes, with rare exceptions for padding.
const maxQuery = 4096

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
	ended := sync.OnceFunc(func() {
		open.end(s.stop)
		end(l)
	})
	defer ended()
	defer context.AfterFunc(ctx, ended)()
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
	in := bufio.NewReader(conn)
	for {
		query, err := s.read(conn, in, all)
		if err != nil {
			return
		}
		limited.Busy()
		start := time.Now()
		all.turn.Lock()
		reply, outcome := s.Answerer.Answer(query, true)
		all.turn.Unlock()
		if len(reply) == 0 {
			s.counters.drop(Malformed)
			return
		}
		s.counters.answered(TCP, outcome)
		if !s.write(conn, all, reply) {
			return
		}
		limited.Silent()
		s.Took(time.Since(start))
		if in.Buffered() == 0 && all.ending() {
			return
		}
	}
}

// read returns the next query of a connection. The time for a query begins with its first byte, which can
// be here already.
func (s *Server) read(conn net.Conn, in *bufio.Reader, all *connections) ([]byte, error) {
	if in.Buffered() == 0 {
		if err := all.deadline(conn.SetReadDeadline, time.Now().Add(s.idle)); err != nil {
			return nil, err
		}
		if _, err := in.Peek(1); err != nil {
			return nil, err
		}
	}
	if err := all.deadline(conn.SetReadDeadline, time.Now().Add(s.message)); err != nil {
		return nil, err
	}
	var size uint16
	err := binary.Read(in, binary.BigEndian, &size)
	if size > maxQuery {
		s.counters.drop(Malformed)
		return nil, errTooLong
	}
	query := make([]byte, size)
	if err == nil {
		_, err = io.ReadFull(in, query)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.counters.drop(Timeout)
	}
	return query, err
}

var errTooLong = errors.New("the query is too long")

// write sends a reply behind its length, and reports whether that worked.
func (s *Server) write(conn net.Conn, all *connections, reply []byte) bool {
	if all.deadline(conn.SetWriteDeadline, time.Now().Add(s.message)) != nil {
		return false
	}
	_, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.counters.drop(Timeout)
	case err != nil:
		s.counters.drop(SendFailed)
	}
	return err == nil
}
