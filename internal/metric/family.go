// Package metric describes the metrics of the agent and writes them in Prometheus' text format.
//
// A package declares its metrics as families of a Group, which docs/metrics.md is made of. At a
// scrape, Collectors read tables and counters and add samples to a Writer. Handler answers scrapes.
// A sample costs an append to a buffer: the time of a scrape is mostly that of reading the tables.
// docs/decisions/0063-text-of-metrics.md has the reasons and the measurements.
//
// Files:
//
//	family.go     names, types and labels
//	writer.go     samples
//	durations.go  a histogram of durations
//	handler.go    answers to scrapes
package metric

import (
	"cmp"
	"slices"
	"strings"
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

	// The texts between the values of a sample, and the order in which values appear: sorted by
	// label, as Prometheus' library does it.
	between []string
	order   []int
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
	for i := range labels {
		f.order = append(f.order, i)
	}
	slices.SortFunc(f.order, func(a, b int) int { return cmp.Compare(labels[a], labels[b]) })
	text := "{"
	for _, i := range f.order {
		f.between = append(f.between, text+labels[i]+`="`)
		text = `",`
	}
	g.families = append(g.families, f)
	return f
}

// head returns the lines before the samples of the family.
func (f *Family) head() string {
	help := strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(f.Help)
	return "# HELP " + f.Name + " " + help + "\n# TYPE " + f.Name + " " + string(f.Kind) + "\n"
}
