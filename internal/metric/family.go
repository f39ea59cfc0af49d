// Package metric describes the metrics of the agent and answers scrapes of them.
//
// A package declares its metrics as families of a Group, which docs/metrics.md is made of. At a
// scrape, Collectors read tables and counters and add samples to a Writer, which passes them to
// Prometheus' library. Handler answers scrapes. docs/decisions/25 has the reasons.
//
// Files:
//
//	family.go   names, types and labels
//	writer.go   samples
//	handler.go  answers to scrapes
package metric

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Kind is the type of a family.
type Kind string

// The types of families.
const (
	KindCounter   Kind = "counter"
	KindGauge     Kind = "gauge"
	KindHistogram Kind = "histogram"
)

// Family is a metric: samples with the same name and the same labels. It is immutable.
type Family struct {
	Name   string // with the prefix of all metrics
	Help   string
	Kind   Kind
	Labels []string // their order is that of the values of a sample

	desc *prometheus.Desc
}

// Group is the families of one subject. A package has it in a variable and declares its families with
// it, so that the reference page can't lack one.
type Group struct {
	Title    string
	prefix   string
	families []*Family
}

// NewGroup returns an empty group. Prefix begins the names of its families, after "ironvip_".
func NewGroup(title, prefix string) *Group { return &Group{Title: title, prefix: "ironvip_" + prefix} }

// Families returns the families in the order of their declaration.
func (g *Group) Families() []*Family { return slices.Clone(g.families) }

// Gauge declares a value that goes up and down.
func (g *Group) Gauge(name, help string, labels ...string) *Family {
	return g.add(KindGauge, name, help, labels)
}

// Counter declares a value that only grows, except that it may begin at 0 again.
func (g *Group) Counter(name, help string, labels ...string) *Family {
	return g.add(KindCounter, name, help, labels)
}

// Histogram declares counts of values in buckets.
func (g *Group) Histogram(name, help string, labels ...string) *Family {
	return g.add(KindHistogram, name, help, labels)
}

func (g *Group) add(kind Kind, name, help string, labels []string) *Family {
	f := &Family{Name: g.prefix + name, Help: help, Kind: kind, Labels: labels}
	f.desc = prometheus.NewDesc(f.Name, help, labels, nil)
	g.families = append(g.families, f)
	return f
}
