package planes

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/metrictest"
	"github.com/ironvip/ironvip/vip"
)

func TestCapacityInTheStatus(t *testing.T) {
	used := balance.Usage{Files: 1888, Used: 1500, Connections: 700, Sessions: 100}
	if got := capacityChecks(used, 2048); got != nil {
		t.Errorf("not short: %+v", got)
	}
	used.Largest, used.LargestFiles, used.Refused = vip.ServiceKey{Namespace: "shop", Name: "db"}, 1200, 7
	reserved, exhausted := used, used
	reserved.Reserved, exhausted.Exhausted = true, true
	const state = "700 connections and 100 sessions use 1500 of 1888 descriptors, 1200 of them for service shop/db"
	for _, x := range []struct {
		capacity             balance.Usage
		level, message, hint string
	}{
		{used, v1.LevelWarn, state, "ironvip service explain shop/db"},
		{reserved, v1.LevelWarn, "clients of the largest services are refused, to keep a reserve for others (7 since the start): " + state, "idle_timeout"},
		{exhausted, v1.LevelFail, "clients of any service are refused (7 since the start): " + state, "LimitNOFILE (now 2048)"},
	} {
		got := capacityChecks(x.capacity, 2048)
		if len(got) != 1 || got[0].Name != "capacity" || got[0].Level != x.level || got[0].Message != x.message || !strings.Contains(got[0].Hint, x.hint) {
			t.Errorf("%+v: %+v", x.capacity, got)
		}
	}
}

func TestLimitsInTheStatus(t *testing.T) {
	if got := panicChecks(3, false); got != nil {
		t.Errorf("no recent panic: %v", got)
	}
	if got := panicChecks(3, true); len(got) != 1 || got[0].Level != v1.LevelWarn || !strings.Contains(got[0].Message, "3 connections since") {
		t.Errorf("panics: %v", got)
	}
	if got := limitChecks(nil); got != nil {
		t.Errorf("none limited: %+v", got)
	}
	got := limitChecks([]balance.Limited{
		{Service: vip.ServiceKey{Namespace: "shop", Name: "db"}, Reasons: []string{"max_connections"}, Refused: 7},
		{Service: vip.ServiceKey{Name: "web"}, Reasons: []string{"max_queue", "queue_timeout"}, Refused: 9},
	})
	const want = "2 services refused clients in the last minute: shop/db for max_connections (7 since the start), web for max_queue and queue_timeout (9 since the start)"
	if len(got) != 1 || got[0].Name != "limits" || got[0].Level != v1.LevelWarn || got[0].Message != want || !strings.Contains(got[0].Hint, "explain shop/db") {
		t.Errorf("%+v", got)
	}
	got = limitChecks([]balance.Limited{{Service: vip.ServiceKey{Name: "api"}, Full: true}})
	if len(got) != 1 || got[0].Level != v1.LevelOK || got[0].Message != "1 service full: api" || !strings.Contains(got[0].Hint, "explain api") {
		t.Errorf("full: %+v", got)
	}
	got = limitChecks([]balance.Limited{{Service: vip.ServiceKey{Name: "api"}, Full: true}, {Service: vip.ServiceKey{Name: "web"}, Full: true, Reasons: []string{"max_queue"}, Refused: 9}})
	if len(got) != 1 || got[0].Level != v1.LevelWarn || !strings.Contains(got[0].Hint, "explain web") ||
		got[0].Message != "1 service refused clients in the last minute: web for max_queue (9 since the start); 2 services full: api, web" {
		t.Errorf("full and refusing: %+v", got)
	}
}

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
