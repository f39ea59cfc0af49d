package agent

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func TestLagIsThatOfTheOldestChange(t *testing.T) {
	var l lag
	at := time.Unix(0, 0)
	for _, step := range []struct {
		after            time.Duration
		desired, applied uint64
		want             time.Duration
	}{
		{0, 5, 5, 0},
		{time.Second, 7, 5, 0}, // seen for the first time
		{time.Second, 9, 6, time.Second},
		{time.Second, 12, 7, 0}, // what was waited for is there; something newer isn't
		{2 * time.Second, 12, 8, 2 * time.Second},
		{time.Second, 12, 12, 0},
		{time.Second, 13, 12, 0},
	} {
		at = at.Add(step.after)
		got := l.of(reconcile.Stats{DesiredRev: step.desired, AppliedRev: step.applied}, at)
		expect.Equal(t, got, step.want, "at %s with %d of %d", at, step.applied, step.desired)
	}
}

// The row that a host publishes about itself every few seconds costs the same with many services.
func TestOwnNodeCostsTheSameWithManyServices(t *testing.T) {
	cost := func(services int) float64 {
		dir := t.TempDir()
		path := filepath.Join(dir, configs.ConfigName)
		text := "[node]\nname = \"lb1\"\nstate_dir = \"" + dir + "/state\"\n[dataplane]\nmode = \"proxy\"\n"
		must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
		cfg, problems := configs.Load(path)
		must.True(t, cfg != nil, problems)
		a := must.Get(newAgent(Options{Config: path}, cfg, nil, &sockets.Set{}))(t)
		defer a.close()
		for i := range services {
			s := &vip.Service{Key: vip.ServiceKey{Namespace: "default", Name: "s" + strconv.Itoa(i)}}
			row := pipeline.Compiled{Service: s}
			if i < 3 {
				row.Problems = []vip.Problem{{Message: "first"}, {Message: "second"}}
			}
			a.tables.Services.Set(*s)
			a.tables.Compiled.Set(row)
		}
		if n := a.node(); n.Services != services || n.Problems != 3 {
			t.Errorf("%d services, 3 with problems: %+v", services, n)
		}
		// It counts the allocations of all goroutines. The runs are so many that the few of others don't
		// change the average, which is rounded down.
		return testing.AllocsPerRun(1_000, func() { a.node() })
	}
	if small, large := cost(10), cost(5_000); small != large {
		t.Errorf("%v allocations with 10 services, %v with 5,000", small, large)
	}
}
