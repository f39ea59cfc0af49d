// Package api serves the REST API: the content of the tables, as the JSON of api/v1, and the writes
// to sources/rest.
//
// Its input is requests on a unix socket or TCP. Its output is responses read from the current
// tables, metrics and an event stream. A write is validated, stored durably, and answered with its
// revision. A caller may wait until the dataplane has applied the write; if that fails, the response
// gives the reason. api/server has the HTTP server, api/request what requests and responses have in
// common. The package writes no table itself and makes no decisions about services.
//
// Files:
//
//	server.go       the Server, and whether the agent has begun
//	deps.go         what the handlers read and call
//	services.go     services: list, get, put, delete, explain
//	backends.go     backends: register, delete, heartbeat, state
//	watch.go        a stream of services
//	search.go       objects by a part of a name or address
//	apply.go        many services in one request, and plans
//	leases.go       addresses, node ports and pools
//	sources.go      sources
//	dataplane.go    the dataplane: frontends, differences, repair
//	stats.go        traffic
//	top.go          a stream of the busiest services
//	connections.go  single connections
//	node.go         the node's health, the fleet's nodes, snapshots, tables
//	dns.go          DNS names, and answers to queries
//	tokens.go       tokens of callers, and who the caller is
//	session.go      sessions of browsers
//	events.go       events, and their stream
//	config.go       configuration: validate, plan, reload
//	view.go         a service's status in the API's form
//	wait.go         blocking reads, and writes that wait for the dataplane
//	unhealthy.go    the index of unhealthy services
//	states.go       events about the states of services
//	metrics.go      Prometheus metrics
//	convergence.go  the time from a change until the dataplane has it
package api

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/ironvip/ironvip/api/request"

	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/web"
)

// Server is the REST API. It may serve several listeners.
type Server struct {
	Deps
	tables      *status.Tables
	progress    pipeline.Progress
	http        *server.Server
	convergence *convergence
	unhealthy   *unhealthyIndex
	leases      func() map[leaseKind]int
	nodes       request.Recent[v1.NodeList]                          // of searches
	totals      request.Recent[map[vip.ServiceKey]reconcile.Traffic] // of streams of the busiest services
}

// New returns a server without listeners.
func New(d Deps) *Server {
	tables := statusTables(&d)
	s := &Server{Deps: d, tables: tables, convergence: newConvergence(tables, d.Ready),
		progress: pipeline.Progress{Services: d.Services, Compiled: d.Compiled, Applied: d.Applied}}
	s.unhealthy = newUnhealthyIndex(s.tables, s.Events, s.BackendMetrics)
	s.leases = leaseCounts(d.Leases)
	s.http = server.New(server.Options{Node: d.Node, Hosts: d.Hosts, Version: d.Version, Connections: d.MaxConnections,
		// More than half, which streams may take: the streams of a client must not shut out its own commands.
		ClientConnections: d.MaxConnections - d.MaxConnections/4, ClientRate: d.ClientRate, Policy: d.Policy, Pages: web.Handler(), Gate: s.waitBegun, Log: d.Log})
	s.serviceRoutes()
	s.searchRoutes()
	s.backendRoutes()
	s.overrideRoutes()
	s.statsRoutes()
	s.connectionRoutes()
	s.leaseRoutes()
	s.sourceRoutes()
	s.dataplaneRoutes()
	s.configRoutes()
	s.eventRoutes()
	s.nodeRoutes()
	s.announceRoutes()
	s.dnsRoutes()
	s.tokenRoutes()
	s.sessionRoutes()
	return s
}

// Handler returns the handler of the whole API.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Serve answers requests on l until ctx ends. Waiting requests then time out, and all requests have
// 5 s to finish. With certificates, callers must use TLS.
func (s *Server) Serve(ctx context.Context, l net.Listener, certificates *server.Certificates) error {
	return s.http.Serve(ctx, l, certificates)
}

// Run updates the convergence measurements, and after the first full reconcile the unhealthy index, and publishes events
// about the states of services, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	var keeping sync.WaitGroup
	defer keeping.Wait()
	keeping.Go(func() {
		if wake.Wait(ctx, s.Ready) == nil { // each service changes several times before
			s.unhealthy.run(ctx)
		}
	})
	return s.convergence.run(ctx)
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
		"try again later; GET "+v1.PathStatus+" shows the cause and the fix")
}

// waitsFor returns what keeps the node from being ready.
func (s *Server) waitsFor() string {
	if !s.hasBegun() {
		return s.Awaits()
	}
	if !table.IsClosed(s.Services.Ready()) {
		for _, src := range s.sources() {
			if !src.Synced {
				return "source \"" + src.Name + "\" not read yet: " + cmp.Or(src.Stale, "no answer")
			}
		}
	}
	if why := s.Stats().TargetError; why != "" {
		return "dataplane unreachable: " + why
	}
	return "first full reconcile not finished"
}
