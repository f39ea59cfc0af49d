package api

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/metrictest"
	"github.com/ironvip/ironvip/test/wait"
)

func TestMetrics(t *testing.T) {
	r := newRig(t, func(d *Deps) {
		d.Config.Loaded = func() (bool, time.Time) { return true, time.Unix(1000, 0) }
		others := metric.NewGroup("Others", "").Gauge("of_others", "Of another package.")
		d.Metrics = []metric.Collector{func(w *metric.Writer) { w.Add(others, 7) }}
	})
	decode[v1.Service](r, "PUT", webPath, `{"ports":[{"port":80}],"backends":[{"address":"10.0.0.1"},{"address":"10.0.0.2","state":"maint"}]}`, "Prefer: wait=60")
	var a answer
	wait.Until(t, "the convergence is measured", func() bool {
		a = r.ask("GET", v1.PathMetrics, "")
		return strings.Contains(string(a.body), `convergence_duration_seconds_count{source="rest"} 1`)
	})
	for _, want := range []string{
		`ironvip_build_info{version="0.0.1"} 1`,
		`ironvip_convergence_duration_seconds_count{source="rest"} 1`,
		`ironvip_services{source="files",state="unchecked"} 1`,
		`ironvip_services{source="rest",state="degraded"} 1`,
		`ironvip_service_backends{service="web",state="maint"} 1`,
		`ironvip_service_backends{service="web",state="drain"} 0`,
		`ironvip_service_usable_backends{service="web"} 1`,
		`ironvip_status_level{check="services"} 1`, `ironvip_status_level{check="sources"} 0`,
		`ironvip_source_up{source="files"} 1`,
		`ironvip_source_last_sync_timestamp_seconds{source="rest"}`,
		`ironvip_pool_addresses{pool="lan",state="used"} 2`,
		`ironvip_leases{kind="address",state="held"} 2`,
		`ironvip_dataplane_frontends{state="applied"} 2`,
		`ironvip_desired_revision`, `ironvip_applied_revision`, `ironvip_drift_repairs_total 0`, `ironvip_ready 1`,
		`ironvip_config_last_reload_successful 1`, `ironvip_config_last_reload_success_timestamp_seconds 1000`,
		`go_goroutines`, `ironvip_of_others 7`,
	} {
		expect.Contains(t, string(a.body), want, "no")
	}
	if t.Failed() {
		t.Logf("%s", a.body)
	}
	metrictest.Check(t, string(a.body), "ironvip_")
}
