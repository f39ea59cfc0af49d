package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/pipeline"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
)

// DebugTable is a table as text, for `ironvip debug table` and for scripts that
// compare it. Its cells hold no revisions and no times, so that the same state
// gives the same text.
type DebugTable struct {
	Name     string
	Columns  []string
	Len      func() int
	Revision func() uint64
	Rows     func() [][]string // sorted; costs O(the table)
}

// Cells describes how the values of a table become text.
type Cells[V any] struct {
	columns string                                // names, separated by spaces
	add     func(v *V, row func(cells ...string)) // calls row once per line, with one cell per column
}

// NewDebugTable returns the text form of a table, or of several with the same kind of rows.
func NewDebugTable[K comparable, V any](name string, cells Cells[V], from ...table.Reader[K, V]) DebugTable {
	d := DebugTable{Name: name, Columns: strings.Fields(cells.columns)}
	d.Len = func() (n int) {
		for _, t := range from {
			n += t.Len()
		}
		return n
	}
	d.Revision = func() (newest uint64) {
		for _, t := range from {
			newest = max(newest, t.Revision())
		}
		return newest
	}
	d.Rows = func() [][]string {
		rows := [][]string{}
		for _, t := range from {
			newest := map[K]V{} // All may return a changing row twice
			for k, v := range t.All() {
				newest[k] = v
			}
			for _, v := range newest {
				cells.add(&v, func(cells ...string) { rows = append(rows, cells) })
			}
		}
		slices.SortFunc(rows, slices.Compare[[]string])
		return rows
	}
	return d
}

// The cells of the pipeline's tables.
var (
	ServiceCells = Cells[vip.Service]{"service source ports vips backends", func(s *vip.Service, row func(...string)) {
		backends := make([]string, len(s.Backends))
		for i := range s.Backends {
			b := &s.Backends[i]
			backends[i] = fmt.Sprintf("%s*%d", b.ID(), b.Weight)
			if b.State != vip.Ready {
				backends[i] += "=" + b.State.String()
			}
		}
		row(s.Key.String(), s.Source, portsText(s.Ports), joined(s.VIPs), strings.Join(backends, " "))
	}}
	ConflictCells = Cells[pipeline.Conflict]{"service source problem", func(c *pipeline.Conflict, row func(...string)) {
		row(c.Service.String(), c.Source, c.Problem.Code)
	}}
	OverrideCells = Cells[vip.BackendState]{"service backend state", func(s *vip.BackendState, row func(...string)) {
		row(s.Backend.Service.String(), vip.Backend{Address: s.Backend.Address, Port: s.Backend.Port}.ID(), s.State.String())
	}}
	LeaseCells = Cells[*ipam.Lease]{"lease state pool holders", func(l **ipam.Lease, row func(...string)) {
		var holders []string
		for _, h := range (*l).Holders {
			holders = append(holders, h.Service.String())
		}
		row((*l).Resource.String(), (*l).State.String(), (*l).Pool, strings.Join(holders, " "))
	}}
	AllocationCells = Cells[vip.Allocation]{"service vips pool node_ports problems", func(a *vip.Allocation, row func(...string)) {
		var ports []string
		for _, k := range slices.SortedFunc(maps.Keys(a.NodePorts), comparePorts) {
			ports = append(ports, fmt.Sprintf("%s=%d", k, a.NodePorts[k]))
		}
		row(a.Asked.Key.String(), joined(a.VIPs), a.Pool, strings.Join(ports, " "), codes(a.Problems))
	}}
	CompiledCells = Cells[pipeline.Compiled]{"service frontends health_port local_ready problems", func(c *pipeline.Compiled, row func(...string)) {
		frontends := make([]string, len(c.Frontends))
		for i, f := range c.Frontends {
			frontends[i] = f.Value.Key.String()
		}
		row(c.Service.Key.String(), strings.Join(frontends, " "), strconv.Itoa(int(c.HealthPort)), strconv.Itoa(int(c.LocalReady)), codes(c.Problems))
	}}
	FrontendCells = Cells[vip.Frontend]{"frontend service kind scheduler backends", func(f *vip.Frontend, row func(...string)) {
		row(f.Key.String(), f.Service.String(), f.Kind.String(), f.Scheduler.String(), endpoints(f))
	}}
	AppliedCells = Cells[reconcile.AppliedFrontend]{"frontend service result backends", func(a *reconcile.AppliedFrontend, row func(...string)) {
		f, result := &a.Tried.Value, "ok"
		if p := cmp.Or(a.Problem, a.Warning); p != nil {
			result = p.Code
		}
		row(f.Key.String(), f.Service.String(), result, endpoints(f))
	}}
	SourceCells = Cells[sources.Status]{"source type synced services problems stale", func(s *sources.Status, row func(...string)) {
		row(s.Name, s.Type, strconv.FormatBool(s.Synced), strconv.Itoa(s.Services), codes(s.Problems), s.Stale)
	}}
	HostCells = Cells[hostnet.Snapshot]{"kind address device", func(h *hostnet.Snapshot, row func(...string)) {
		for _, a := range h.Addrs {
			row("address", a.Prefix.String(), a.Link)
		}
		for _, g := range h.Gateways {
			row("gateway", g.String(), "")
		}
	}}
)

// endpoints formats endpoints as "10.0.0.1:80*1 10.0.0.2:80*0=leaving".
func endpoints(f *vip.Frontend) string {
	texts := make([]string, len(f.Backends))
	for i, e := range f.Backends {
		texts[i] = fmt.Sprintf("%s*%d", e.Addr, e.Weight)
		if e.IsLeaving() {
			texts[i] += "=leaving"
		}
	}
	return strings.Join(texts, " ")
}

// codes lists the codes of problems.
func codes(problems []vip.Problem) string {
	texts := make([]string, len(problems))
	for i := range problems {
		texts[i] = problems[i].Code
	}
	return strings.Join(texts, " ")
}
