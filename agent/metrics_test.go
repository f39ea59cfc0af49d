package agent

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/agent/announcing"
	"github.com/ironvip/ironvip/agent/lostnodes"
	"github.com/ironvip/ironvip/agent/naming"
	"github.com/ironvip/ironvip/agent/planes"
	"github.com/ironvip/ironvip/api"
	"github.com/ironvip/ironvip/hook"
	"github.com/ironvip/ironvip/internal/metric"
)

var update = flag.Bool("update", false, "rewrite docs/metrics.md")

const metricsHead = `# Metrics

This page lists the metrics of ` + "`/metrics`" + ` for those who write queries; [alerts](operations.md#alerts) says which of
them to watch. Names that end with ` + "`_total`" + ` are counters, with ` + "`_duration_seconds`" + ` histograms, and all others
gauges. Metrics of parts that a host doesn't use are missing. ` + "`go_*` and `process_*`" + ` are those of Prometheus' Go library.

<!-- go test ./agent -run TestMetricsReference -update -->
`

// TestMetricsReference keeps docs/metrics.md equal to the metrics of the code.
func TestMetricsReference(t *testing.T) {
	var b strings.Builder
	b.WriteString(metricsHead)
	seen := map[string]bool{}
	groups := append(api.MetricGroups(), planes.Metrics()...)
	for _, g := range append(groups, announcing.Metrics, lostnodes.Metrics, naming.Metrics, hook.Metrics) {
		fmt.Fprintf(&b, "\n## %s\n\n| metric | meaning |\n|---|---|\n", g.Title)
		for _, f := range g.Families() {
			if seen[f.Name] {
				t.Errorf("two metrics %s", f.Name)
			}
			seen[f.Name] = true
			if f.Kind != kindOf(f.Name) {
				t.Errorf("%s is a %s, which its name doesn't say", f.Name, f.Kind)
			}
			labels := ""
			if len(f.Labels) > 0 {
				labels = "{" + strings.Join(f.Labels, ",") + "}"
			}
			fmt.Fprintf(&b, "| `%s%s` | %s |\n", f.Name, labels, strings.ReplaceAll(f.Help, "|", `\|`))
		}
	}
	const page = "../docs/metrics.md"
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(page); err != nil || string(got) != b.String() {
		t.Errorf("%s is stale (%v): run go test ./agent -run TestMetricsReference -update", page, err)
	}
}

// kindOf returns the type of a metric as the page derives it from the name.
func kindOf(name string) metric.Kind {
	switch {
	case strings.HasSuffix(name, "_total"):
		return metric.KindCounter
	case strings.HasSuffix(name, "_duration_seconds"):
		return metric.KindHistogram
	}
	return metric.KindGauge
}
