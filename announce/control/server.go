package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/sockopt"
	"github.com/ironvip/ironvip/internal/table"
)

// Tables are what the announcer reports.
type Tables struct {
	Announcements *table.Table[netip.Addr, announce.Announcement]
	Announced     *table.Table[announce.Place, announce.Announced]
	Peers         *table.Table[announce.PeerKey, announce.Peer]
	Stats         *table.Table[struct{}, Stats] // one row
}

// NewTables returns empty tables.
func NewTables(clock *table.Clock) Tables {
	return Tables{
		Announcements: table.New(clock, announce.KeyOfAnnouncement, func(a, b announce.Announcement) bool { return a == b }),
		Announced:     table.New(clock, announce.KeyOfAnnounced, func(a, b announce.Announced) bool { return a == b }),
		Peers:         table.New(clock, announce.KeyOfPeer, announce.SamePeer),
		Stats:         table.New(clock, func(*Stats) struct{} { return struct{}{} }, func(a, b Stats) bool { return a == b }),
	}
}

// Server accepts the agent's connections. The first message of a new connection ends the former one: it
// is a new agent, or the same one after an error. A connection without a message, as of a process that
// finds out whether an announcer runs, changes nothing.
type Server struct {
	Tables
	Version string
	Log     *slog.Logger
	// Receive is called for each request, in order, and with nil when a connection has ended and no
	// other one has begun. First is set for the first request of a connection. It may block.
	Receive func(r *Request, first bool)

	order   sync.Mutex // held while Receive runs
	mu      sync.Mutex
	current *conn // of the agent
}

// Listen opens the socket. Only this process's user can connect, and root. The file remains at the end:
// nobody answers there then, so the agent knows that an announcer has run and does not run any more.
func Listen(path string) (net.Listener, error) {
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("socket %s is in use: another announcer runs", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil { // whoever has connected before is refused by checkUser
		l.Close()
		return nil, err
	}
	return l, nil
}

// Serve accepts connections until the context ends. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	work, _ := parallel.NewGroup(ctx)
	defer func() { _ = work.Wait() }() // a connection has no errors
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("control socket: %w", err)
		}
		if err := checkUser(c); err != nil {
			s.Log.Warn("control connection refused", "err", err)
			c.Close()
			continue
		}
		work.Run(ctx, func(ctx context.Context) { s.serve(ctx, newConn(c)) })
	}
}

// replace makes a connection that of the agent, and ends the former one. It refuses an agent while
// another one is connected: two agents would end each other's announcements in turn.
func (s *Server) replace(c *conn, agent string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		if former := s.current.agent; former != "" && agent != "" && former != agent {
			return fmt.Errorf("the agent with the state directory %s is connected: this one has %s", former, agent)
		}
		s.current.Close()
	}
	c.agent = agent
	s.current = c
	return nil
}

// checkUser refuses processes of other users. The permissions of the socket do the same, unless
// somebody changes them.
func checkUser(c net.Conn) error {
	cred, err := sockopt.PeerOf(c.(*net.UnixConn))
	if err != nil {
		return err
	}
	if own := os.Geteuid(); cred.Uid != 0 && int(cred.Uid) != own {
		return fmt.Errorf("process %d of user %d is not allowed: run the agent and the announcer as one user", cred.Pid, cred.Uid)
	}
	return nil
}

// serve runs one connection.
func (s *Server) serve(ctx context.Context, c *conn) {
	defer c.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work, reporting := parallel.NewGroup(ctx)
	defer context.AfterFunc(reporting, func() { c.Close() })()
	began := false
	err := s.read(c, func(agent string) error {
		if err := s.replace(c, agent); err != nil {
			s.Log.Warn("agent refused", "err", err)
			return err
		}
		began = true
		work.Go(func() error {
			err := s.report(ctx, c)
			if err != nil && ctx.Err() == nil {
				s.Log.Warn("control connection ended", "err", err)
			}
			return err
		})
		return nil
	})
	cancel()
	c.Close()
	_ = work.Wait() // it is logged
	if !began {
		s.Log.Debug("control connection without an agent ended", "err", err)
		return
	}
	last := s.pass(c, nil, false)
	s.Log.Info("agent disconnected", "err", err, "replaced", !last)
	s.mu.Lock()
	if s.current == c {
		s.current = nil
	}
	s.mu.Unlock()
}

// read passes requests on until the connection ends, is replaced, or the agent does not run. It calls
// begin for the first one. Agents of all versions send that at once.
func (s *Server) read(c *conn, begin func(agent string) error) error {
	c.every = keepaliveEvery
	for first := true; ; first = false {
		r := &Request{}
		if err := c.receive(r); err != nil {
			return err
		}
		if first {
			if err := checkProtocol(r.Protocol); err != nil {
				_ = c.send(Report{Protocol: Protocol, Version: s.Version})
				s.Log.Warn("agent refused", "err", err)
				return err
			}
			c.every = max(r.Keepalive, 0)
			if err := begin(r.Agent); err != nil {
				return err
			}
		}
		if !s.pass(c, r, first) {
			return errors.New("another connection has replaced it")
		}
	}
}

// pass calls Receive, unless another connection has replaced c.
func (s *Server) pass(c *conn, r *Request, first bool) bool {
	s.order.Lock()
	defer s.order.Unlock()
	s.mu.Lock()
	current := s.current == c
	s.mu.Unlock()
	if current {
		s.Receive(r, first)
	}
	return current
}

// report sends all rows, then changes, until the connection or the context ends.
func (s *Server) report(ctx context.Context, c *conn) error {
	if err := c.send(Report{Protocol: Protocol, Version: s.Version}); err != nil {
		return err
	}
	announcements, announced, peers, stats := s.Announcements.Watch(), s.Announced.Watch(), s.Peers.Watch(), s.Stats.Watch()
	defer announcements.Close()
	defer announced.Close()
	defer peers.Close()
	defer stats.Close()
	synced := false
	for {
		var r Report
		a, more := announcements.TryNext()
		r.Announcements = changes(a, announce.KeyOfAnnouncement)
		b, moreAnnounced := announced.TryNext()
		r.Announced = changes(b, announce.KeyOfAnnounced)
		p, morePeers := peers.TryNext()
		r.Peers = changes(p, announce.KeyOfPeer)
		n, moreStats := stats.TryNext()
		if len(n) > 0 {
			r.Stats = &n[len(n)-1].Value
		}
		busy := len(a)+len(b)+len(p)+len(n) > 0
		if !busy && !synced {
			r.Synced, synced = true, true
			busy = true
		}
		if busy {
			if err := c.send(r); err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		case <-moreAnnounced:
		case <-morePeers:
		case <-moreStats:
		}
	}
}

func changes[K comparable, V any](batch []table.Change[V], key func(*V) K) (out Changes[V, K]) {
	for i := range batch {
		if c := &batch[i]; c.Deleted {
			out.Removed = append(out.Removed, key(&c.Value))
		} else {
			out.Set = append(out.Set, c.Value)
		}
	}
	return out
}
