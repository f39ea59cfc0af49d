package agent

import (
	"net/netip"
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/health/share"
)

func TestProbePathsInTheStatus(t *testing.T) {
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
			!strings.Contains(got[0].Hint, c.hint) || !strings.HasSuffix(got[0].Hint, "ironvip backend list --nodes"):
			t.Errorf("%+v: %+v", c.disputes, got)
		}
	}
}
