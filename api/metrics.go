package api

import (
	"context"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humagin"

	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/trouble"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// metrics returns the handler of /metrics.
func (s *Server) metrics() func(context.Context, *struct{}) (*server.Stream, error) {
	own := []metric.Collector{s.collectTables, s.collectHealth, s.convergence.durations.Collect, s.collectTraffic}
	handler := metric.Handler(append(own, s.Metrics...)...)
	return func(context.Context, *struct{}) (*server.Stream, error) {
		return server.NewStream(func(ctx huma.Context) {
			c := humagin.Unwrap(ctx)
			handler.ServeHTTP(c.Writer, c.Request)
		}), nil
	}
}

// MetricGroups returns all metrics of this package.
func MetricGroups() []*metric.Group {
	return []*metric.Group{stateMetrics, trafficMetrics, healthMetrics}
}

// The metrics that are read from tables. Labels are names of configured or registered objects, so
// their number is bounded by those.
var (
	stateMetrics = metric.NewGroup("Agent, services and dataplane", "")

	familyBuild           = stateMetrics.Gauge("build_info", "The agent's version; always 1.", "version")
	familyServices        = stateMetrics.Gauge("services", "Services by source and state.", "source", "state")
	familyAllBackends     = stateMetrics.Gauge("backends", "Backends of all services by effective state.", "state")
	familyAllUsable       = stateMetrics.Gauge("usable_backends", "Backends that take new connections.")
	familyAllUnhealthy    = stateMetrics.Gauge("unhealthy_backends", "Backends that are ready and unhealthy.")
	familyBackends        = stateMetrics.Gauge("service_backends", "Backends of a service by effective state. This and the next three: only of services with a problem (degraded, down, refused, unusable backends, contested frontends) and of those in metrics.backends.", "service", "state")
	familyUsable          = stateMetrics.Gauge("service_usable_backends", "Backends of a service that take new connections.", "service")
	familyUnhealthy       = stateMetrics.Gauge("service_unhealthy_backends", "Backends of a service that are ready and unhealthy.", "service")
	familyServiceContest  = stateMetrics.Gauge("service_contested_frontends", "Its frontends that another program keeps changing.", "service")
	familyOverrides       = stateMetrics.Gauge("overrides", "Operator overrides of single backends by state.", "state")
	familyLocalOverrides  = stateMetrics.Gauge("overrides_local", "Changes of overrides that wait on this host until the fleet's store is reachable.")
	familySourceUp        = stateMetrics.Gauge("source_up", "1: synced and current; 0: its services may be stale.", "source")
	familySourceSync      = stateMetrics.Gauge("source_last_sync_timestamp_seconds", "Unix time of the last update; 0: never.", "source")
	familySourceServices  = stateMetrics.Gauge("source_services", "Services of the source, also those that another source overrides.", "source")
	familySourceProblems  = stateMetrics.Gauge("source_problems", "Problems with the source's input.", "source")
	familySourceRestarts  = stateMetrics.Counter("source_restarts_total", "Restarts of the source after a failure.", "source")
	familyPool            = stateMetrics.Gauge("pool_addresses", "Addresses by state: used, cooling, reserved (and not used), held_out, free.", "pool", "state")
	familyLeases          = stateMetrics.Gauge("leases", "Leases by kind and state.", "kind", "state")
	familyFrontends       = stateMetrics.Gauge("dataplane_frontends", "Frontends by state: applied, pending, failed.", "state")
	familyDesired         = stateMetrics.Gauge("desired_revision", "Newest revision of the desired frontends.")
	familyApplied         = stateMetrics.Gauge("applied_revision", "Revision up to which all changes of frontends have been tried.")
	familyRepairs         = stateMetrics.Counter("drift_repairs_total", "Repairs of frontends that another program changed.")
	familyContested       = stateMetrics.Gauge("dataplane_contested_frontends", "Frontends that another program keeps changing.")
	familyLeaving         = stateMetrics.Gauge("dataplane_leaving_connections", "Open connections of a replaced dataplane, while it exists.", "dataplane")
	familyWrites          = stateMetrics.Counter("dataplane_writes_total", "Frontend updates sent to the dataplane.")
	familyStatus          = stateMetrics.Gauge("status_level", "Line of ironvip status: 0 ok, 1 warning, 2 failure.", "check")
	familyRefused         = stateMetrics.Counter("dataplane_refused_total", "Refused clients; userspace proxy only.", "reason")
	familyServiceRefused  = stateMetrics.Counter("service_refused_total", "Refused clients of the service; only reasons that occurred.", "service", "reason")
	familyQueue           = stateMetrics.Gauge("service_queued_clients", "Clients that wait for a place; only with max_queue.", "service")
	familyFull            = stateMetrics.Gauge("service_full", "1: new clients find no place (max_connections); only of services with limits or refused clients, userspace proxy only.", "service")
	familySYNs            = stateMetrics.Counter("service_syns_answered_total", "SYNs that the host answered itself in a flood, for syn_proxy; only services that had one.", "service")
	familyAPIRefused      = stateMetrics.Counter("api_refused_total", "API callers refused for a limit: connections, client_connections, client_requests, streams, client_streams.", "kind")
	familyReady           = stateMetrics.Gauge("ready", "1: the first full reconcile is done.")
	familyReloadOK        = stateMetrics.Gauge("config_last_reload_successful", "1: the last load of the configuration succeeded.")
	familyConvergence     = stateMetrics.Histogram("convergence_duration_seconds", "Time from a source's change until the dataplane has applied it.", "source")
	familyReloadTimestamp = stateMetrics.Gauge("config_last_reload_success_timestamp_seconds", "Unix time at which the current configuration was loaded.")
)

// leaseKind is what leases are counted by.
type leaseKind struct {
	of    string // v1.KindAddress or v1.KindNodePort
	state ipam.LeaseState
}

// collectTables costs O(services and frontends with trouble).
func (s *Server) collectTables(w *metric.Writer) {
	w.Add(familyBuild, 1, s.Version)
	w.Truth(familyReady, s.isReady())
	for _, check := range s.status().Checks {
		w.Add(familyStatus, float64(rank(check.Level)), check.Name)
	}
	s.addServices(w)
	s.addOverrides(w)
	for _, src := range s.sources() {
		w.Truth(familySourceUp, src.Synced && src.Stale == "", src.Name)
		last := 0.0
		if src.LastSync != nil {
			last = float64(src.LastSync.UnixMilli()) / 1000
		}
		w.Add(familySourceSync, last, src.Name)
		w.Add(familySourceServices, float64(src.Services), src.Name)
		w.Add(familySourceProblems, float64(len(src.Problems)), src.Name)
		w.Add(familySourceRestarts, float64(src.Restarts), src.Name)
	}
	if s.hasBegun() { // else the free addresses are not known
		for _, p := range s.Addresses.Pools() {
			w.Add(familyPool, float64(p.Used), p.Name, "used")
			w.Add(familyPool, float64(p.Cooling), p.Name, "cooling")
			w.Add(familyPool, float64(p.Reserved), p.Name, "reserved")
			w.Add(familyPool, float64(p.HeldOut), p.Name, "held_out")
			w.Add(familyPool, float64(p.Free), p.Name, "free")
		}
	}
	for kind, n := range s.leases() {
		w.Add(familyLeases, float64(n), kind.of, kind.state.String())
	}
	s.addRefusals(w)
	stats, d := s.Forwarding.Stats(), s.forwarding.State()
	w.Add(familyDesired, float64(stats.DesiredRev))
	w.Add(familyApplied, float64(stats.AppliedRev))
	w.Add(familyRepairs, float64(stats.DriftRepairs))
	w.Add(familyContested, float64(stats.Contested))
	w.Add(familyWrites, float64(stats.Writes))
	w.Add(familyFrontends, float64(d.Frontends-d.Pending-d.Failed), "applied")
	w.Add(familyFrontends, float64(d.Pending), "pending")
	w.Add(familyFrontends, float64(d.Failed), "failed")
	leaving := map[string]int{}
	for _, f := range d.Leaving {
		leaving[f.Mode] += f.Connections
	}
	for mode, n := range leaving {
		w.Add(familyLeaving, float64(n), mode)
	}
	ok, at := s.Config.Loaded()
	w.Truth(familyReloadOK, ok)
	w.Add(familyReloadTimestamp, float64(at.UnixMilli())/1000)
}

func (s *Server) addServices(w *metric.Writer) {
	for k, n := range s.trouble.States() {
		w.Add(familyServices, float64(n), k.Source, string(k.State))
	}
	of, sum := s.trouble.Tallies()
	eachState(&sum, func(state string, n int) { w.Add(familyAllBackends, float64(n), state) })
	w.Add(familyAllUsable, float64(sum.Usable))
	w.Add(familyAllUnhealthy, float64(sum.Unhealthy))
	for key, t := range of {
		service := key.String()
		eachState(&t, func(state string, n int) { w.Add(familyBackends, float64(n), service, state) })
		w.Add(familyUsable, float64(t.Usable), service)
		w.Add(familyUnhealthy, float64(t.Unhealthy), service)
		w.Add(familyServiceContest, float64(t.Contested), service)
	}
}

// eachState calls f with the number of backends in each state.
func eachState(t *trouble.Tally, f func(state string, n int)) {
	f(vip.Ready.String(), t.Ready)
	f(vip.Drain.String(), t.Drain)
	f(vip.Maint.String(), t.Maint)
}

func (s *Server) addOverrides(w *metric.Writer) {
	count := map[vip.State]int{vip.Drain: 0, vip.Maint: 0}
	for _, o := range s.Tables.Overrides.All() {
		if o.Group == "" {
			count[o.State]++
		}
	}
	for state, n := range count {
		w.Add(familyOverrides, float64(n), state.String())
	}
	w.Add(familyLocalOverrides, float64(len(s.Services.LocalOverrides())))
}

var (
	trafficMetrics = metric.NewGroup("Traffic", "")

	frontendLabels  = []string{"service", "port", "frontend"}
	directionLabels = []string{"service", "port", "frontend", "direction"}

	familyStatsUp     = trafficMetrics.Gauge("statistics_up", "1: this scrape read the dataplane's counters; 0: the series below are missing.")
	familyConnections = trafficMetrics.Counter("service_connections_total", "Connections given to a backend; a UDP client counts as one. This and the next ones: from the first connection of the frontend on.", frontendLabels...)
	familyBytes       = trafficMetrics.Counter("service_bytes_total", "Bytes from clients (in) and to clients (out): of IP packets with ipvs and nft, of payload with the proxy.", directionLabels...)
	familyPackets     = trafficMetrics.Counter("service_packets_total", "Packets from clients (in) and to clients (out); not with the proxy.", directionLabels...)
	familyActive      = trafficMetrics.Gauge("service_active_connections", "Established TCP connections and recently active UDP clients.", frontendLabels...)
	familyInactive    = trafficMetrics.Gauge("service_inactive_connections", "TCP connections that are opening, closing or in a timed wait; not with the proxy.", frontendLabels...)
)

// collectTraffic reads the dataplane's counters at each scrape, with one read for all frontends. Frontends without
// traffic have no series.
// When the dataplane recreates a frontend, its counters fall to 0, which Prometheus detects as a
// reset. Each frontend therefore has its own series. A sum over several would fall only partly, and
// Prometheus would count that as a reset of the sum.
func (s *Server) collectTraffic(w *metric.Writer) {
	if !s.hasBegun() { // nothing is forwarded yet, and the counters wait for the start
		w.Add(familyStatsUp, 0)
		return
	}
	totals, err := s.forwarding.Totals(context.Background())
	if err != nil {
		s.Log.Warn("read the dataplane's counters", "err", err)
		w.Add(familyStatsUp, 0)
		return
	}
	w.Add(familyStatsUp, 1)
	counted, refused, syns := s.Forwarding.Statistics.Counted(), map[[2]string]uint64{}, map[string]uint64{}
	for key, t := range totals {
		row := s.Tables.Frontends.Row(key)
		if row == nil || t == (reconcile.Traffic{}) {
			continue
		}
		service, port, frontend := row.Value.Service.String(), row.Value.Port, key.String()
		w.Add(familyConnections, float64(t.Connections), service, port, frontend)
		w.Add(familyActive, float64(t.Active), service, port, frontend)
		w.Add(familyBytes, float64(t.In.Bytes), service, port, frontend, "in")
		w.Add(familyBytes, float64(t.Out.Bytes), service, port, frontend, "out")
		if counted.Packets {
			w.Add(familyPackets, float64(t.In.Packets), service, port, frontend, "in")
			w.Add(familyPackets, float64(t.Out.Packets), service, port, frontend, "out")
		}
		refused[[2]string{service, vip.MaxConnectionsPerSource}] += t.Refused.Connections
		refused[[2]string{service, vip.MaxRatePerSource}] += t.Refused.Rate
		syns[service] += t.Refused.SYNs
		if counted.Inactive {
			w.Add(familyInactive, float64(t.Inactive), service, port, frontend)
		}
	}
	for service, n := range syns {
		if n > 0 {
			w.Add(familySYNs, float64(n), service)
		}
	}
	for labels, n := range refused {
		if n > 0 {
			w.Add(familyServiceRefused, float64(n), labels[:]...)
		}
	}
}
