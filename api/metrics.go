package api

import (
	"context"
	"iter"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humagin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/status"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// metrics returns the handler of /metrics.
func (s *Server) metrics() func(context.Context, *struct{}) (*server.Stream, error) {
	own := prometheus.NewRegistry()
	own.MustRegister(&tableCollector{s}, &healthCollector{s}, s.convergence.seconds, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if s.Statistics != nil {
		own.MustRegister(&statsCollector{s})
	}
	if s.Metrics != nil {
		own.MustRegister(s.Metrics) // in one registry, because Gatherers of several check every series again
	}
	handler := promhttp.HandlerFor(own, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4})
	return func(context.Context, *struct{}) (*server.Stream, error) {
		return server.NewStream(func(ctx huma.Context) {
			c := humagin.Unwrap(ctx)
			handler.ServeHTTP(c.Writer, c.Request)
		}), nil
	}
}

// tableCollector reads the tables at each scrape, so that no counters need updates. A scrape costs
// O(services + frontends).
type tableCollector struct{ s *Server }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("ironvip_"+name, help, labels, nil)
}

// The metrics that are read from tables. Labels are names of configured or registered objects, so
// their number is bounded by those.
var (
	descBuild           = desc("build_info", "The agent's version; always 1.", "version")
	descServices        = desc("services", "Services by source and state.", "source", "state")
	descBackends        = desc("service_backends", "Backends of each service by their effective state.", "service", "state")
	descUsable          = desc("service_usable_backends", "Backends of each service that take new connections.", "service")
	descUnhealthy       = desc("service_unhealthy_backends", "Backends of each service that are ready and unhealthy.", "service")
	descOverrides       = desc("overrides", "Operator overrides of single backends by state.", "state")
	descLocalOverrides  = desc("overrides_local", "Changes of operator overrides that are stored on this host only, until the fleet's store is reachable.")
	descSourceUp        = desc("source_up", "1: the source is synced and current; 0: its services may be stale.", "source")
	descSourceSync      = desc("source_last_sync_timestamp_seconds", "Time of the source's last update, in Unix time; 0: never.", "source")
	descSourceServices  = desc("source_services", "Services of the source, including those that another source overrides.", "source")
	descSourceProblems  = desc("source_problems", "Problems with the source's input.", "source")
	descSourceRestarts  = desc("source_restarts_total", "Restarts of the source after a failure.", "source")
	descPool            = desc("pool_addresses", "Addresses of each pool by state: used, cooling, held_out, free.", "pool", "state")
	descLeases          = desc("leases", "Leases by kind and state.", "kind", "state")
	descFrontends       = desc("dataplane_frontends", "Frontends by state: applied, pending, failed.", "state")
	descDesired         = desc("desired_revision", "Newest revision of the desired frontends.")
	descApplied         = desc("applied_revision", "All frontend changes up to this revision have been tried.")
	descRepairs         = desc("drift_repairs_total", "Repairs of frontends that another program changed.")
	descContested       = desc("dataplane_contested_frontends", "Frontends that another program keeps changing; their repairs back off.")
	descWrites          = desc("dataplane_writes_total", "Frontend updates sent to the dataplane.")
	descStatus          = desc("status_level", "Level of each check of ironvip status: 0 ok, 1 warning, 2 failure.", "check")
	descRefused         = desc("dataplane_refused_total", "Clients that the dataplane refused, by reason; userspace proxy only.", "reason")
	descServiceRefused  = desc("service_refused_total", "Clients of the service that the dataplane refused, by reason; only reasons that occurred.", "service", "reason")
	descQueue           = desc("service_queued_clients", "Clients that wait for a place, only of services with max_queue.", "service")
	descFull            = desc("service_full", "1: new clients of the service find no place (max_connections); only of services with max_connections or max_queue, userspace proxy only.", "service")
	descAPIRefused      = desc("api_refused_total", "Callers of the API that were refused because of a limit: connections, streams.", "kind")
	descReady           = desc("ready", "1: the first full reconcile is done.")
	descReloadOK        = desc("config_last_reload_successful", "1: the last load of the configuration succeeded.")
	descReloadTimestamp = desc("config_last_reload_success_timestamp_seconds", "Load time of the current configuration, in Unix time.")
)

// Describe implements prometheus.Collector. It yields nothing: a scrape then checks the metrics by
// themselves.
func (c *tableCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *tableCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.s
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge(descBuild, 1, s.Version)
	gauge(descReady, truth(s.isReady()))
	for _, check := range s.status().Checks {
		gauge(descStatus, float64(rank(check.Level)), check.Name)
	}
	c.services(gauge)
	c.overrides(gauge)
	for _, src := range s.sources() {
		gauge(descSourceUp, truth(src.Synced && src.Stale == ""), src.Name)
		last := 0.0
		if src.LastSync != nil {
			last = float64(src.LastSync.UnixMilli()) / 1000
		}
		gauge(descSourceSync, last, src.Name)
		gauge(descSourceServices, float64(src.Services), src.Name)
		gauge(descSourceProblems, float64(len(src.Problems)), src.Name)
		counter(descSourceRestarts, float64(src.Restarts), src.Name)
	}
	if s.Pools != nil && s.hasBegun() { // else the free addresses are not known
		for _, p := range s.Pools() {
			gauge(descPool, float64(p.Used), p.Name, "used")
			gauge(descPool, float64(p.Cooling), p.Name, "cooling")
			gauge(descPool, float64(p.HeldOut), p.Name, "held_out")
			gauge(descPool, float64(p.Free), p.Name, "free")
		}
	}
	c.leases(gauge)
	c.refusals(gauge, counter)
	if s.Stats != nil {
		stats := s.Stats()
		gauge(descDesired, float64(stats.DesiredRev))
		gauge(descApplied, float64(stats.AppliedRev))
		counter(descRepairs, float64(stats.DriftRepairs))
		gauge(descContested, float64(stats.Contested))
		counter(descWrites, float64(stats.Writes))
		if s.Deps.Dataplane != nil {
			d := s.dataplane()
			gauge(descFrontends, float64(d.Frontends-d.Pending-d.Failed), "applied")
			gauge(descFrontends, float64(d.Pending), "pending")
			gauge(descFrontends, float64(d.Failed), "failed")
		}
	}
	if s.Config.Loaded != nil {
		ok, at := s.Config.Loaded()
		gauge(descReloadOK, truth(ok))
		gauge(descReloadTimestamp, float64(at.UnixMilli())/1000)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (c *tableCollector) leases(gauge func(*prometheus.Desc, float64, ...string)) {
	count := map[[2]string]int{}
	seen := map[ipam.Resource]bool{}
	for r, l := range c.s.Leases.All() {
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
		gauge(descLeases, float64(n), k[0], k[1])
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

// tallies yields the tally of each service once. It doesn't read the status of healthy services,
// usually most of them.
func (s *Server) tallies() iter.Seq2[vip.ServiceKey, tally] {
	return func(yield func(vip.ServiceKey, tally) bool) {
		rows := make(map[vip.ServiceKey]*table.Row[vip.Service], s.Services.Len())
		for key := range s.Services.All() {
			if row := s.Services.Row(key); row != nil {
				rows[key] = row
			}
		}
		// The states are read after the rows, so that a newly added service doesn't count as
		// healthy.
		states, leave := s.unhealthy.notHealthy()
		for key, row := range rows {
			n := len(row.Value.Backends)
			t := tally{source: row.Value.Source, state: status.Healthy, ready: n, usable: n}
			state, unhealthy := states[key]
			// All backends of an unchecked service are ready and usable, too.
			if _, leaves := leave[key]; unhealthy && state.state != status.Unchecked || leaves {
				in := s.tables().Input(key, time.Time{})
				if in.Service == nil {
					continue
				}
				t = tallyOf(&in)
			}
			if unhealthy {
				t.state = state.state
			}
			if !yield(key, t) {
				return
			}
		}
	}
}

// tallyOf counts the backends of a service. It sets the state to Healthy.
func tallyOf(in *status.Input) tally {
	t := tally{source: in.Service.Source, state: status.Healthy, drain: len(removed(in))}
	for i := range in.Service.Backends {
		b := &in.Service.Backends[i]
		switch in.StateOf(b) {
		case vip.Ready:
			t.ready++
			switch {
			case in.Usable(b) && in.Ejected(b):
			case in.Usable(b):
				t.usable++
			case b.Weight > 0:
				t.unhealthy++
			}
		case vip.Drain:
			t.drain++
		case vip.Maint:
			t.maint++
		}
	}
	return t
}

func (c *tableCollector) services(gauge func(*prometheus.Desc, float64, ...string)) {
	type kind struct {
		source string
		state  status.State
	}
	count := map[kind]int{}
	for key, t := range c.s.tallies() {
		count[kind{t.source, t.state}]++
		service := key.String()
		gauge(descBackends, float64(t.ready), service, vip.Ready.String())
		gauge(descBackends, float64(t.drain), service, vip.Drain.String())
		gauge(descBackends, float64(t.maint), service, vip.Maint.String())
		gauge(descUsable, float64(t.usable), service)
		gauge(descUnhealthy, float64(t.unhealthy), service)
	}
	for k, n := range count {
		gauge(descServices, float64(n), k.source, string(k.state))
	}
}

func (c *tableCollector) overrides(gauge func(*prometheus.Desc, float64, ...string)) {
	count := map[vip.State]int{vip.Drain: 0, vip.Maint: 0}
	for _, o := range c.s.Overrides.All() {
		count[o.State]++
	}
	for state, n := range count {
		gauge(descOverrides, float64(n), state.String())
	}
	gauge(descLocalOverrides, float64(len(c.s.localOverrides())))
}

// statsCollector reads the dataplane's counters at each scrape, with one read for all frontends.
// When the dataplane recreates a frontend, its counters fall to 0, which Prometheus detects as a
// reset. Each frontend therefore has its own series. A sum over several would fall only partly, and
// Prometheus would count that as a reset of the sum.
type statsCollector struct{ s *Server }

var (
	frontendLabels  = []string{"service", "port", "frontend"}
	directionLabels = []string{"service", "port", "frontend", "direction"}

	descStatsUp     = desc("statistics_up", "1: the dataplane's counters were read in this scrape; 0: the service traffic series are missing.")
	descConnections = desc("service_connections_total", "Connections given to a backend, by frontend; a UDP client counts as one.", frontendLabels...)
	descBytes       = desc("service_bytes_total", "Bytes from clients (in) and to them (out), by frontend: of IP packets with ipvs, of payload with the proxy.", directionLabels...)
	descPackets     = desc("service_packets_total", "Packets from clients (in) and to them (out), by frontend; ipvs only.", directionLabels...)
	descActive      = desc("service_active_connections", "Open connections, by frontend: established TCP connections and recently active UDP clients.", frontendLabels...)
	descInactive    = desc("service_inactive_connections", "TCP connections that are opening, closing or in a timed wait, by frontend; ipvs only.", frontendLabels...)
)

// Describe implements prometheus.Collector; see tableCollector.
func (c *statsCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *statsCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), countingTime)
	defer cancel()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(v), labels...)
	}
	totals, err := c.s.Statistics.Totals(ctx, c.s.wanted)
	if err != nil {
		c.s.Log.Warn("read the dataplane's counters", "err", err)
		send(descStatsUp, prometheus.GaugeValue, 0)
		return
	}
	send(descStatsUp, prometheus.GaugeValue, 1)
	counted := c.s.Statistics.Counted()
	for f, t := range c.s.counted(totals) {
		service, frontend := f.Service.String(), f.Key.String()
		send(descConnections, prometheus.CounterValue, t.Connections, service, f.Port, frontend)
		send(descActive, prometheus.GaugeValue, t.Active, service, f.Port, frontend)
		send(descBytes, prometheus.CounterValue, t.In.Bytes, service, f.Port, frontend, "in")
		send(descBytes, prometheus.CounterValue, t.Out.Bytes, service, f.Port, frontend, "out")
		if counted.Packets {
			send(descPackets, prometheus.CounterValue, t.In.Packets, service, f.Port, frontend, "in")
			send(descPackets, prometheus.CounterValue, t.Out.Packets, service, f.Port, frontend, "out")
		}
		if counted.Inactive {
			send(descInactive, prometheus.GaugeValue, t.Inactive, service, f.Port, frontend)
		}
	}
}
