//go:build system

package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

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
	if err := json.Unmarshal([]byte(read(t, "../../configs/grafana/ironvip.json")), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Panels) == 0 {
		t.Fatal("no panels")
	}
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
			if q.Datasource.UID != "${datasource}" {
				t.Errorf("panel %s has the data source %q", p.Title, q.Datasource.UID)
			}
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
