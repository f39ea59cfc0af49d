package probing

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/health/share"
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

func TestDisputesInTheStatus(t *testing.T) {
	addresses := func(n int) (out []netip.AddrPort) {
		for i := range n {
			out = append(out, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 80))
		}
		return out
	}
	for _, c := range []struct {
		disputes      share.Disputes
		message, hint string // "": no line
	}{
		{share.Disputes{Probes: 40}, "", ""},
		{share.Disputes{Probes: 1, Failing: 1}, "", ""},
		{share.Disputes{Probes: 40, Failing: 20}, "", ""},
		{share.Disputes{Probes: 40, Failing: 21}, "health checks of this host fail for 21 of 40 targets, which other hosts find healthy", "check this host's network"},
		{share.Disputes{Probes: 40, Passing: addresses(1), By: []string{"lb2"}},
			"1 target that passes the health checks of this host is unhealthy for the fleet, found by lb2: 10.0.0.1:80", "check the way to the backends from lb2;"},
		{share.Disputes{Probes: 40, Failing: 20, Passing: addresses(5), By: []string{"lb2", "lb7"}},
			"5 targets that pass the health checks of this host are unhealthy for the fleet, found by lb2 and lb7: 10.0.0.1:80, 10.0.0.2:80, 10.0.0.3:80 and 2 more", "from lb2 and lb7;"},
		{share.Disputes{Probes: 3, Failing: 2, Passing: addresses(1), By: []string{"lb2"}},
			"health checks of this host fail for 2 of 3 targets, which other hosts find healthy; 1 target", "check this host's network"},
	} {
		got := disputeChecks(c.disputes)
		switch {
		case c.message == "" && got == nil:
		case len(got) != 1 || got[0].Level != v1.LevelWarn || !strings.HasPrefix(got[0].Message, c.message) || c.message == "" ||
			!strings.Contains(got[0].Hint, c.hint) || !strings.HasSuffix(got[0].Hint, "ironvip debug table verdicts"):
			t.Errorf("%+v: %+v", c.disputes, got)
		}
	}
}
