package api

import (
	"context"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humagin"

	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// metrics returns the handler of /metrics.
func (s *Server) metrics() func(context.Context, *struct{}) (*server.Stream, error) {
	own := []metric.Collector{s.collectTables, s.collectHealth, s.convergence.durations.Collect}
	if s.Statistics != nil {
		own = append(own, s.collectTraffic)
	}
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
	familyBackends        = stateMetrics.Gauge("service_backends", "Backends of each service by their effective state.", "service", "state")
	familyUsable          = stateMetrics.Gauge("service_usable_backends", "Backends of each service that take new connections.", "service")
	familyUnhealthy       = stateMetrics.Gauge("service_unhealthy_backends", "Backends of each service that are ready and unhealthy.", "service")
	familyOverrides       = stateMetrics.Gauge("overrides", "Operator overrides of single backends by state.", "state")
	familyLocalOverrides  = stateMetrics.Gauge("overrides_local", "Changes of operator overrides that are stored on this host only, until the fleet's store is reachable.")
	familySourceUp        = stateMetrics.Gauge("source_up", "1: the source is synced and current; 0: its services may be stale.", "source")
	familySourceSync      = stateMetrics.Gauge("source_last_sync_timestamp_seconds", "Time of the source's last update, in Unix time; 0: never.", "source")
	familySourceServices  = stateMetrics.Gauge("source_services", "Services of the source, including those that another source overrides.", "source")
	familySourceProblems  = stateMetrics.Gauge("source_problems", "Problems with the source's input.", "source")
	familySourceRestarts  = stateMetrics.Counter("source_restarts_total", "Restarts of the source after a failure.", "source")
	familyPool            = stateMetrics.Gauge("pool_addresses", "Addresses of each pool by state: used, cooling, reserved (and not used), held_out, free.", "pool", "state")
	familyLeases          = stateMetrics.Gauge("leases", "Leases by kind and state.", "kind", "state")
	familyFrontends       = stateMetrics.Gauge("dataplane_frontends", "Frontends by state: applied, pending, failed.", "state")
	familyDesired         = stateMetrics.Gauge("desired_revision", "Newest revision of the desired frontends.")
	familyApplied         = stateMetrics.Gauge("applied_revision", "All frontend changes up to this revision have been tried.")
	familyRepairs         = stateMetrics.Counter("drift_repairs_total", "Repairs of frontends that another program changed.")
	familyContested       = stateMetrics.Gauge("dataplane_contested_frontends", "Frontends that another program keeps changing.")
	familyLeaving         = stateMetrics.Gauge("dataplane_leaving_connections", "Open connections of dataplanes that were replaced, only while there are such dataplanes.", "dataplane")
	familyWrites          = stateMetrics.Counter("dataplane_writes_total", "Frontend updates sent to the dataplane.")
	familyStatus          = stateMetrics.Gauge("status_level", "Level of each check of ironvip status: 0 ok, 1 warning, 2 failure.", "check")
	familyRefused         = stateMetrics.Counter("dataplane_refused_total", "Clients that the dataplane refused, by reason; userspace proxy only.", "reason")
	familyServiceRefused  = stateMetrics.Counter("service_refused_total", "Clients of the service that the dataplane refused, by reason; only reasons that occurred.", "service", "reason")
	familyQueue           = stateMetrics.Gauge("service_queued_clients", "Clients that wait for a place, only of services with max_queue.", "service")
	familyFull            = stateMetrics.Gauge("service_full", "1: new clients of the service find no place (max_connections); only of services with max_connections or max_queue, userspace proxy only.", "service")
	familyAPIRefused      = stateMetrics.Counter("api_refused_total", "Callers of the API that were refused because of a limit: connections, client_connections, client_requests, streams, client_streams.", "kind")
	familyReady           = stateMetrics.Gauge("ready", "1: the first full reconcile is done.")
	familyReloadOK        = stateMetrics.Gauge("config_last_reload_successful", "1: the last load of the configuration succeeded.")
	familyConvergence     = stateMetrics.Histogram("convergence_duration_seconds", "Time from a source's change of a service until the dataplane has applied it.", "source")
	familyReloadTimestamp = stateMetrics.Gauge("config_last_reload_success_timestamp_seconds", "Load time of the current configuration, in Unix time.")
)

// collectTables reads the tables at each scrape, so that no counters need updates. It costs O(services +
// frontends).
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
	if s.Pools != nil && s.hasBegun() { // else the free addresses are not known
		for _, p := range s.Pools() {
			w.Add(familyPool, float64(p.Used), p.Name, "used")
			w.Add(familyPool, float64(p.Cooling), p.Name, "cooling")
			w.Add(familyPool, float64(p.Reserved), p.Name, "reserved")
			w.Add(familyPool, float64(p.HeldOut), p.Name, "held_out")
			w.Add(familyPool, float64(p.Free), p.Name, "free")
		}
	}
	s.addLeases(w)
	s.addRefusals(w)
	if s.Stats != nil {
		stats := s.Stats()
		w.Add(familyDesired, float64(stats.DesiredRev))
		w.Add(familyApplied, float64(stats.AppliedRev))
		w.Add(familyRepairs, float64(stats.DriftRepairs))
		w.Add(familyContested, float64(stats.Contested))
		w.Add(familyWrites, float64(stats.Writes))
		if s.Deps.Dataplane != nil {
			d := s.dataplane()
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
		}
	}
	if s.Config.Loaded != nil {
		ok, at := s.Config.Loaded()
		w.Truth(familyReloadOK, ok)
		w.Add(familyReloadTimestamp, float64(at.UnixMilli())/1000)
	}
}

func (s *Server) addLeases(w *metric.Writer) {
	count := map[[2]string]int{}
	seen := map[ipam.Resource]bool{}
	for r, l := range s.Leases.All() {
		if seen[r] {
			continue
		}
		seen[r] = true
		kind := v1.KindAddress
		if !r.Addr.IsValid() {
			kind = v1.KindNodePort
		}
		count[[2]string{kind, l.State.String()}]++
	}
	for k, n := range count {
		w.Add(familyLeases, float64(n), k[0], k[1])
	}
}

// tally contains the metrics of one service.
type tally struct {
	source string
	state  status.State
	// Backends by their effective state, including those that are removed and still drain, and how
	// many of them accept new connections.
	ready, drain, maint, usable int
	// Backends that are ready and unhealthy.
	unhealthy int
}

// tallies returns the tally of each service. It reads no status: the index has those of the services
// that need one.
func (s *Server) tallies() map[vip.ServiceKey]tally {
	out := make(map[vip.ServiceKey]tally, s.Services.Len())
	for key := range s.Services.All() {
		if row := s.Services.Row(key); row != nil {
			n := len(row.Value.Backends)
			out[key] = tally{source: row.Value.Source, state: status.Healthy, ready: n, usable: n}
		}
	}
	// After the rows, so that a newly added service doesn't count as healthy.
	for key, service := range s.unhealthy.known() {
		if _, exists := out[key]; exists {
			out[key] = service.tally
		}
	}
	return out
}

// tallyOf counts the backends of a service.
func tallyOf(in *status.Input, r *status.Report) tally {
	t := tally{source: in.Service.Source, state: r.State, usable: r.Ready, unhealthy: r.Unhealthy, drain: len(status.UsesOf(in).Removed)}
	for i := range in.Service.Backends {
		switch in.StateOf(&in.Service.Backends[i]) {
		case vip.Ready:
			t.ready++
		case vip.Drain:
			t.drain++
		case vip.Maint:
			t.maint++
		}
	}
	return t
}

func (s *Server) addServices(w *metric.Writer) {
	type kind struct {
		source string
		state  status.State
	}
	count := map[kind]int{}
	for key, t := range s.tallies() {
		count[kind{t.source, t.state}]++
		service := key.String()
		w.Add(familyBackends, float64(t.ready), service, vip.Ready.String())
		w.Add(familyBackends, float64(t.drain), service, vip.Drain.String())
		w.Add(familyBackends, float64(t.maint), service, vip.Maint.String())
		w.Add(familyUsable, float64(t.usable), service)
		w.Add(familyUnhealthy, float64(t.unhealthy), service)
	}
	for k, n := range count {
		w.Add(familyServices, float64(n), k.source, string(k.state))
	}
}

func (s *Server) addOverrides(w *metric.Writer) {
	count := map[vip.State]int{vip.Drain: 0, vip.Maint: 0}
	for _, o := range s.Overrides.All() {
		count[o.State]++
	}
	for state, n := range count {
		w.Add(familyOverrides, float64(n), state.String())
	}
	w.Add(familyLocalOverrides, float64(len(s.localOverrides())))
}

var (
	trafficMetrics = metric.NewGroup("Traffic", "")

	frontendLabels  = []string{"service", "port", "frontend"}
	directionLabels = []string{"service", "port", "frontend", "direction"}

	familyStatsUp     = trafficMetrics.Gauge("statistics_up", "1: the dataplane's counters were read in this scrape; 0: the service traffic series are missing.")
	familyConnections = trafficMetrics.Counter("service_connections_total", "Connections given to a backend, by frontend; a UDP client counts as one.", frontendLabels...)
	familyBytes       = trafficMetrics.Counter("service_bytes_total", "Bytes from clients (in) and to them (out), by frontend: of IP packets with ipvs and nft, of payload with the proxy.", directionLabels...)
	familyPackets     = trafficMetrics.Counter("service_packets_total", "Packets from clients (in) and to them (out), by frontend; not with the proxy.", directionLabels...)
	familyActive      = trafficMetrics.Gauge("service_active_connections", "Open connections, by frontend: established TCP connections and recently active UDP clients.", frontendLabels...)
	familyInactive    = trafficMetrics.Gauge("service_inactive_connections", "TCP connections that are opening, closing or in a timed wait, by frontend; not with the proxy.", frontendLabels...)
)

// collectTraffic reads the dataplane's counters at each scrape, with one read for all frontends.
// When the dataplane recreates a frontend, its counters fall to 0, which Prometheus detects as a
// reset. Each frontend therefore has its own series. A sum over several would fall only partly, and
// Prometheus would count that as a reset of the sum.
func (s *Server) collectTraffic(w *metric.Writer) {
	if !s.hasBegun() { // nothing is forwarded yet, and the counters wait for the start
		w.Add(familyStatsUp, 0)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), countingTime)
	defer cancel()
	totals, err := s.Statistics.Totals(ctx, s.wanted)
	if err != nil {
		s.Log.Warn("read the dataplane's counters", "err", err)
		w.Add(familyStatsUp, 0)
		return
	}
	w.Add(familyStatsUp, 1)
	counted := s.Statistics.Counted()
	for f, t := range s.counted(totals) {
		service, frontend := f.Service.String(), f.Key.String()
		w.Add(familyConnections, float64(t.Connections), service, f.Port, frontend)
		w.Add(familyActive, float64(t.Active), service, f.Port, frontend)
		w.Add(familyBytes, float64(t.In.Bytes), service, f.Port, frontend, "in")
		w.Add(familyBytes, float64(t.Out.Bytes), service, f.Port, frontend, "out")
		if counted.Packets {
			w.Add(familyPackets, float64(t.In.Packets), service, f.Port, frontend, "in")
			w.Add(familyPackets, float64(t.Out.Packets), service, f.Port, frontend, "out")
		}
		if counted.Inactive {
			w.Add(familyInactive, float64(t.Inactive), service, f.Port, frontend)
		}
	}
}
