package planes

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/proxy/remote"
	"github.com/ironvip/ironvip/vip"
)

// Checks returns the lines of `ironvip status` about the dataplanes.
func (p *Planes) Checks() []v1.Check {
	checks := append(p.switchChecks(), p.leavingChecks()...)
	d := p.plane()
	if d.proxy != nil {
		checks = append(checks, proxyChecks(d.proxy)...)
	}
	if d.pathLoop != nil {
		checks = append(checks, pathChecks(d.pathLoop.Stats(), d.Paths.Blocked(), p.o.Tables.AppliedPaths)...)
	}
	return checks
}

// failureShown is how long status shows a failure.
const failureShown = time.Hour

// switchChecks returns the line of `ironvip status` about a switch that has failed lately.
func (p *Planes) switchChecks() []v1.Check {
	f := p.failed.Load()
	if f == nil || time.Since(f.at) > failureShown {
		return nil
	}
	return []v1.Check{{Name: "switch", Level: v1.LevelWarn,
		Message: fmt.Sprintf("%s could not run %s ago, so %s goes on: %s", f.to, time.Since(f.at).Round(time.Second), p.Mode(), f.why),
		Hint:    "see the log of the agent, then try again"}}
}

func (x *leaving) String() string {
	s := x.state.Load()
	if s.err != nil {
		return s.err.Error()
	}
	return fmt.Sprintf("%s drains: %s, %s at most", x.mode, cmp.Or(connectionsText(s.open), "no connections"), max(0, time.Until(s.until).Round(time.Second)))
}

// view returns the dataplane for the API.
func (x *leaving) view() v1.LeavingDataplane {
	s := x.state.Load()
	row := v1.LeavingDataplane{Mode: x.mode, Connections: total(s.open)}
	if s.err != nil {
		row.Problem = s.err.Error()
	} else {
		row.Until = &s.until
	}
	return row
}

// leavingChecks returns the line of `ironvip status` about the dataplanes that leave.
func (p *Planes) leavingChecks() []v1.Check {
	all := p.shown()
	if len(all) == 0 {
		return nil
	}
	c := v1.Check{Name: "leaving dataplane", Level: v1.LevelOK, Message: text.Join(all, "; ", (*leaving).String)}
	if slices.ContainsFunc(all, func(x *leaving) bool { return x.state.Load().err != nil }) {
		c.Level, c.Hint = v1.LevelWarn, "it is tried again; ironvip events"
	}
	return []v1.Check{c}
}

// proxyChecks returns the lines of the status on clients that the proxy refuses.
func proxyChecks(c *remote.Client) []v1.Check {
	r := c.Report()
	panics, now := r.Panics()
	return slices.Concat(capacityChecks(r.Capacity, r.Limit), limitChecks(r.Limited()), panicChecks(panics, now))
}

// panicChecks returns the line of the status on clients that a fault of this program refused.
func panicChecks(clients uint64, now bool) []v1.Check {
	if !now {
		return nil
	}
	return []v1.Check{{Name: "panics", Level: v1.LevelWarn,
		Message: "a fault of ironvip ended connections of clients in the last minute: " + text.Plural(int(clients), "connection") + " since the start",
		Hint:    "report it with the stack in the log; other clients are not affected"}}
}

// limitChecks returns the line of the status on services that have reached their own limits. It
// warns if they refuse clients.
func limitChecks(limited []balance.Limited) []v1.Check {
	if len(limited) == 0 {
		return nil
	}
	var full, refused []string
	first := limited[0].Service
	for _, l := range limited {
		if l.Full {
			full = append(full, l.Service.String())
		}
		if len(l.Reasons) > 0 {
			if refused == nil {
				first = l.Service
			}
			refused = append(refused, fmt.Sprintf("%s for %s (%d since the start)", l.Service, strings.Join(l.Reasons, " and "), l.Refused))
		}
	}
	check := v1.Check{Name: "limits", Level: v1.LevelOK,
		Hint: fmt.Sprintf("see ironvip service explain %s; add backends, or raise max_connections or max_queue", first)}
	var parts []string
	if len(refused) > 0 {
		check.Level = v1.LevelWarn
		parts = append(parts, text.Plural(len(refused), "service")+" refused clients in the last minute: "+text.First(3, refused, ", "))
	}
	if len(full) > 0 {
		parts = append(parts, text.Plural(len(full), "service")+" full: "+text.First(3, full, ", "))
	}
	check.Message = strings.Join(parts, "; ")
	return []v1.Check{check}
}

// capacityChecks returns the line of the status on the proxy's capacity, if it is short. Files is
// the process's limit of descriptors.
func capacityChecks(c balance.Usage, files uint64) []v1.Check {
	if !c.Short() {
		return nil
	}
	check := v1.Check{Name: "capacity", Level: v1.LevelWarn,
		Message: fmt.Sprintf("%s, %d of them for service %s", c, c.LargestFiles, c.Largest),
		Hint: fmt.Sprintf("see ironvip service explain %s; shorten its idle_timeout and half_close_timeout, or raise LimitNOFILE (now %d)",
			c.Largest, files),
	}
	switch {
	case c.Exhausted:
		check.Level = v1.LevelFail
		check.Message = fmt.Sprintf("clients of any service are refused (%d since the start): %s", c.Refused, check.Message)
	case c.Reserved:
		check.Message = fmt.Sprintf("clients of the largest services are refused, to keep a reserve for others (%d since the start): %s", c.Refused, check.Message)
	}
	return []v1.Check{check}
}

// pathChecks returns the line of the status on the paths of health probes in the dataplane, if this
// host needs any. Blocked is why none of them works. It costs O(paths) while one has failed.
func pathChecks(s reconcile.Stats, blocked error, applied table.Reader[vip.ProbePath, reconcile.AppliedPath]) []v1.Check {
	if s.Wanted == 0 {
		return nil
	}
	check := v1.Check{Name: "probe paths", Level: v1.LevelWarn}
	all := text.Plural(s.Wanted, "path") + " of health checks"
	const effect = "; these checks prove nothing meanwhile, and backends keep their health"
	switch {
	case s.TargetError != "":
		check.Message = fmt.Sprintf("%s can't be programmed: %s", all, s.TargetError) + effect
		check.Hint = "ironvip doctor shows what the dataplane lacks"
	case blocked != nil:
		check.Message = fmt.Sprintf("%s don't work: %v", all, blocked) + effect
		if p, ok := errors.AsType[vip.Problem](blocked); ok {
			check.Message, check.Hint = fmt.Sprintf("%s don't work: %s", all, p.Message)+effect, p.Hint
		}
	case s.Failing > 0:
		check.Message = fmt.Sprintf("%d of %s failed", s.Failing, all)
		for _, row := range applied.All() {
			if row.Problem != nil {
				check.Message, check.Hint = fmt.Sprintf("%s: %s: %s", check.Message, row.Tried.Value, row.Problem.Message), row.Problem.Hint
				break
			}
		}
		check.Message += effect
	default:
		check.Level, check.Message = v1.LevelOK, all+" programmed"
	}
	return []v1.Check{check}
}

// pathMetrics are the metrics of the paths of health probes.
var pathMetrics = metric.NewGroup("Paths of health probes", "")

var (
	familyPaths       = pathMetrics.Gauge("probe_paths", "Paths to dr and tunnel backends that this host needs.")
	familyPathsFailed = pathMetrics.Gauge("probe_paths_failed", "Paths that the dataplane refuses; their probes prove nothing.")
	familyPathWrites  = pathMetrics.Counter("probe_path_writes_total", "Updates of paths sent to the dataplane.")
	familyPathRepairs = pathMetrics.Counter("probe_path_repairs_total", "Repairs of paths that another program changed.")
)

// collectPaths returns the collector of the metrics of the paths of health probes.
func collectPaths(stats func() reconcile.Stats) metric.Collector {
	return func(w *metric.Writer) {
		s := stats()
		w.Add(familyPaths, float64(s.Wanted))
		w.Add(familyPathsFailed, float64(s.Failing))
		w.Add(familyPathWrites, float64(s.Writes))
		w.Add(familyPathRepairs, float64(s.DriftRepairs))
	}
}
