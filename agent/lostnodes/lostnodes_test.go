package lostnodes

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/control"
	"github.com/ironvip/ironvip/fleet/roster"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/scope"
)

var vips = []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("192.0.2.12")}

// fleet is a roster whose rows the test writes.
type fleet struct {
	lost    *table.Table[string, roster.LostRow]
	present map[string]bool
}

func (f *fleet) Lost() table.Reader[string, roster.LostRow] { return f.lost }
func (f *fleet) IsPresent(node string) bool                 { return f.present[node] }

// run starts a follower, and returns what has happened since the last call.
func run(t *testing.T, o Options) (f *Follower, happened func() []string) {
	o.Clock, o.Events = &table.Clock{}, event.NewLog(100, time.Now)
	f = New(o)
	scope.Go(t, f.Run)
	seen := uint64(0)
	return f, func() (out []string) {
		synctest.Wait()
		all, _ := o.Events.Since(seen)
		for _, e := range all {
			seen = e.ID
			out = append(out, e.Kind+" "+e.Object)
		}
		return out
	}
}

func (f *Follower) text() string {
	var out []string
	for _, n := range f.Nodes() {
		out = append(out, fmt.Sprintf("%s (%s)", n.Name, n.Announced(2)))
	}
	return strings.Join(out, ", ")
}

func expectState(t *testing.T, when string, f *Follower, want string, events []string, wanted ...string) {
	t.Helper()
	expect.Equal(t, f.text(), want, "%s: lost", when)
	expect.SameList(t, events, wanted, "%s: events", when)
}

// In a fleet, the roster says who is lost.
func TestFleet(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		clock := &table.Clock{}
		r := &fleet{table.New(clock, func(i *roster.LostRow) string { return i.Key }, nil), map[string]bool{}}
		peers := control.NewTables(clock).Peers
		draining := map[string]bool{}
		lose := func(node string, l roster.Lost) {
			l.Since = time.Now()
			r.lost.Set(roster.LostRow{Key: roster.KeyOf(node), Value: l, Index: 1})
		}
		lose("old", roster.Lost{})
		f, happened := run(t, Options{Roster: r, Peers: peers, Draining: func(n string) bool { return draining[n] }})
		expectState(t, "at the start", f, "old ()", happened())

		time.Sleep(time.Minute)
		lose("lb2", roster.Lost{VIPs: vips[:2], Owned: 4})
		expectState(t, "one more", f, "lb2 (192.0.2.10, 192.0.2.11 and 2 more), old ()", happened(), "node_lost lb2")
		// This host may know a node that the leader doesn't know.
		peers.Set(announce.Peer{PeerKey: announce.PeerKey{Kind: announce.Neighbor, Name: "lb/3"}, State: "dead", VIPs: vips[2:], Owned: 1})
		lose("lb/3", roster.Lost{})
		expectState(t, "from this host's peers", f, "lb/3 (192.0.2.12), lb2 (192.0.2.10, 192.0.2.11 and 2 more), old ()", happened(), "node_lost lb/3")

		time.Sleep(90 * time.Second)
		c := f.Checks(time.Now())
		if len(c) != 1 || c[0].Level != "warn" || c[0].Message != "lb/3 is lost: silent for 1m30s, announced 192.0.2.12; 2 nodes more" || !strings.Contains(c[0].Hint, "ironvip node forget lb/3") {
			t.Errorf("%+v", c)
		}
		draining["lb/3"], draining["lb2"], draining["old"] = true, true, true
		expect.Empty(t, f.Checks(time.Now()), "nodes that were taken away on purpose")

		r.present["lb2"] = true
		r.lost.Delete("lb2")
		r.lost.Delete("old")
		expectState(t, "one is back", f, "lb/3 (192.0.2.12)", happened(), "node_returned lb2", "node_forgotten old")
	})
}

// Without a fleet, peers without heartbeats are lost. One that was never received is known by its
// address, and one that was known before a restart of the announcer keeps its name.
func TestPair(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		tables := control.NewTables(&table.Clock{})
		set := func(name, state string) {
			p := announce.Peer{PeerKey: announce.PeerKey{Kind: announce.Neighbor, Name: name}, Address: "10.0.0.2:7481", State: state, Up: state == "alive", Since: time.Now()}
			if state == "dead" {
				p.VIPs, p.Owned = vips, 3
			}
			tables.Peers.Set(p)
		}
		drop := func(name string) { tables.Peers.Delete(announce.PeerKey{Kind: announce.Neighbor, Name: name}) }
		set("10.0.0.2:7481", "unknown")
		tables.Peers.Set(announce.Peer{PeerKey: announce.PeerKey{Kind: announce.BGPSession, Name: "10.0.0.254"}, State: "idle"})
		configured := "10.0.0.2:7481"
		f, happened := run(t, Options{Peers: tables.Peers, Draining: func(string) bool { return false }, Configured: func(a string) bool { return a == configured }})
		expectState(t, "at the start", f, "", happened())
		time.Sleep(firstHeartbeat - time.Millisecond)
		expectState(t, "the announcers find each other", f, "", happened())
		time.Sleep(time.Millisecond)
		expectState(t, "never received", f, "10.0.0.2:7481 ()", happened()) // since before Run
		drop("10.0.0.2:7481")
		set("lb2", "alive")
		expectState(t, "received", f, "", happened(), "node_returned 10.0.0.2:7481")

		set("lb2", "one-way")
		expectState(t, "it is not silent", f, "", happened())
		time.Sleep(time.Second)
		set("lb2", "dead")
		expectState(t, "silent", f, "lb2 (192.0.2.10, 192.0.2.11 and 1 more)", happened(), "node_lost lb2")
		if c := f.Checks(time.Now()); len(c) != 1 || !strings.Contains(c[0].Hint, "announce.peers") {
			t.Errorf("%+v", c)
		}
		// This host's announcer starts again.
		drop("lb2")
		expectState(t, "while the announcer is away", f, "lb2 (192.0.2.10, 192.0.2.11 and 1 more)", happened())
		set("10.0.0.2:7481", "unknown")
		time.Sleep(time.Minute)
		expectState(t, "after a restart of the announcer", f, "lb2 (192.0.2.10, 192.0.2.11 and 1 more)", happened())
		drop("10.0.0.2:7481")
		set("lb2", "alive")
		expectState(t, "back", f, "", happened(), "node_returned lb2")

		set("lb2", "dead")
		expectState(t, "again", f, "lb2 (192.0.2.10, 192.0.2.11 and 1 more)", happened(), "node_lost lb2")
		configured = ""
		drop("lb2")
		expectState(t, "no longer a peer", f, "", happened(), "node_forgotten lb2")
	})
}
