package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/sockopt"
)

// Server accepts the connections of a client. The first message of a new connection ends the former one: it
// is a new process, or the same one after an error. A connection without a message, as of a process that
// finds out whether a server runs, changes nothing.
type Server struct {
	Publish []Published
	Mirror  []Mirrored
	Answer  []Method
	Version string
	Log     *slog.Logger
	// Change runs what a message of the client changes in the stores, one after the other. It may block, and may
	// drop what comes when the process ends. Nil: it runs at once.
	Change func(func())
	// Synced is called by Change when everything of a client was received. Nil: not called.
	Synced func()
	// Gone is called by Change when a connection has ended and no other one has begun. Nil: not called.
	Gone func()

	order   sync.Mutex // held while a message is applied
	mu      sync.Mutex
	current *conn // of the client
}

// Listen opens the socket of a server, which messages call by its name. Only this process's user can connect, and root. The file remains at the end:
// nobody answers there then, so a client knows that a server has run and does not run any more.
func Listen(path, server string) (net.Listener, error) {
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("socket %s is in use: another %s runs", path, server)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
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
			if err == nil {
				c.Close()
			}
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
		work.Run(ctx, func(ctx context.Context) { s.ServeConn(ctx, c) })
	}
}

// checkUser refuses processes of other users. The permissions of the socket do the same, unless
// somebody changes them.
func checkUser(c net.Conn) error {
	cred, err := sockopt.PeerOf(c.(*net.UnixConn))
	if err != nil {
		return err
	}
	if own := os.Geteuid(); cred.Uid != 0 && int(cred.Uid) != own {
		return fmt.Errorf("process %d of user %d is not allowed: run both processes as one user", cred.Pid, cred.Uid)
	}
	return nil
}

// ServeConn runs one connection. It closes it.
func (s *Server) ServeConn(ctx context.Context, raw net.Conn) {
	c := newConn(raw)
	defer c.Close()
	work, running := parallel.NewGroup(ctx)
	defer context.AfterFunc(running, func() { c.Close() })()
	if err := s.begin(c); err != nil {
		s.Log.Debug("control connection without a client ended", "err", err)
		return
	}
	work.Go(func() error {
		if err := c.greet(hello{Version: s.Version}); err != nil {
			return err
		}
		return passAll(running, c, s.Publish)
	})
	work.Go(func() error {
		answer := func(h header) error { return s.answer(running, work, c, h) }
		return c.follow(s.Mirror, func(apply func()) error { return s.change(c, apply) }, s.Synced, answer)
	})
	err := work.Wait()
	last := s.change(c, s.Gone) == nil
	s.Log.Info("agent disconnected", "err", err, "replaced", !last)
	s.mu.Lock()
	if s.current == c {
		s.current = nil
	}
	s.mu.Unlock()
}

// begin receives the first message, and makes the connection that of the client.
func (s *Server) begin(c *conn) error {
	c.every = keepaliveEvery
	h, err := c.greeted()
	if err == nil {
		err = s.replace(c, h.Client)
	}
	if err != nil && h.Protocol != 0 { // otherwise nothing has arrived
		s.Log.Warn("agent refused", "err", err)
		_ = c.greet(hello{Version: s.Version, Refused: err.Error()})
	}
	return err
}

// replace makes a connection that of the client, and ends the former one. It refuses a client while
// another one is connected: two agents would end each other's work in turn.
func (s *Server) replace(c *conn, client string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		if former := s.current.client; former != "" && client != "" && former != client {
			return fmt.Errorf("another agent is connected, with the state directory %s, and this one has %s: stop one of them", former, client)
		}
		s.current.Close()
	}
	c.client = client
	s.current = c
	return nil
}

// Connected reports whether a client is connected.
func (s *Server) Connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current != nil
}

// change applies what a connection has brought, unless another one has replaced it.
func (s *Server) change(c *conn, apply func()) error {
	s.order.Lock()
	defer s.order.Unlock()
	s.mu.Lock()
	current := s.current == c
	s.mu.Unlock()
	switch {
	case !current:
		return errors.New("another connection has replaced it")
	case apply == nil:
	case s.Change == nil:
		apply()
	default:
		s.Change(apply)
	}
	return nil
}
