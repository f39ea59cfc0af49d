package api

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironvip/ironvip/internal/pipeline/compile"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// healthCollector reads the health of the backends and the counters of the probes at each scrape. A
// scrape costs O(backends), or O(1) without series of single backends.
type healthCollector struct{ s *Server }

var (
	descHealth          = desc("backend_health_status", "1: the observed health of the backend: unknown, healthy, unhealthy, unchecked or ejected.", "service", "backend", "health")
	descConnectFailures = desc("backend_connect_failures_total", "Connects to the backend that were refused or timed out, and UDP refusals.", "service", "backend")
	descEarlyResets     = desc("backend_early_resets_total", "Connections that the backend reset before its first byte.", "service", "backend")
	descUnanswered      = desc("backend_unanswered_total", "Connections that ended without a byte of the backend, while other backends answered their clients.", "service", "backend")
	descRetries         = desc("backend_retries_total", "Clients that were sent to another backend after a connect to this one failed or was slow.", "service", "backend")
	descEjections       = desc("backend_ejections_total", "Times that the proxy ejected the backend because connections of clients failed.", "service", "backend")
	descTargets         = desc("health_targets", "Distinct probes of this host: an address with a check.")
	descRunning         = desc("health_checks_running", "Probes that run now.")
	descWaiting         = desc("health_checks_waiting", "Probes that are due and wait for a file descriptor or a worker.")
	descProbes          = desc("health_checks_total", "Finished probes by type and outcome; local, starved, no_descriptors and no_path are faults of this host and no evidence.", "type", "outcome")
	descDuration        = desc("health_check_duration_seconds", "Duration of finished probes by type.", "type")
	descLate            = desc("health_checks_late_total", "Probes that started more than an interval late.")
	descStalls          = desc("health_check_stalls_total", "Times that the agent did not run for more than half a second.")
	descTransitions     = desc("health_transitions_total", "Changes of the health of a target, or of the cause.")
	descHealthWrites    = desc("health_batches_total", "Batches of changed targets; many changes at once are one batch.")
)

// Describe implements prometheus.Collector; see tableCollector.
func (c *healthCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *healthCollector) Collect(ch chan<- prometheus.Metric) {
	if c.s.BackendMetrics {
		c.backends(ch)
	}
	if c.s.Probes == nil {
		return
	}
	stats := c.s.Probes()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	send(descTargets, prometheus.GaugeValue, float64(stats.Targets))
	send(descRunning, prometheus.GaugeValue, float64(stats.Running))
	send(descWaiting, prometheus.GaugeValue, float64(stats.Waiting))
	send(descLate, prometheus.CounterValue, float64(stats.Late))
	send(descStalls, prometheus.CounterValue, float64(stats.Stalls))
	send(descTransitions, prometheus.CounterValue, float64(stats.Changes))
	send(descHealthWrites, prometheus.CounterValue, float64(stats.Batches))
	for _, p := range stats.Probes {
		send(descProbes, prometheus.CounterValue, float64(p.N), p.Type.String(), p.Outcome.String())
	}
	for _, h := range stats.Durations {
		buckets := make(map[float64]uint64, len(h.Bounds))
		for i, bound := range h.Bounds {
			buckets[bound.Seconds()] = h.Counts[i]
		}
		ch <- prometheus.MustNewConstHistogram(descDuration, h.Count, h.Sum.Seconds(), buckets, h.Type.String())
	}
}

// backends sends one series for each backend.
func (c *healthCollector) backends(ch chan<- prometheus.Metric) {
	health := func(k vip.BackendKey) *vip.BackendHealth {
		if row := c.s.Health.Row(k); row != nil {
			return &row.Value
		}
		return nil
	}
	passive := func(k vip.PassiveKey) *vip.PassiveHealth {
		if row := c.s.Passive.Row(k); row != nil {
			return &row.Value
		}
		return nil
	}
	for key := range c.s.Services.All() {
		row := c.s.Services.Row(key)
		if row == nil {
			continue
		}
		view, name := compile.View{Service: &row.Value, Health: health, Passive: passive}, key.String()
		for i := range row.Value.Backends {
			b := &row.Value.Backends[i]
			seen, _ := view.Observed(b)
			ch <- prometheus.MustNewConstMetric(descHealth, prometheus.GaugeValue, 1, name, b.ID(), seen.String())
			c.failures(ch, &view, b, name)
		}
	}
}

// failures sends what the dataplane counted of a backend, if any connection to it has failed.
func (c *healthCollector) failures(ch chan<- prometheus.Metric, view *compile.View, b *vip.Backend, service string) {
	if c.s.Outliers == nil {
		return
	}
	var n reconcile.Failures
	for _, key := range view.AddressesOf(b) {
		n.Add(c.s.Outliers.Failures(key))
	}
	if n == (reconcile.Failures{}) {
		return
	}
	for d, v := range map[*prometheus.Desc]uint64{descConnectFailures: n.Connects, descEarlyResets: n.Resets, descUnanswered: n.Unanswered, descRetries: n.Retries, descEjections: n.Ejections} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), service, b.ID())
	}
}
