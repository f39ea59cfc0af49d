package api

import (
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/status/statustest"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/metrictest"
	"github.com/ironvip/ironvip/vip"
)

func TestHealthMetrics(t *testing.T) {
	w := statustest.New()
	w.Healthy(1)
	w.Healthy(2)
	w.Health.Set(vip.BackendHealth{Backend: statustest.OneBackend.Key(statustest.ServiceNo(2)), Checks: []vip.CheckResult{{Type: vip.CheckTCP, Port: 80, Health: vip.Unhealthy}}})
	d := depsOf(w)
	d.Services.Proxy = func() *balance.Report {
		return &balance.Report{Failures: map[vip.PassiveKey]reconcile.Failures{statustest.PassiveKey(statustest.ServiceNo(2)): {Connects: 9, Resets: 8, Unanswered: 5, Retries: 7, Ejections: 6}}}
	}
	durations := probe.NewDurations()
	for _, took := range []time.Duration{time.Millisecond, time.Second, 2 * time.Minute} {
		durations.Observe(took, "tcp")
	}
	d.Probes = func() probe.Stats {
		return probe.Stats{Targets: 3, Running: 1, Late: 2, Stalls: 4, Batches: 5, Changes: 6,
			Probes:    []probe.ProbeCount{{Type: vip.CheckTCP, Outcome: probe.OK, N: 70}, {Type: vip.CheckHTTP, Outcome: probe.TimedOut, N: 8}},
			Durations: durations}
	}
	for _, chosen := range [][]string{{"shop/*", "default/s?"}, {"shop/*"}} {
		single := len(chosen) > 1
		d.BackendMetrics = func() []string { return chosen }
		text := metrictest.Text(t, New(d).collectHealth)
		for _, want := range []string{
			"ironvip_health_targets 3", "ironvip_health_checks_running 1", "ironvip_health_checks_waiting 0", "ironvip_health_checks_late_total 2",
			"ironvip_health_check_stalls_total 4", "ironvip_health_batches_total 5", "ironvip_health_transitions_total 6",
			`ironvip_health_checks_total{outcome="` + probe.OK.String() + `",type="tcp"} 70`, `ironvip_health_checks_total{outcome="` + probe.TimedOut.String() + `",type="http"} 8`,
			`ironvip_health_check_duration_seconds_bucket{type="tcp",le="0.001"} 1`, `ironvip_health_check_duration_seconds_bucket{type="tcp",le="1"} 2`,
			`ironvip_health_check_duration_seconds_bucket{type="tcp",le="+Inf"} 3`, `ironvip_health_check_duration_seconds_sum{type="tcp"} 121.001`,
		} {
			expect.Contains(t, text, want+"\n")
		}
		if strings.Contains(text, `failures_total{backend="10.0.0.1:80",service="s1"}`) {
			t.Error("series of a backend without failures")
		}
		for _, series := range []string{
			`ironvip_backend_connect_failures_total{backend="10.0.0.1:80",service="s2"} 9`, `ironvip_backend_early_resets_total{backend="10.0.0.1:80",service="s2"} 8`,
			`ironvip_backend_unanswered_total{backend="10.0.0.1:80",service="s2"} 5`,
			`ironvip_backend_retries_total{backend="10.0.0.1:80",service="s2"} 7`, `ironvip_backend_ejections_total{backend="10.0.0.1:80",service="s2"} 6`,
			`ironvip_backend_health_status{backend="10.0.0.1:80",health="healthy",service="s1"} 1`,
			`ironvip_backend_health_status{backend="10.0.0.1:80",health="unhealthy",service="s2"} 1`} {
			expect.Equal(t, strings.Contains(text, series+"\n"), single, "%s, want %t, in\n%s", series, single, text)
		}
	}
}
