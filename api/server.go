// Package api serves the REST API: the content of the tables, as the JSON of api/v1, and the writes
// to sources/rest.
//
// Its input is requests on a unix socket or TCP. Its output is responses read from the current
// tables, metrics and an event stream. A write is validated, stored durably, and answered with its
// revision. A caller may wait until the dataplane has applied the write; if that fails, the response
// gives the reason. api/server has the HTTP server. The package writes no table itself and makes no
// decisions about services.
package api

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/ironvip/ironvip/api/server"
)

// Server is the REST API. It may serve several listeners.
type Server struct {
	Deps
	log         *slog.Logger
	http        *server.Server
	convergence *convergence
	unhealthy   *unhealthyIndex
}

// New returns a server without listeners.
func New(d Deps) *Server {
	if d.Log == nil {
		d.Log = slog.Default()
	}
	s := &Server{Deps: d, log: d.Log, convergence: newConvergence(&d)}
	s.unhealthy = &unhealthyIndex{tables: s.tables()}
	s.http = server.New(server.Options{Node: d.Node, Hosts: d.Hosts, Version: d.Version, Gate: s.waitBegun, Log: d.Log})
	s.serviceRoutes()
	s.backendRoutes()
	s.statsRoutes()
	s.leaseRoutes()
	s.sourceRoutes()
	s.dataplaneRoutes()
	s.configRoutes()
	s.eventRoutes()
	s.nodeRoutes()
	s.fleetRoutes()
	s.debugRoutes()
	return s
}

// Handler returns the handler of the whole API.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Serve answers requests on l until ctx ends. Waiting requests then time out, and all requests have
// 5 s to finish.
func (s *Server) Serve(ctx context.Context, l net.Listener) error { return s.http.Serve(ctx, l) }

// Run updates the convergence measurements and the unhealthy index until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	var keeping sync.WaitGroup
	defer keeping.Wait()
	keeping.Go(func() { s.unhealthy.run(ctx) })
	return s.convergence.run(ctx)
}
