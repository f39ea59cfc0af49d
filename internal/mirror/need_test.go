package mirror

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

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
)

// wanting is a client with changing needs.
type wanting struct {
	*Client
	rows *table.Table[string, row]
	gone atomic.Int32 // calls of Gone

	mu      sync.Mutex
	need    Need
	changed chan struct{}
}

func newWanting(t *testing.T, path string, need Need) *wanting {
	w := &wanting{need: need, changed: make(chan struct{}), rows: newTable()}
	w.Client = &Client{Path: path, Server: "server", Name: "/var/lib/a", Publish: []Published{Publish("rows", w.rows)}, Log: slog.New(slog.DiscardHandler),
		Need: func() (Need, <-chan struct{}) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.need, w.changed
		},
		Gone: func(context.Context) { w.gone.Add(1) }}
	scope.Go(t, w.Run)
	return w
}

func (w *wanting) set(need Need, n int) {
	w.rows.Set(row{"1", n})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.need = need
	close(w.changed)
	w.changed = make(chan struct{})
}

// listening is a server.
type listening struct {
	*table.Table[string, row]
	synced *atomic.Int32 // connections that were complete
	stop   func()
}

func startServer(t *testing.T, path string) listening {
	t.Helper()
	s := listening{Table: newTable(), synced: &atomic.Int32{}}
	server := &Server{Mirror: []Mirrored{Into("rows", s.Table)}, Synced: func() { s.synced.Add(1) }, Log: slog.New(slog.DiscardHandler)}
	l := must.Get(Listen(path, "server"))(t)
	s.stop = scope.Go(t, func(ctx context.Context) error { return server.Serve(ctx, l) })
	return s
}

func (s listening) await(t *testing.T, n int) {
	t.Helper()
	wait.Until(t, fmt.Sprint("row ", n), func() bool { r, _, _ := s.Get("1"); return r.N == n })
}

// If nothing is needed, a server that runs learns that, and one that has ended is reported
// once. While the need is not known, and on a host without a server, nothing happens.
func TestNothingNeeded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	w := newWanting(t, path, Idle)
	wait.Until(t, "the attempt", func() bool { return w.State().Reason != "not connected yet" })
	expect.Equal(t, w.gone.Load(), 0, "a server that never ran is gone")

	s := startServer(t, path)
	w.set(Undecided, 1)
	w.set(Idle, 2) // the client sees this one, or both
	s.await(t, 2)
	w.set(Needed, 3)
	s.await(t, 3)
	s.stop()
	wait.Until(t, "the end of the connection", func() bool { return !w.State().Connected })
	expect.Equal(t, w.gone.Load(), 0, "a server that is needed is reported as gone")
	w.set(Idle, 4)
	wait.Until(t, "the report", func() bool { return w.gone.Load() == 1 })

	s = startServer(t, path)
	w.set(Needed, 5)
	s.await(t, 5)
	w.set(Idle, 6)
	s.await(t, 6)
	s.stop()
	wait.Until(t, "the report", func() bool { return w.gone.Load() == 2 })
}

// A client whose need is not known does not connect.
func TestUndecidedClientWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	s := startServer(t, path)
	w := newWanting(t, path, Undecided)
	w.set(Undecided, 1)
	w.set(Needed, 2)
	s.await(t, 2)
	w2 := newWanting(t, path, Undecided) // would replace the connection
	w2.set(Undecided, 3)
	w.set(Needed, 4)
	s.await(t, 4)
	expect.False(t, w2.State().Connected, "connected")
}

// A process that only finds out whether a server runs, or has another version, does not end the
// connection of the client, and neither does another client.
func TestOtherConnectionsChangeNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	s := startServer(t, path)
	w := newWanting(t, path, Needed)
	w.set(Needed, 1)
	s.await(t, 1)
	wait.Until(t, "the connection", func() bool { return w.State().Connected && s.synced.Load() == 1 })
	for _, first := range []string{"", `{"protocol":99}`, fmt.Sprintf(`{"protocol":%d,"client":"/var/lib/b"}`, Protocol)} {
		c := must.Get(net.Dial("unix", path))(t)
		if first == "" {
			must.Succeed(t, c.(*net.UnixConn).CloseWrite())
		} else {
			must.Get(fmt.Fprintln(c, first))(t)
		}
		_, _ = io.Copy(io.Discard, c) // until the server closes it
		c.Close()
	}
	w.set(Needed, 2)
	s.await(t, 2)
	expect.True(t, w.State().Connected, "the client is connected")
	expect.Equal(t, s.synced.Load(), 1, "connections of the client")
}
