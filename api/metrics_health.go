package api

import (
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

var (
	healthMetrics = probe.Metrics

	familyHealth          = healthMetrics.Gauge("backend_health_status", "1 for the observed health: unknown, healthy, unhealthy, unchecked or ejected.", "service", "backend", "health")
	familyConnectFailures = healthMetrics.Counter("backend_connect_failures_total", "Refused and timed out connection attempts, and UDP refusals.", "service", "backend")
	familyEarlyResets     = healthMetrics.Counter("backend_early_resets_total", "Connections that the backend reset before its first byte.", "service", "backend")
	familyUnanswered      = healthMetrics.Counter("backend_unanswered_total", "Connections that ended without a byte of the backend, while other backends answered.", "service", "backend")
	familyRetries         = healthMetrics.Counter("backend_retries_total", "Clients sent to another backend because this one failed or was slow to connect.", "service", "backend")
	familyEjections       = healthMetrics.Counter("backend_ejections_total", "Ejections of the backend after failed connections of clients.", "service", "backend")
	familyTargets         = healthMetrics.Gauge("health_targets", "Targets of this host: an address with a check.")
	familyRunning         = healthMetrics.Gauge("health_checks_running", "Probes that run now.")
	familyWaiting         = healthMetrics.Gauge("health_checks_waiting", "Due probes that wait for a file descriptor or a worker.")
	familyProbes          = healthMetrics.Counter("health_checks_total", "Finished probes; the outcomes local, starved, no_descriptors and no_path are faults of this host and no evidence.", "type", "outcome")
	familyLate            = healthMetrics.Counter("health_checks_late_total", "Probes that started more than an interval late.")
	familyStalls          = healthMetrics.Counter("health_check_stalls_total", "Pauses of the agent of more than half a second.")
	familyTransitions     = healthMetrics.Counter("health_transitions_total", "Changes of the health of a target, or of its cause.")
	familyHealthWrites    = healthMetrics.Counter("health_batches_total", "Batches of changed targets.")
)

// collectHealth reads the health of the backends of chosen services and the counters of the probes at each scrape. It costs
// O(these backends).
func (s *Server) collectHealth(w *metric.Writer) {
	s.addBackends(w)
	if s.Probes == nil {
		return
	}
	stats := s.Probes()
	w.Add(familyTargets, float64(stats.Targets))
	w.Add(familyRunning, float64(stats.Running))
	w.Add(familyWaiting, float64(stats.Waiting))
	w.Add(familyLate, float64(stats.Late))
	w.Add(familyStalls, float64(stats.Stalls))
	w.Add(familyTransitions, float64(stats.Changes))
	w.Add(familyHealthWrites, float64(stats.Batches))
	for _, p := range stats.Probes {
		w.Add(familyProbes, float64(p.N), p.Type.String(), p.Outcome.String())
	}
	stats.Durations.Collect(w)
}

// addBackends adds one series for each backend of the chosen services.
func (s *Server) addBackends(w *metric.Writer) {
	view := s.Tables.View()
	failures := s.Services.Proxy().Failures
	for _, key := range s.trouble.Chosen() {
		row := s.Tables.Services.Row(key)
		if row == nil {
			continue
		}
		view.Service = &row.Value
		name := key.String()
		for i := range row.Value.Backends {
			b := &row.Value.Backends[i]
			seen, _ := view.Observed(b)
			w.Add(familyHealth, 1, name, b.ID(), seen.String())
			addFailures(w, failures, &view, b, name)
		}
	}
}

// addFailures adds what the dataplane counted of a backend, if any connection to it has failed.
func addFailures(w *metric.Writer, of map[vip.PassiveKey]reconcile.Failures, view *compile.View, b *vip.Backend, service string) {
	var n reconcile.Failures
	var few [2]vip.PassiveKey
	for _, key := range view.AppendAddresses(few[:0], b) {
		n.Add(of[key])
	}
	if n == (reconcile.Failures{}) {
		return
	}
	w.Add(familyConnectFailures, float64(n.Connects), service, b.ID())
	w.Add(familyEarlyResets, float64(n.Resets), service, b.ID())
	w.Add(familyUnanswered, float64(n.Unanswered), service, b.ID())
	w.Add(familyRetries, float64(n.Retries), service, b.ID())
	w.Add(familyEjections, float64(n.Ejections), service, b.ID())
}
