package nodes

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
)

var lan = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}

func run(t *testing.T, name string, fleet bool, records registry.Store[Record], events *event.Log) *Nodes {
	t.Helper()
	n := New(Options{Store: records, Node: name, Fleet: fleet, Events: events, Log: slog.New(slog.DiscardHandler)})
	scope.Go(t, n.Run)
	return n
}

func kinds(events *event.Log) (out []string) {
	all, _ := events.Since(0)
	for _, e := range all {
		out = append(out, e.Kind+" "+e.Object)
	}
	return out
}

// A drain of a host without a fleet survives a restart.
func TestDrainSurvivesRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	for round := range 3 {
		db := must.Get(store.Open(path))(t)
		records := must.Get(registry.NewLocal(store.NewBucket[Record](db, Folder)))(t)
		events := event.NewLog(10, time.Now)
		n := New(Options{Store: records, Node: "lb1", Events: events, Log: slog.New(slog.DiscardHandler)})
		n.read()
		changed := n.Changed()
		expect.Equal(t, n.Draining("lb1"), (round == 1), "round %d: draining", round)
		if round < 2 {
			must.Succeed(t, n.SetDrain(t.Context(), "lb1", round == 0, "root"))
			select {
			case <-changed:
			default:
				t.Error("readers do not wake")
			}
			expect.Equal(t, n.Draining("lb1"), (round == 0), "not in effect at once")
			if round == 0 {
				since := n.Drains()["lb1"].Since
				if err := n.SetDrain(t.Context(), "lb1", true, "another"); err != nil || n.Drains()["lb1"].Author != "root" || !n.Drains()["lb1"].Since.Equal(since) {
					t.Errorf("a second start changes it: %+v, %v", n.Drains()["lb1"], err)
				}
				expect.SameList(t, kinds(events), []string{"node_drained lb1"}, "events")
			}
		}
		must.Succeed(t, db.Close())
	}
}

// A move of a host without a fleet survives a restart. A later move is not ended by the end of an earlier one.
func TestMoveSurvivesRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	vip := netip.MustParseAddr("192.0.2.10")
	var first announce.Move
	for round := range 2 {
		db := must.Get(store.Open(path))(t)
		records := must.Get(registry.NewLocal(store.NewBucket[Record](db, Folder)))(t)
		events := event.NewLog(10, time.Now)
		n := New(Options{Store: records, Node: "lb1", Events: events, Log: slog.New(slog.DiscardHandler)})
		n.read()
		switch now, _, ok := n.Moves.Get(vip); {
		case round == 0:
			must.Succeed(t, n.SetMove(t.Context(), announce.Move{Addr: vip, Node: "lb1", Pin: true, Author: "root"}))
			first, _, _ = n.Moves.Get(vip)
			must.Succeed(t, n.SetMove(t.Context(), announce.Move{Addr: vip, Node: "lb2", Since: time.Unix(4_000_000_000, 0)}))
			must.Succeed(t, n.SetMove(t.Context(), announce.Move{Addr: vip, Node: "lb3"}))
			must.Succeed(t, n.EndMove(t.Context(), vip, first.Stamp()))
		default:
			must.True(t, ok && now.Node == "lb3" && now.Stamp() == 4_000_000_001 && first.Pin && first.Author == "root", "%+v after %+v", now, first)
			must.Succeed(t, n.EndMove(t.Context(), vip, now.Stamp()))
			must.Succeed(t, n.EndMove(t.Context(), vip, now.Stamp()))
			expect.Equal(t, n.Moves.Len(), 0, "moves")
			expect.SameList(t, kinds(events), []string{"vip_move_ended 192.0.2.10"}, "events")
		}
		must.Succeed(t, db.Close())
	}
	for key, ok := range map[string]bool{"moves/192.0.2.10": true, "moves/192.0.2.010": false, "moves/x": false} {
		expect.Equal(t, check(key, Record{Node: "lb1"}) == nil, ok, "%s is a move", key)
	}
	expect.True(t, check("moves/192.0.2.10", Record{}) != nil, "a move without a host")
}

// Hosts of a fleet find each other and one secret, and any of them can drain any other.
func TestFleet(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		events := event.NewLog(100, time.Now)
		join := func(name string) *Nodes {
			var records *registry.Shared[Record]
			m.Start(t, name, []string{Folder}, func(tree *fleet.Tree) { records = Shared(tree) })
			return run(t, name, true, records, events)
		}
		a, b, c := join("lb1"), join("lb2"), join("lb3")
		at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
		a.Publish(Own{Address: at("10.0.0.1:7481"), Pools: lan})
		b.Publish(Own{Address: at("10.0.0.2:7481"), Pools: lan})
		c.Publish(Own{Address: at("10.0.0.3:7481"), Pools: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}})
		settle := func() { time.Sleep(5 * time.Second); synctest.Wait() }
		settle()
		expect.SameList(t, a.Peers(lan), []netip.AddrPort{at("10.0.0.2:7481")}, "peers of lb1")
		if s := string(a.Secret()); len(s) < 32 || s != string(b.Secret()) || s != string(c.Secret()) {
			t.Errorf("secrets %q, %q, %q", s, b.Secret(), c.Secret())
		}
		must.Succeed(t, c.SetDrain(t.Context(), "lb1", true, "root"))
		settle()
		if !a.Draining("lb1") || !b.Draining("lb1") || a.Draining("lb2") {
			t.Error("the drain is not known")
		}
		must.Succeed(t, b.SetMove(t.Context(), announce.Move{Addr: netip.MustParseAddr("192.0.2.10"), Node: "lb1"}))
		must.Succeed(t, b.SetMove(t.Context(), announce.Move{Addr: netip.MustParseAddr("192.0.2.11"), Node: "lb3"}))
		settle()
		for _, n := range []*Nodes{a, b, c} {
			m, _, ok := n.Moves.Get(netip.MustParseAddr("192.0.2.10"))
			must.True(t, ok && m.Node == "lb1" && n.Moves.Len() == 2, "%s knows %+v", n.Node, m)
		}
		must.Succeed(t, a.SetDrain(t.Context(), "lb1", false, "root"))
		b.Publish(Own{})
		settle()
		if a.Draining("lb1") || c.Draining("lb1") || len(a.Peers(lan)) != 0 {
			t.Errorf("draining %v, peers %v", a.Drains(), a.Peers(lan))
		}
		// The records of a host that does not return are removed, and so is its drain.
		c.Publish(Own{Address: at("10.0.0.3:7481"), Pools: lan})
		must.Succeed(t, b.SetDrain(t.Context(), "lb3", true, "root"))
		settle()
		if got := a.Recorded(); len(got) != 2 || !a.Draining("lb3") {
			t.Errorf("records of %v", got)
		}
		for range 2 { // a second time changes nothing
			must.Succeed(t, b.Forget(t.Context(), "lb3"))
			settle()
			expect.Equal(t, a.Moves.Len(), 1, "moves")
			if got := a.Recorded(); !slices.Equal(got, []string{"lb1"}) || a.Draining("lb3") || len(a.Peers(lan)) != 0 {
				t.Errorf("records of %v, drains %v", got, a.Drains())
			}
		}
		expect.Equal(t, a.Problem()+b.Problem()+c.Problem(), "")
		if n := strings.Count(strings.Join(kinds(events), " "), "node_drained lb1"); n != 3 {
			t.Errorf("%d events of the drain: %v", n, kinds(events))
		}
		// A host that starts later has no events of earlier drains and moves.
		must.Succeed(t, a.SetDrain(t.Context(), "lb1", true, "root"))
		events = event.NewLog(100, time.Now)
		d := join("lb4")
		settle()
		expect.SameList(t, kinds(events), nil, "events at the start")
		must.True(t, d.Draining("lb1") && d.Moves.Len() == 1, "it doesn't know the drain and the move")
		must.Succeed(t, a.SetDrain(t.Context(), "lb2", true, "root"))
		settle()
		expect.SameList(t, kinds(events), []string{"node_drained lb2"}, "events later")
	})
}
