package agent

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// The status names each fault of this host that health checks met, and what to do about it.
func TestProbeChecks(t *testing.T) {
	now := time.Unix(1e9, 0)
	fault := probe.Fault{Probes: 37, Since: vip.InstantOf(now.Add(-80 * time.Second)), Last: vip.InstantOf(now), Reason: "open a socket: too many open files"}
	expect.Empty(t, probeChecks(probe.Stats{Targets: 10}, 1024, now))
	for _, tc := range []struct {
		stats         probe.Stats
		message, hint string
	}{
		{probe.Stats{Faults: map[probe.Outcome]probe.Fault{probe.NoDescriptors: fault}},
			"37 health checks did not run for lack of file descriptors: open a socket: too many open files; within 1m20s; backends keep", "raise LimitNOFILE (now 1024)"},
		{probe.Stats{Faults: map[probe.Outcome]probe.Fault{probe.Starved: fault}}, "37 health checks timed out without proving anything: ", "reduce the load of this host"},
		{probe.Stats{Faults: map[probe.Outcome]probe.Fault{probe.NoPath: fault}}, "37 health checks did not run for lack of a path to the backend: ", "ironvip doctor"},
		{probe.Stats{Faults: map[probe.Outcome]probe.Fault{probe.Local: fault}}, "37 health checks failed on this host: ", "see the agent's log"},
		{probe.Stats{Delayed: []probe.Delayed{{Fault: fault, Types: "tcp, udp", Limit: 12, Queue: 400}}},
			"37 health checks of type tcp, udp started late, as at most 12 run at once and 400 wait; within 1m20s", "raise LimitNOFILE (now 1024)"},
		{probe.Stats{Delayed: []probe.Delayed{{Fault: fault, Types: "exec", Limit: 16}}}, "37 health checks of type exec started late", "shorten the commands"},
		{probe.Stats{Faults: map[probe.Outcome]probe.Fault{probe.Starved: fault}, Delayed: []probe.Delayed{{Fault: fault, Types: "exec", Limit: 16}}},
			"proving anything: open a socket: too many open files; within 1m20s, and 37 health checks of type exec", "(CPUWeight, CPUQuota); shorten"},
	} {
		checks := probeChecks(tc.stats, 1024, now)
		if len(checks) != 1 || checks[0].Name != "probes" || checks[0].Level != v1.LevelWarn || !strings.Contains(checks[0].Message, tc.message) || !strings.Contains(checks[0].Hint, tc.hint) {
			t.Errorf("%+v, want %q and %q", checks, tc.message, tc.hint)
		}
	}
}
