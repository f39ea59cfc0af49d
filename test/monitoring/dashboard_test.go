//go:build system

package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
)

// dashboard is what the tests read of a dashboard of Grafana.
type dashboard struct {
	Templating struct{ List []variable }
	Panels     []panel
}

type variable struct{ Name, Type, Definition string }

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct {
		Expr       string
		Datasource struct{ UID string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	must.Succeed(t, json.Unmarshal([]byte(read(t, "../../configs/grafana/ironvip.json")), &d))
	must.True(t, len(d.Panels) > 0, "no panels")
	return d
}

// Panels have a place, a description and the variable datasource, and read the job that is selected.
func TestDashboardIsComplete(t *testing.T) {
	d := readDashboard(t)
	if len(d.Templating.List) == 0 || d.Templating.List[0].Name != "datasource" || d.Templating.List[0].Type != "datasource" {
		t.Error("the first variable is not the data source")
	}
	seen, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if p.ID == 0 || seen[p.ID] {
			t.Errorf("panel %s: id %d is 0 or used twice", p.Title, p.ID)
		}
		seen[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other, taken := cells[cell]; taken || cell[0] >= 24 {
					t.Fatalf("panel %s overlaps %s, or is too wide", p.Title, other)
				}
				cells[cell] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("panel %q lacks a title, a description or a query", p.Title)
		}
		for _, q := range p.Targets {
			expect.Equal(t, q.Datasource.UID, "${datasource}", "panel %s has the data source", p.Title)
			if !strings.Contains(q.Expr, `job=~"$job",instance=~"$instance"`) && !strings.Contains(q.Expr, "ALERTS{") {
				t.Errorf("panel %s: %s doesn't select the job and host", p.Title, q.Expr)
			}
		}
	}
}

// inGrafana replaces what Grafana replaces.
var inGrafana = strings.NewReplacer("$job", "ironvip", "$instance", ".*", "$service", ".*", "$__rate_interval", "10s")

// Every query of the dashboard has data of a real agent in a real Prometheus.
//
// Slow: Prometheus starts, and rates need several scrapes.
func TestDashboardHasData(t *testing.T) {
	t.Parallel()
	a := startBusyAgent(t)
	everySecond := regexp.MustCompile(`(?m)^( +for:) \S+$`).ReplaceAllString(read(t, rules), "$1 0s")
	server := startPrometheus(t, a.listen, everySecond)
	d := readDashboard(t)
	type wanted struct{ title, label string } // label: must be in the result; "": none
	open := map[string]wanted{}
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			open[q.Expr] = wanted{title: p.Title}
		}
	}
	for _, v := range d.Templating.List {
		if of := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`).FindStringSubmatch(v.Definition); of != nil {
			open[of[1]] = wanted{"variable " + v.Name, of[2]}
		} else if v.Type != "datasource" {
			t.Errorf("variable %s: %q isn't understood by this test", v.Name, v.Definition)
		}
	}
	wait.For(t, "each query has data", func() error {
		err := a.work(t.Context())
		for expr, want := range open {
			if data, failed := server.hasData(t.Context(), inGrafana.Replace(expr), want.label); data {
				delete(open, expr)
			} else {
				err = errors.Join(err, failed, fmt.Errorf("%s: no data for %s", want.title, expr))
			}
		}
		return err
	})
}

// hasData reports whether the result of an expression has a number, and a label.
func (p *prometheus) hasData(ctx context.Context, expr, label string) (bool, error) {
	found, err := p.query(ctx, expr)
	for _, s := range found {
		if s.Value[1] != "NaN" && (label == "" || s.Metric[label] != "") {
			return true, err
		}
	}
	return false, err
}

const (
	folder    = "../../configs/prometheus"
	rules     = folder + "/ironvip.rules.yml"
	metrics   = "../../docs/metrics.md"
	ruleTests = folder + "/ironvip_test.yml"
)

// Each alert fires, and does not fire, in a test of promtool.
//
// Slow: promtool evaluates hours of each alert.
func TestRules(t *testing.T) {
	t.Parallel()
	promtool := need.Daemon(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "ironvip.rules.yml"}, {"test", "rules", "ironvip_test.yml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = folder
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	tests := read(t, ruleTests)
	alerts := regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(read(t, rules), -1)
	must.True(t, len(alerts) > 0, "no alerts")
	for _, alert := range alerts {
		for _, what := range []string{" fires\n", " does not fire\n"} {
			if !strings.Contains(tests, "- name: "+alert[1]+what) {
				t.Errorf("no test that %s%s", alert[1], what)
			}
		}
	}
}

// Every metric of the rules is in the reference, which is made from the code.
func TestRulesNameMetrics(t *testing.T) {
	page := read(t, metrics)
	for _, name := range regexp.MustCompile(`\bironvip_\w+`).FindAllString(withoutComments(read(t, rules)), -1) {
		expect.True(t, hasMetric(page, name), "no metric %s", name)
	}
}

// hasMetric reports whether the reference has a row for a metric, with or without labels.
func hasMetric(page, name string) bool {
	return strings.Contains(page, "\n| `"+name+"`") || strings.Contains(page, "\n| `"+name+"{")
}

// Every reason of a refusal is one of the proxy. A test of the proxy compares them with its page.
func TestRulesNameReasons(t *testing.T) {
	page := read(t, "../../docs/proxy.md")
	found := regexp.MustCompile(`reason=~?"([a-z_|]+)"`).FindAllStringSubmatch(read(t, rules)+read(t, ruleTests), -1)
	must.True(t, len(found) > 0, "no reasons")
	for _, labels := range found {
		for reason := range strings.SplitSeq(labels[1], "|") {
			expect.Contains(t, page, "\n| `"+reason+"` |", "docs/proxy.md has no reason %s", reason)
		}
	}
}

func withoutComments(yaml string) string {
	return regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAllString(yaml, "")
}
