// Package server is the HTTP server of the API: listeners, limits, middleware, routes and problem
// documents.
//
// Its input is routes, each with its documentation and a handler, and requests on a unix socket or
// TCP. Its output is the handlers' responses, problem documents (RFC 9457) for errors, and the
// OpenAPI document of all routes. It gives each request an id, logs it, bounds its size and time,
// and refuses callers that a browser may have sent. It makes no decisions about services.
//
// Files:
//
//	server.go      the Server and its limits
//	unix.go        the unix socket
//	limit.go       limits of connections and streams
//	loss.go        the end of connections whose peer is lost
//	client.go      limits of one client
//	caller.go      who sent a request
//	session.go     sessions of browsers, and where their requests come from
//	authorize.go   what the caller may do
//	tls.go         the certificate and its changes
//	middleware.go  what every request needs: id, log, check of the caller, panics
//	route.go       adding routes
//	pages.go       the pages beside the routes
//	openapi.go     the OpenAPI document and its schemas
//	problem.go     problem documents
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/gin-gonic/gin"

	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/connlimit"
	"github.com/ironvip/ironvip/internal/httpstop"
)

// Timeouts and bounds of the server. A request that waits gets its waiting time in addition.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 30 * time.Second
	refusedTimeout    = time.Second      // for the rest of the body of a caller without permission
	WriteTimeout      = 60 * time.Second // see Allow
	idleTimeout       = 2 * time.Minute
	shutdownTimeout   = 5 * time.Second
	maxHeaderBytes    = 64 << 10
	maxBody           = 64 << 10
	maxDiscard        = 16 << 20 // for a body that was refused for its length
)

// Options are the settings of a Server.
type Options struct {
	Node    string   // the name of this host
	Hosts   []string // additional names of this host that callers may use over TCP
	Version string   // of the agent, for the OpenAPI document
	// Connections bounds the open connections of each listener; 0: no bound. Beyond it, callers get
	// 503. Streams on all listeners may be half as many, and those of one client three quarters of
	// these.
	Connections int
	// ClientConnections bounds the open connections of one client to each listener; 0: no bound.
	ClientConnections int
	// ClientRate returns the bound of the requests of one client in a second. It is called for each
	// request. Nil: no bound. Beyond it, they get 429.
	ClientRate func() int
	// Policy returns who may do what. It is called for each request.
	Policy func() *access.Policy
	// Pages answers GET requests below /ui/, from anybody. Nil: there are none.
	Pages http.Handler
	// Gate returns why a route that isn't Early can't be answered now, or nil.
	Gate func(context.Context) error
	Log  *slog.Logger
}

// Server answers requests with the handlers of its routes. It may serve several listeners.
type Server struct {
	Options
	Engine   *gin.Engine   // the routes
	Handler  http.Handler  // the routes with the middleware
	Document func() []byte // the OpenAPI document, rendered at the first call, after all routes were added
	api      huma.API
	clientOf func(net.Conn) connlimit.Client // nil: the client of a connection, other than in tests

	streams                 bounded
	large                   bounded  // requests with large bodies
	RefusedConnections      Refusals // of all listeners
	RefusedOfClients        Refusals // connections of clients with too many
	RefusedRequests         Refusals // of clients that sent too many
	RefusedStreams          Refusals
	RefusedStreamsOfClients Refusals // of clients with too many
	rates                   rates[connlimit.Client]
	failures                rates[failure] // that are logged
}

// New returns a server without routes and listeners.
func New(o Options) *Server {
	s := &Server{Options: o, Engine: newEngine()}
	s.api = s.newAPI()
	s.Handler = s.wrap(s.withPages(s.Engine))
	s.Document = sync.OnceValue(s.writeDocument)
	return s
}

// Serve answers requests on l until ctx ends. Waiting requests then time out, and all requests have
// 5 s to finish. With certificates, callers must use TLS.
func (s *Server) Serve(ctx context.Context, l net.Listener, certificates *Certificates) error {
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	limited := s.connections().Listener(l)
	var conns httpstop.Conns
	accept := limited
	if certificates != nil {
		accept = tls.NewListener(limited, certificates.Config())
	}
	server := &http.Server{
		Handler:           s.Handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      WriteTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ConnContext:       withConnection,
		ConnState: func(c net.Conn, state http.ConnState) {
			conns.Track(c, state)
			setState(c, state)
		},
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(accept) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve the API on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	cancel()
	// First no more connections: the request of one that is being accepted is answered, too.
	_ = limited.Close()
	if err := <-failed; !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("serve the API on %s: %w", l.Addr(), err)
	}
	grace, end := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer end()
	conns.Stop(grace, server)
	return ctx.Err()
}
