package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/health/share"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/plane/reconcile"
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
			for _, v := range maps.Collect(t.All()) { // All may return a changing row twice
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
		row(s.Key.String(), s.Source, portsText(s.Ports), list(s.VIPs), text.Join(s.Backends, " ", func(b vip.Backend) string {
			if b.State != vip.Ready {
				return fmt.Sprintf("%s*%d=%s", b.ID(), b.Weight, b.State)
			}
			return fmt.Sprintf("%s*%d", b.ID(), b.Weight)
		}))
	}}
	ConflictCells = Cells[pipeline.Conflict]{"service source problem", func(c *pipeline.Conflict, row func(...string)) {
		row(c.Service.String(), c.Source, c.Problem.Code)
	}}
	HealthCells = Cells[vip.BackendHealth]{"service backend ports check health since reason", func(h *vip.BackendHealth, row func(...string)) {
		for _, c := range h.Checks {
			row(h.Backend.Service.String(), h.Backend.ID(), string(c.Ports), c.Type.String(), c.Health.String(), c.Since.Time().UTC().Format(time.RFC3339), c.Reason)
		}
	}}
	VerdictCells = Cells[share.Row]{"target health by against without reason", func(v *share.Row, row func(...string)) {
		against := strings.Join(slices.Sorted(maps.Keys(v.Value.Against)), " ")
		row(v.Key, v.Value.Health.String(), v.Value.By, against, strings.Join(v.Value.Without, " "), v.Value.Reason)
	}}
	ProbePathCells = Cells[vip.ProbePath]{"vip backend forward", func(p *vip.ProbePath, row func(...string)) {
		row(p.VIP.String(), p.Backend.String(), p.Forward.String())
	}}
	AppliedPathCells = Cells[reconcile.AppliedPath]{"vip backend forward result reason", func(a *reconcile.AppliedPath, row func(...string)) {
		p, result, reason := &a.Tried.Value, "ok", ""
		if problem := cmp.Or(a.Problem, a.Warning); problem != nil {
			result, reason = problem.Code, problem.Message
		}
		row(p.VIP.String(), p.Backend.String(), p.Forward.String(), result, reason)
	}}
	PassiveCells = Cells[vip.PassiveHealth]{"service address protocol health reason", func(h *vip.PassiveHealth, row func(...string)) {
		row(h.Service.String(), h.Addr.String(), h.Protocol.String(), h.Health.String(), h.Reason)
	}}
	AllocationCells = Cells[vip.Allocation]{"service vips pool node_ports problems", func(a *vip.Allocation, row func(...string)) {
		ports := text.Join(slices.SortedFunc(maps.Keys(a.NodePorts), comparePorts), " ", func(k vip.PortKey) string {
			return fmt.Sprintf("%s=%d", k, a.NodePorts[k])
		})
		row(a.Asked.Key.String(), list(a.VIPs), a.Pool, ports, codes(a.Problems))
	}}
	CompiledCells = Cells[pipeline.Compiled]{"service frontends health_port local_ready problems", func(c *pipeline.Compiled, row func(...string)) {
		frontends := text.Join(c.Frontends, " ", func(f *pipeline.FrontendRow) string { return f.Value.Key.String() })
		row(c.Service.Key.String(), frontends, strconv.Itoa(int(c.HealthPort)), strconv.Itoa(int(c.LocalReady)), codes(c.Problems))
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
	EligibleCells = Cells[announce.Eligible]{"vip mode services reason", func(e *announce.Eligible, row func(...string)) {
		row(e.Addr.String(), e.Mode.String(), strconv.Itoa(e.Services), e.Reason)
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
	return text.Join(f.Backends, " ", func(e vip.Endpoint) string {
		if e.IsLeaving() {
			return fmt.Sprintf("%s*%d=leaving", e.Addr, e.Weight)
		}
		return fmt.Sprintf("%s*%d", e.Addr, e.Weight)
	})
}

// codes lists the codes of problems.
func codes(problems []vip.Problem) string {
	return text.Join(problems, " ", func(p vip.Problem) string { return p.Code })
}
