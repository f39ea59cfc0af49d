package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/gin-gonic/gin"
)

// Timeouts and bounds of the server. A request that waits for something is
// given that time on top.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 30 * time.Second
	writeTimeout      = 60 * time.Second
	idleTimeout       = 2 * time.Minute
	shutdownTimeout   = 5 * time.Second
	maxHeaderBytes    = 64 << 10
	maxBody           = 1 << 20
	maxApplyBody      = 64 << 20
	applyReadTimeout  = 2 * time.Minute
	maxDiscard        = 16 << 20 // of a body that was refused for its length
)

// Server is the REST API. It may serve several listeners.
type Server struct {
	Deps
	log         *slog.Logger
	engine      *gin.Engine
	api         huma.API
	document    func() []byte // the OpenAPI document, written when it is first asked for
	convergence *convergence
	unhealthy   *unhealthyIndex
	handler     http.Handler
}

// New returns a server; nothing listens yet.
func New(d Deps) *Server {
	if d.Log == nil {
		d.Log = slog.Default()
	}
	s := &Server{Deps: d, log: d.Log, convergence: newConvergence(&d)}
	s.unhealthy = &unhealthyIndex{tables: s.tables()}
	s.engine = newEngine()
	s.api = s.newAPI()
	s.routes()
	s.document = sync.OnceValue(s.writeDocument)
	s.handler = s.wrap(s.engine)
	return s
}

// Handler is the whole API.
func (s *Server) Handler() http.Handler { return s.handler }

// Run keeps the measurements that need to be made as things happen, until ctx
// ends.
func (s *Server) Run(ctx context.Context) error {
	var keeping sync.WaitGroup
	defer keeping.Wait()
	keeping.Go(func() { s.unhealthy.run(ctx) })
	return s.convergence.run(ctx)
}

// Serve answers requests on l until ctx ends. Requests that wait are then told
// that time is up, and all have 5 s to finish.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve the API on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	cancel()
	grace, end := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer end()
	if server.Shutdown(grace) != nil {
		_ = server.Close() // what still runs is cut off
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API on %s: %w", l.Addr(), err)
	}
	return ctx.Err()
}

// ListenUnix listens on a unix socket with the given permissions, which the
// socket has from its first moment on. It takes the place of a socket that a former agent
// left behind, but never of one that somebody serves, nor of another file. The
// error says on a line of its own, after "hint: ", what to do.
func ListenUnix(path string, mode os.FileMode) (net.Listener, error) {
	l, hint, err := listenUnix(path, mode)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w\nhint: %s", path, err, hint)
	}
	return l, nil
}

// maxSocketPath is how long a socket's name may be, in bytes.
const maxSocketPath = 107

func listenUnix(path string, mode os.FileMode) (l *unixListener, hint string, err error) {
	const elsewhere = "set api.socket to a path in a directory that this process can write or create"
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, elsewhere, err
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, elsewhere, err
	case info.Mode().Type() != os.ModeSocket:
		return nil, "remove it, or set api.socket to another path", errors.New("the path exists and is not a socket")
	default:
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, "stop that agent, or set api.socket to another path", errors.New("another agent listens on it")
		}
	}
	// The socket gets its mode under a name of its own, and only then its place:
	// it is at no time open to more than it should be, without a change of the
	// process's umask.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".ironvip-")
	if err != nil {
		return nil, elsewhere, err
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "s")
	name := made
	if len(name) > maxSocketPath {
		// It may be longer than the one it gets. By the directory's descriptor it
		// is short; not always, for it is this name that ss shows.
		open, err := os.Open(dir)
		if err != nil {
			return nil, elsewhere, err
		}
		defer open.Close()
		name = fmt.Sprintf("/proc/self/fd/%d/s", open.Fd())
	}
	u, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, elsewhere, err
	}
	u.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(made, mode), os.Rename(made, path)); err != nil {
		_ = u.Close()
		return nil, elsewhere, err
	}
	return &unixListener{UnixListener: u, path: path}, "", nil
}

// unixListener removes its socket when it is closed.
type unixListener struct {
	*net.UnixListener
	path string
}

// Addr is where clients find it.
func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

func (l *unixListener) Close() error {
	err := os.Remove(l.path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(l.UnixListener.Close(), err)
}
