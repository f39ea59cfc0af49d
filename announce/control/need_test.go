package control

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
)

// wanting is an agent's link with changing needs.
type wanting struct {
	*Link
	gone atomic.Int32 // calls of Gone

	mu       sync.Mutex
	need     Need
	settings announce.Settings
	changed  chan struct{}
}

func newWanting(t *testing.T, path string, need Need) *wanting {
	clock := table.NewClock(time.Now())
	w := &wanting{need: need, changed: make(chan struct{})}
	w.Link = &Link{Path: path, Agent: "/var/lib/a", Eligible: table.New(clock, announce.KeyOfEligible, nil), Tables: NewTables(clock), Log: slog.New(slog.DiscardHandler),
		Settings: func() (announce.Settings, <-chan struct{}) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.settings, w.changed
		},
		Need: func() Need {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.need
		},
		Gone: func(context.Context) { w.gone.Add(1) }}
	scope.Go(t, w.Run)
	return w
}

func (w *wanting) set(need Need, node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.need, w.settings.Node = need, node
	close(w.changed)
	w.changed = make(chan struct{})
}

// listening is an announcer's side. Its nodes are those of the settings that it has received.
type listening struct {
	mu   sync.Mutex
	node string
	stop func()
}

func startServer(t *testing.T, path string) *listening {
	t.Helper()
	s := &listening{}
	server := &Server{Tables: NewTables(&table.Clock{}), Log: slog.New(slog.DiscardHandler), Receive: func(r *Request, _ bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r != nil && r.Settings != nil {
			s.node = r.Settings.Node
		}
	}}
	l := must.Get(Listen(path))(t)
	s.stop = scope.Go(t, func(ctx context.Context) error { return server.Serve(ctx, l) })
	return s
}

func (s *listening) await(t *testing.T, node string) {
	t.Helper()
	wait.Until(t, "the settings of "+node, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.node == node
	})
}

// If nothing is to be announced, an announcer that runs learns that, and one that has ended is reported
// once. While the settings are not complete, and on a host without an announcer, nothing happens.
func TestNothingToAnnounce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	w := newWanting(t, path, Nothing)
	wait.Until(t, "the attempt", func() bool { return w.State().Reason != "not connected yet" })
	expect.Equal(t, w.gone.Load(), 0, "an announcer that never ran is gone")

	s := startServer(t, path)
	w.set(Undecided, "incomplete")
	w.set(Nothing, "nothing") // the link sees this one, or both
	s.await(t, "nothing")
	w.set(Announcing, "all")
	s.await(t, "all")
	s.stop()
	wait.Until(t, "the end of the connection", func() bool { return !w.State().Connected })
	expect.Equal(t, w.gone.Load(), 0, "an announcer that is needed is reported as gone")
	w.set(Nothing, "nothing")
	wait.Until(t, "the report", func() bool { return w.gone.Load() == 1 })

	s = startServer(t, path)
	w.set(Announcing, "all")
	s.await(t, "all")
	w.set(Nothing, "nothing")
	s.await(t, "nothing")
	s.stop()
	wait.Until(t, "the report", func() bool { return w.gone.Load() == 2 })
}

// A link whose settings are not complete does not connect.
func TestUndecidedLinkWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	s := startServer(t, path)
	w := newWanting(t, path, Undecided)
	w.set(Undecided, "incomplete")
	w.set(Announcing, "all")
	s.await(t, "all")
	w2 := newWanting(t, path, Undecided) // would replace the connection
	w2.set(Undecided, "incomplete")
	w.set(Announcing, "more")
	s.await(t, "more")
	expect.False(t, w2.State().Connected, "connected")
}

// A process that only finds out whether an announcer runs, or has another version, does not end the
// connection of the agent, and neither does another agent.
func TestOtherConnectionsChangeNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	s := startServer(t, path)
	w := newWanting(t, path, Announcing)
	w.set(Announcing, "all")
	s.await(t, "all")
	wait.Until(t, "the connection", func() bool { return w.State().Connected })
	since := w.State().Since
	another := fmt.Sprintf(`{"protocol":%d,"agent":"/var/lib/b","settings":{"node":"b"},"synced":true}`, Protocol)
	for _, first := range []string{"", `{"protocol":99}` + "\n", another + "\n"} {
		c, err := net.Dial("unix", path)
		must.Succeed(t, err)
		if first == "" {
			err = c.(*net.UnixConn).CloseWrite()
		} else {
			_, err = c.Write([]byte(first))
		}
		must.Succeed(t, err)
		_, _ = io.Copy(io.Discard, c) // until the server closes it
		c.Close()
	}
	w.set(Announcing, "more")
	s.await(t, "more")
	if state := w.State(); !state.Connected || state.Since != since {
		t.Errorf("connected: %t, since %s, before %s", state.Connected, state.Since, since)
	}
}
