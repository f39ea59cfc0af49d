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

// Timeouts and bounds of the server. A request that waits gets its waiting time in addition.
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
	maxDiscard        = 16 << 20 // for a body that was refused for its length
)

// Server is the REST API. It may serve several listeners.
type Server struct {
	Deps
	log         *slog.Logger
	engine      *gin.Engine
	api         huma.API
	document    func() []byte // the OpenAPI document, rendered at the first request
	convergence *convergence
	unhealthy   *unhealthyIndex
	handler     http.Handler
}

// New returns a server without listeners.
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

// Handler returns the handler of the whole API.
func (s *Server) Handler() http.Handler { return s.handler }

// Run updates the convergence measurements and the unhealthy index until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	var keeping sync.WaitGroup
	defer keeping.Wait()
	keeping.Go(func() { s.unhealthy.run(ctx) })
	return s.convergence.run(ctx)
}

// Serve answers requests on l until ctx ends. Waiting requests then time out, and all requests have
// 5 s to finish.
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
		_ = server.Close() // cut off the remaining requests
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API on %s: %w", l.Addr(), err)
	}
	return ctx.Err()
}

// ListenUnix listens on a unix socket that has the given permissions from its creation on. It
// replaces a socket that an earlier agent left behind. It never replaces a socket in use or another
// file. The error has the hint on a separate line, after "hint: ".
func ListenUnix(path string, mode os.FileMode) (net.Listener, error) {
	l, hint, err := listenUnix(path, mode)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w\nhint: %s", path, err, hint)
	}
	return l, nil
}

// maxSocketPath is the maximum length of a socket's name in bytes.
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
	// The socket gets its mode under a temporary name and is then renamed. It never has wider
	// permissions than mode, and the process's umask is unchanged.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".ironvip-")
	if err != nil {
		return nil, elsewhere, err
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "s")
	name := made
	if len(name) > maxSocketPath {
		// The temporary name may be longer than the final one. A name through the directory's
		// descriptor is short. It is used only if needed, because ss shows this name.
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

// Addr returns the address for clients.
func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

func (l *unixListener) Close() error {
	err := os.Remove(l.path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(l.UnixListener.Close(), err)
}
