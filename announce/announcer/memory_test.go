package announcer

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/test/heapsize"
	"github.com/ironvip/ironvip/test/must"
)

// The memory of one VIP in the decision and in the tables, with another host at layer 2. The sets of
// heartbeats, l2 and bgp have tests of their own.
func TestMemoryPerVIP(t *testing.T) {
	const vips = 10_000
	for _, c := range []struct {
		mode announce.Mode
		most int // bytes
	}{{announce.L2, 720}, {announce.BGP, 630}, {announce.Routes, 630}} {
		now := time.Now()
		settings := announce.Settings{Node: "lb1", Weight: 1, Pools: []announce.Pool{{Name: "lan", Mode: c.mode, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}},
			Heartbeat: time.Second, Missed: 3, Settle: time.Second, Hold: time.Minute}
		a := New(Options{Socket: filepath.Join(t.TempDir(), "control.sock"), Log: slog.New(slog.DiscardHandler)})
		clear(a.outputs)
		a.configure(&settings, now)
		a.core.decider.SetHost(announce.Host{Name: "lb2", Alive: true, Weight: 1})
		size := heapsize.Of(func() any {
			var all []announce.Eligible
			for i := range vips {
				addr := netip.AddrFrom4([4]byte{10, 90, byte(i >> 8), byte(i)})
				all = append(all, announce.Eligible{Addr: addr, Mode: c.mode, Services: 1})
				if c.mode == announce.L2 {
					a.core.decider.SetClaim("lb2", announce.Claim{Addr: addr, Services: 1})
				}
			}
			b := must.Get(json.Marshal(all))(t)
			must.Succeed(t, json.Unmarshal(b, &all)) // strings are not shared
			agentEligible{a}.SetAll(all)
			a.synced()
			a.step(now, nil)
			return a
		})
		must.Equal(t, a.tables.Announcements.Len(), vips, "announcements")
		if size /= vips; size > c.most || size < c.most/2 {
			t.Errorf("%s: %d bytes for each VIP, want at most %d", c.mode, size, c.most)
		}
	}
}
