package planes

import (
	"errors"
	"fmt"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

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
	familyPaths       = pathMetrics.Gauge("probe_paths", "Paths of health probes to dr and tunnel backends that this host needs.")
	familyPathsFailed = pathMetrics.Gauge("probe_paths_failed", "Paths of health probes that the dataplane refuses; their probes prove nothing.")
	familyPathWrites  = pathMetrics.Counter("probe_path_writes_total", "Updates of paths of health probes sent to the dataplane.")
	familyPathRepairs = pathMetrics.Counter("probe_path_repairs_total", "Repairs of paths of health probes that another program changed.")
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
