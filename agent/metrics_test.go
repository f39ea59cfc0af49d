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
)

var update = flag.Bool("update", false, "rewrite docs/metrics.md")

const metricsHead = `# Metrics

` + "`go test ./agent -run TestMetricsReference -update`" + ` writes this page from the code. An
agent answers ` + "`/metrics`" + ` in Prometheus' text format. It has these metrics, and those of Prometheus'
Go library about the runtime and the process (` + "`go_*`, `process_*`" + `). [Running
ironvip](operations.md#alerts) says which of them to watch, and has rules and a dashboard. Metrics
of parts that a host doesn't use are missing.
`

// TestMetricsReference keeps docs/metrics.md equal to the metrics of the code.
func TestMetricsReference(t *testing.T) {
	var b strings.Builder
	b.WriteString(metricsHead)
	seen := map[string]bool{}
	groups := append(api.MetricGroups(), planes.Metrics()...)
	for _, g := range append(groups, announcing.Metrics, lostnodes.Metrics, naming.Metrics, hook.Metrics) {
		fmt.Fprintf(&b, "\n## %s\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n", g.Title)
		for _, f := range g.Families() {
			if seen[f.Name] {
				t.Errorf("two metrics %s", f.Name)
			}
			seen[f.Name] = true
			labels := ""
			if len(f.Labels) > 0 {
				labels = "`" + strings.Join(f.Labels, "`, `") + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, f.Kind, labels, strings.ReplaceAll(f.Help, "|", `\|`))
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
