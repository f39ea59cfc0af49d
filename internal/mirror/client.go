package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/parallel"
)

// Client keeps a connection with a Server. Create it with its exported fields, and start Run.
type Client struct {
	Path   string // of the socket
	Server string // what listens there, in messages: "announcer"
	// Dial connects with a server that has no socket, such as one of this process. Nil: Path is used.
	Dial    func(context.Context) (net.Conn, error)
	Name    string // tells clients apart: the state directory
	Publish []Published
	Mirror  []Mirrored
	// Need returns what the connection is needed for, and a channel that is closed when that may change. Nil: Needed.
	Need func() (Need, <-chan struct{})
	// Gone is called without a connection if nothing is needed and a server has run, but does not run any more.
	// Nil: not called.
	Gone func(context.Context)
	// Hangs returns why this process does not do its main work although it runs; nil: it does. There is no
	// connection then, as if the process had ended. Nil: never.
	Hangs func() error
	Log   *slog.Logger

	mu    sync.Mutex
	state State
	calls calls
}

// Need is what a connection is needed for.
type Need uint8

const (
	// Undecided: what is needed is not known. The client does not connect.
	Undecided Need = iota
	// Idle: nothing. The client connects with a server that runs, so that it ends what it still does.
	Idle
	// Needed: without a connection, something is wrong.
	Needed
)

// State returns the state of the connection.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

func (c *Client) set(change func(*State)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.state)
}

const (
	minRetry = 100 * time.Millisecond
	maxRetry = 2 * time.Second
)

// Run keeps the connection until the context ends, and returns its error. The mirrors keep their
// rows while there is no connection: the server keeps on for a while, too.
func (c *Client) Run(ctx context.Context) error {
	c.set(func(s *State) { s.Reason = "not connected yet" })
	wait := backoff.Backoff{Lo: minRetry, Hi: maxRetry}
	for {
		need, changed := Needed, (<-chan struct{})(nil)
		if c.Need != nil {
			need, changed = c.Need()
		}
		var absent *absentError
		if need != Undecided {
			began := time.Now()
			err := c.connect(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			c.lost(err, need)
			if time.Since(began) > maxRetry {
				wait.Reset()
			}
			absent, _ = errors.AsType[*absentError](err)
		}
		if need == Needed || need == Idle && absent == nil {
			backoff.Nap(ctx, wait.Next(), nil)
			continue
		}
		if absent != nil && errors.Is(absent, unix.ECONNREFUSED) && c.Gone != nil {
			c.Gone(ctx)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// absentError is the error of a connection that did not begin.
type absentError struct{ error }

func (e *absentError) Unwrap() error { return e.error }

// lost notes why there is no connection.
func (c *Client) lost(err error, need Need) {
	c.set(func(s *State) {
		if s.Connected || need == Needed && s.Reason != err.Error() {
			c.Log.Warn("no connection to the "+c.Server, "socket", c.Path, "err", err)
		}
		*s = State{Reason: err.Error()}
	})
	c.calls.lost(fmt.Errorf("no connection to the %s: %w", c.Server, err))
}

func (c *Client) hangs() error {
	if c.Hangs == nil {
		return nil
	}
	return c.Hangs()
}

// connect runs one connection to its end.
func (c *Client) connect(ctx context.Context) error {
	if err := c.hangs(); err != nil {
		return err
	}
	dial := c.Dial
	if dial == nil {
		dial = func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", c.Path) }
	}
	raw, err := dial(ctx)
	if err != nil {
		return &absentError{err}
	}
	return c.talk(ctx, newConn(raw))
}

// talk runs a connection. It closes it.
func (c *Client) talk(ctx context.Context, with *conn) error {
	running, ctx := parallel.NewGroup(ctx)
	defer context.AfterFunc(ctx, func() { with.Close() })()
	defer c.calls.end(with)
	var got error // why it ended, if the server knows
	running.Go(func() error {
		got = c.follow(with)
		return got
	})
	running.Go(func() error {
		if err := with.greet(hello{Client: c.Name}); err != nil {
			return err
		}
		running.Go(func() error { return c.keepAlive(ctx, with) })
		// The server keeps what it has until everything was sent, which waits until the tables are ready.
		return passAll(ctx, with, c.Publish)
	})
	err := running.Wait()
	err = cmp.Or(got, err)
	if why := c.hangs(); why != nil {
		err = why
	}
	return fmt.Errorf("connection ended: %w", err)
}

// follow mirrors the server's tables until the connection ends.
func (c *Client) follow(with *conn) error {
	h, err := with.greeted()
	if err != nil {
		return err
	}
	c.set(func(s *State) { *s = State{Connected: true} })
	c.calls.begin(with)
	c.Log.Info("connected to the "+c.Server, "version", h.Version)
	return with.follow(c.Mirror, func(apply func()) error { apply(); return nil }, func() { c.set(func(s *State) { s.Synced = true }) }, c.calls.answered)
}

// keepAlive tells the server every second that this process runs, unless it hangs.
func (c *Client) keepAlive(ctx context.Context, with *conn) error {
	for backoff.Sleep(ctx, keepaliveEvery) {
		if err := c.hangs(); err != nil {
			return err
		}
		if err := with.send(header{}, nil, nil); err != nil {
			return err
		}
	}
	return ctx.Err()
}
