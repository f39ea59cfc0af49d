package planes

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/metric/metrictest"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// The status counts the paths of probes, and says why those that failed did, and what to do.
func TestPathChecks(t *testing.T) {
	applied := table.New(table.NewClock(time.Now()), reconcile.KeyOfAppliedPath, nil)
	path := vip.ProbePath{VIP: netip.MustParseAddr("10.96.0.1"), Backend: netip.MustParseAddr("10.0.0.1"), Forward: vip.ForwardDirect}
	applied.Set(reconcile.AppliedPath{Tried: &table.Row[vip.ProbePath]{Value: path}, Problem: &vip.Problem{Message: "no scheduler", Hint: "modprobe it"}})
	path.Backend = path.Backend.Next()
	applied.Set(reconcile.AppliedPath{Tried: &table.Row[vip.ProbePath]{Value: path}})
	expect.Empty(t, pathChecks(reconcile.Stats{}, nil, applied), "without paths")
	for _, tc := range []struct {
		stats         reconcile.Stats
		blocked       error
		level         string
		message, hint string
	}{
		{reconcile.Stats{Wanted: 1}, nil, v1.LevelOK, "1 path of health checks programmed", ""},
		{reconcile.Stats{Wanted: 12}, nil, v1.LevelOK, "12 paths of health checks programmed", ""},
		{reconcile.Stats{Wanted: 12, Failing: 1}, nil, v1.LevelWarn, "1 of 12 paths of health checks failed: 10.96.0.1 to 10.0.0.1 by dr: no scheduler; these checks", "modprobe it"},
		{reconcile.Stats{Wanted: 12}, vip.Problem{Message: "sysctl is 0", Hint: "set it"}, v1.LevelWarn, "12 paths of health checks don't work: sysctl is 0; these checks", "set it"},
		{reconcile.Stats{Wanted: 12}, errors.New("gone"), v1.LevelWarn, "12 paths of health checks don't work: gone; these checks", ""},
		{reconcile.Stats{Wanted: 12, Failing: 12, TargetError: "no IPVS"}, nil, v1.LevelWarn, "12 paths of health checks can't be programmed: no IPVS; these checks", "ironvip doctor"},
	} {
		checks := pathChecks(tc.stats, tc.blocked, applied)
		if len(checks) != 1 || checks[0].Name != "probe paths" || checks[0].Level != tc.level || !strings.HasPrefix(checks[0].Message, tc.message) || !strings.HasPrefix(checks[0].Hint, tc.hint) {
			t.Errorf("%+v, want %q and %q", checks, tc.message, tc.hint)
		}
	}
}

func TestPathMetrics(t *testing.T) {
	text := metrictest.Text(t, collectPaths(func() reconcile.Stats { return reconcile.Stats{Wanted: 12, Failing: 1, Writes: 30, DriftRepairs: 2} }))
	for _, want := range []string{"ironvip_probe_path_repairs_total 2",
		"ironvip_probe_path_writes_total 30", "ironvip_probe_paths 12", "ironvip_probe_paths_failed 1"} {
		expect.Contains(t, text, "\n"+want+"\n")
	}
}
