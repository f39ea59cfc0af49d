package api

import (
	"context"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humagin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/ipam"
)

// metrics returns the handler of /metrics.
func (s *Server) metrics() func(context.Context, *struct{}) (*server.Stream, error) {
	own := prometheus.NewRegistry()
	own.MustRegister(&tableCollector{s}, s.convergence.seconds, collectors.NewGoCollector(),
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
