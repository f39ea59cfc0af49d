package takeover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/sockets"
)

// State describes a process that relays connections.
type State struct {
	PID    int           `json:"pid"`
	Within time.Duration `json:"within"` // it ends its last connection then
}

// Connections are those that end with this process.
type Connections struct {
	Open func() func() []Count // returns a function that counts them, for one caller at a time
	End  func(Backend)         // ends those to a backend
}

// Relay states the connections of this process on a socket of its own. The agents that come after it read them there, also
// one that starts after its predecessor was killed.
type Relay struct {
	files    sockets.Set
	listener *net.UnixListener
	of       Connections
	ctx      context.Context
	cancel   context.CancelFunc
	work     sync.WaitGroup

	mu      sync.Mutex
	most    time.Duration
	retired time.Time // zero: not yet
}

// OpenRelay opens a socket in dir. Within is the time that connections have once this process accepts no more clients. The
// caller closes it.
func OpenRelay(dir string, of Connections, within time.Duration) (*Relay, error) {
	r := &Relay{of: of, most: within}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// One process may have several, after processes that failed to take over from it.
	for n := 0; ; n++ {
		var err error
		r.listener, err = r.files.ListenUnix(r.ctx, filepath.Join(dir, fmt.Sprintf("%d-%d.sock", os.Getpid(), n)), 0o600)
		if err == nil {
			break
		}
		if !errors.Is(err, sockets.ErrInUse) {
			return nil, err
		}
	}
	r.work.Go(r.accept)
	return r, nil
}

// Retire begins the time of the open connections.
func (r *Relay) Retire(within time.Duration) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.most, r.retired = within, time.Now()
}

// state returns the state, and whether it is the last one.
func (r *Relay) state() (s State, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s = State{PID: os.Getpid(), Within: r.most}
	if last = !r.retired.IsZero(); last {
		s.Within -= time.Since(r.retired)
	}
	return s, last
}

func (r *Relay) accept() {
	for {
		conn, err := r.listener.AcceptUnix()
		if err != nil {
			return
		}
		r.work.Go(func() { r.serve(converse(conn)) })
	}
}

// serve states the connections to one agent until it ends, or Close.
func (r *Relay) serve(c *conversation) {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	s, last := r.state()
	count := r.of.Open()
	first := count()
	if err := c.send(append(append([]message{{Relay: &s}}, opens(first)...), message{Start: true})...); err != nil {
		c.conn.Close()
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer cancel()
		for {
			m, err := c.receive(time.Time{})
			if err != nil {
				return
			}
			if m.End != nil {
				r.of.End(*m.End)
			}
		}
	}()
	changes(ctx, first, count, func(changed []Count) error {
		out := opens(changed)
		if !last {
			if s, last = r.state(); last {
				out = append(out, message{Relay: &s})
			}
		}
		if len(out) == 0 {
			return nil
		}
		return c.send(out...)
	})
	c.conn.Close()
	<-ended
}

// Close ends the conversations with all agents, which learn the last counts. A nil Relay does nothing.
func (r *Relay) Close() {
	if r == nil {
		return
	}
	r.files.Remove(r.listener) // first, so that no agent connects again
	r.cancel()
	r.work.Wait()
}
