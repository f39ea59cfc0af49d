package announcer

import (
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/test/expect"
)

// routeCalls is a speaker that remembers calls.
type routeCalls []string

func (r *routeCalls) Announce(p ...netip.Prefix) { *r = append(*r, fmt.Sprint("announce ", p)) }

func (r *routeCalls) Withdraw(p ...netip.Prefix) { *r = append(*r, fmt.Sprint("withdraw ", p)) }

// The changes of a step are one call each, withdrawals first, and a VIP that came and went is not
// announced.
func TestRouteChanges(t *testing.T) {
	stays, comes, goes, back := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.4")
	carried := func(a netip.Addr) bool { return a != goes }
	var changes routeChanges
	var calls routeCalls
	changes.flush(&calls, carried)
	changes.set(stays, true)
	changes.set(comes, true)
	changes.set(goes, true)
	changes.set(goes, false)
	changes.set(back, false)
	changes.set(back, true)
	changes.flush(&calls, carried)
	changes.flush(&calls, carried)
	want := routeCalls{"withdraw [10.0.0.3/32 10.0.0.4/32]", "announce [10.0.0.1/32 fd00::2/128 10.0.0.4/32]"}
	expect.SameList(t, calls, want)
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
