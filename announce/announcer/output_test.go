package announcer

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/expect"
)

// A VIP is a host route in the table of its mode, also one that came back in the same step.
func TestRouteSet(t *testing.T) {
	set := newRouteSet()
	stays, goes, back := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	for _, addr := range []netip.Addr{stays, goes, back} {
		set.set(addr, true, false)
	}
	set.set(goes, false, false)
	set.set(back, false, false)
	set.set(back, true, false)
	var got []string
	for p := range set.All() {
		got = append(got, p.String())
	}
	slices.Sort(got)
	expect.SameList(t, got, []string{"10.0.0.3/32", "fd00::1/128"})
	expect.False(t, table.IsClosed(set.Ready()), "ready before everything is set")
	set.complete()
	expect.True(t, table.IsClosed(set.Ready()), "not ready")
}

// Without the settings there is nothing to decide: VIPs that come before them are ignored.
func TestVIPsBeforeSettings(t *testing.T) {
	a := New(Options{Socket: filepath.Join(t.TempDir(), "control.sock"), Log: slog.New(slog.DiscardHandler)})
	now := time.Now()
	vips := agentEligible{a}
	vips.SetAll([]announce.Eligible{{Addr: netip.MustParseAddr("10.0.0.1"), Mode: announce.BGP, Services: 1}})
	vips.Delete(netip.MustParseAddr("10.0.0.2"))
	for range vips.All() {
		t.Error("a VIP")
	}
	a.synced()
	a.gone(now)
	a.step(now.Add(time.Hour), nil)
	if n := a.tables.Announcements.Len(); n != 0 || a.complete {
		t.Errorf("%d announcements", n)
	}
}
