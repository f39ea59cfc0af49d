package announcer

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/expect"
)

// A VIP is a host route in the table of its mode, also one that came back in the same step.
func TestRouteSet(t *testing.T) {
	o := newRoutes(nil)
	stays, goes, back := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	set := func(addr netip.Addr, here bool) { o.set(nil, &announce.Announcement{Addr: addr, Here: here}, false) }
	for _, addr := range []netip.Addr{stays, goes, back} {
		set(addr, true)
	}
	set(goes, false)
	set(back, false)
	set(back, true)
	var got []string
	for p := range o.All() {
		got = append(got, p.String())
	}
	slices.Sort(got)
	expect.SameList(t, got, []string{"10.0.0.3/32", "fd00::1/128"})
	expect.False(t, table.IsClosed(o.Ready()), "ready before everything is set")
	o.complete()
	expect.True(t, table.IsClosed(o.Ready()), "not ready")
}

// An aggregate is announced while one of its VIPs is, beside their host routes or instead of them. A change of one VIP
// changes the rows of that VIP alone.
func TestAggregates(t *testing.T) {
	a := New(Options{Socket: filepath.Join(t.TempDir(), "control.sock"), Log: slog.New(slog.DiscardHandler)})
	o := a.outputs[announce.BGP].(*bgpOutput)
	in := func(aggregate string, med uint32, hostRoutes bool) announce.Route {
		p := announce.RoutePolicy{RouteKeys: announce.RouteKeys{MED: &med}}
		p.Aggregate, p.Aggregated, p.HostRoutes = netip.MustParsePrefix(aggregate), p.Text(), &hostRoutes
		return announce.Route{Policy: p.Text(), Backends: 1}
	}
	now := map[string]announce.Announcement{}
	for i, step := range []struct {
		vip  string
		here bool
		announce.Route
		want    string
		changes int // of rows
	}{
		{"10.0.0.1", true, in("10.0.0.0/24", 1, true), "10.0.0.0/24:1 10.0.0.1/32:1", 2},
		{"10.0.0.2", true, in("10.0.0.0/24", 1, false), "10.0.0.0/24:1 10.0.0.1/32:1", 0},
		{"10.0.0.3", true, announce.Route{}, "10.0.0.0/24:1 10.0.0.1/32:1 10.0.0.3/32:0", 1},
		{"10.0.0.2", true, in("10.0.0.0/24", 2, true), "10.0.0.0/24:2 10.0.0.1/32:1 10.0.0.2/32:2 10.0.0.3/32:0", 2}, // a reload, VIP by VIP
		{"10.0.0.1", true, in("10.0.0.0/24", 2, true), "10.0.0.0/24:2 10.0.0.1/32:2 10.0.0.2/32:2 10.0.0.3/32:0", 1},
		{"10.0.0.1", true, in("10.0.0.0/28", 2, false), "10.0.0.0/24:2 10.0.0.0/28:2 10.0.0.2/32:2 10.0.0.3/32:0", 2}, // from one to the other
		{"10.0.0.2", false, announce.Route{}, "10.0.0.0/28:2 10.0.0.3/32:0", 2},
		{"10.0.0.1", true, announce.Route{}, "10.0.0.1/32:0 10.0.0.3/32:0", 2},
		{"10.0.0.1", false, announce.Route{}, "10.0.0.3/32:0", 1},
	} {
		before := o.Revision()
		next := announce.Announcement{Addr: netip.MustParseAddr(step.vip), Mode: announce.BGP, Here: step.here, Route: step.Route}
		a.carry(now[step.vip], next)
		now[step.vip] = next
		var got []string
		for p, r := range o.All() {
			got = append(got, p.String()+":"+strconv.Itoa(int(value(r.Policy.Policy().MED))))
		}
		slices.Sort(got)
		expect.Equal(t, strings.Join(got, " "), step.want, "step %d", i)
		expect.Equal(t, int(o.Revision()-before), step.changes, "changes of step %d", i)
	}
	expect.Equal(t, len(o.inAggregate), 0, "counts of aggregates")
}

func value(n *uint32) uint32 {
	if n == nil {
		return 0
	}
	return *n
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
