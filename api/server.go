// Package api serves the REST API: the content of the tables, as the JSON of api/v1, and the writes to sources/rest.
//
// Its input is requests on a unix socket or TCP. Its output is responses read from the current tables, metrics and an event
// stream. It puts the groups of handlers together, and has those of the node itself: its health, sources, configuration, events,
// metrics and callers. The other groups are packages: api/services, api/addresses, api/forwarding and api/nodes. api/server has the
// HTTP server, api/request what requests and responses have in common, and api/trouble what does not work as it should. The package
// writes no table itself and makes no decisions about services.
//
// Files:
//
//	server.go          the Server, and whether the agent has begun
//	deps.go            what the handlers read and call
//	node.go            the node's health, snapshots, tables
//	refusals.go        refused clients and callers
//	sources.go         sources
//	config.go          configuration: validate, plan, reload
//	events.go          events, and their stream
//	search.go          objects by a part of a name or address
//	tokens.go          tokens of callers, and who the caller is
//	session.go         sessions of browsers
//	metrics.go         Prometheus metrics
//	metrics_health.go  metrics of the health of backends
//	convergence.go     the time from a change until the dataplane has it
package api

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"time"

	"github.com/ironvip/ironvip/api/addresses"
	"github.com/ironvip/ironvip/api/forwarding"
	"github.com/ironvip/ironvip/api/nodes"
	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/services"
	"github.com/ironvip/ironvip/api/status"
	"github.com/ironvip/ironvip/api/trouble"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/web"
)

// Server is the REST API. It may serve several listeners.
type Server struct {
	Deps
	http        *server.Server
	convergence *convergence
	trouble     *trouble.Index
	services    *services.Handlers
	forwarding  *forwarding.Handlers
	leases      func() map[leaseKind]int    // how many there are
	nodes       request.Recent[v1.NodeList] // of searches
}

// New returns a server without listeners.
func New(d Deps) *Server {
	s := &Server{Deps: d}
	s.Tables.Revisions = status.NewRevisions(&s.Tables)
	s.convergence = newConvergence(&s.Tables, d.Ready)
	s.trouble = trouble.New(&s.Tables, s.Events, s.BackendMetrics)
	s.leases = table.Counts(d.Addresses.Leases, func(l **ipam.Lease) leaseKind { return leaseKind{addresses.KindOf((*l).Resource), (*l).State} })
	// More than half, which streams may take: the streams of a client must not shut out its own commands.
	s.ClientConnections = d.Connections - d.Connections/4
	s.Pages, s.Gate = web.Handler(), s.waitBegun
	s.http = server.New(s.Options)
	s.searchRoutes()
	s.sourceRoutes()
	s.configRoutes()
	s.eventRoutes()
	s.nodeRoutes()
	s.tokenRoutes()
	s.sessionRoutes()
	s.services = services.New(s.http, &s.Tables, d.Services)
	s.forwarding = forwarding.New(s.http, &s.Tables, s.trouble, d.Forwarding)
	nodes.AddRoutes(s.http, &s.Tables, d.Nodes)
	addresses.AddRoutes(s.http, &s.Tables, d.Addresses)
	return s
}

// Handler returns the handler of the whole API.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Serve answers requests on l until ctx ends. Waiting requests then time out, and all requests have
// 5 s to finish. With certificates, callers must use TLS.
func (s *Server) Serve(ctx context.Context, l net.Listener, certificates *server.Certificates) error {
	return s.http.Serve(ctx, l, certificates)
}

// Run updates the convergence measurements, and after the first full reconcile the index of trouble, and publishes events
// about the states of services, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	keeping, ctx := parallel.NewGroup(ctx)
	keeping.Run(ctx, func(ctx context.Context) {
		if wake.Wait(ctx, s.Ready) == nil { // each service changes several times before
			s.trouble.Run(ctx)
		}
	})
	keeping.Go(func() error { return s.convergence.run(ctx) })
	return keeping.Wait()
}

// beginTimeout is how long a request waits for an agent that hasn't begun. A start that waits for
// nothing takes less.
const beginTimeout = time.Second

// hasBegun reports whether the stored state has been loaded. Only then is a row that the tables
// lack known not to exist.
func (s *Server) hasBegun() bool {
	return table.IsClosed(s.Begun)
}

// waitBegun returns an error if the agent has not begun. Requests are refused then: an empty list
// would be wrong, and the response to a heartbeat would be to register again.
func (s *Server) waitBegun(ctx context.Context) error {
	if s.hasBegun() { // first: on a starved host, the timer can have fired before the select
		return nil
	}
	late := time.NewTimer(beginTimeout)
	defer late.Stop()
	select {
	case <-s.Begun:
		return nil
	case <-ctx.Done():
	case <-late.C:
	}
	return request.StoreAway("agent not ready: it has not loaded the stored services and addresses yet: "+s.Awaits(),
		"try again later; ironvip status shows the cause and the fix")
}

// waitsFor returns what keeps the node from being ready.
func (s *Server) waitsFor() string {
	if !s.hasBegun() {
		return s.Awaits()
	}
	if !table.IsClosed(s.Tables.Services.Ready()) {
		for _, src := range s.sources() {
			if !src.Synced {
				return "source \"" + src.Name + "\" not read yet: " + cmp.Or(src.Stale, "no answer")
			}
		}
	}
	if why := s.Forwarding.Stats().TargetError; why != "" {
		return "dataplane unreachable: " + why
	}
	return "first full reconcile not finished"
}
