package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/control"
	drains "github.com/ironvip/ironvip/announce/nodes"
	"github.com/ironvip/ironvip/api/nodes"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/roster"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/expect"
)

// announceRig is the announcer's tables as an agent mirrors them, and drains in memory.
type announceRig struct {
	control.Tables
	drains map[string]drains.Drain
	moves  *table.Table[netip.Addr, announce.Move]
	stale  string
}

// newAnnounceRig returns tables with a VIP here, one elsewhere, one in conflict, and a route.
func newAnnounceRig() *announceRig {
	r := &announceRig{Tables: control.NewTables(&table.Clock{}), drains: map[string]drains.Drain{}, moves: table.New(new(table.Clock), announce.KeyOfMove, nil)}
	since := time.Unix(1000, 0)
	for _, n := range []announce.Announcement{
		{Addr: netip.MustParseAddr("192.0.2.10"), Mode: announce.L2, Here: true, Owner: "lb1", Services: 2, Why: "lb1: highest of 2 eligible", Since: since},
		{Addr: netip.MustParseAddr("192.0.2.11"), Mode: announce.L2, Owner: "lb2", Services: 1, Why: "lb2: highest of 2 eligible", Since: since},
		{Addr: netip.MustParseAddr("192.0.2.12"), Mode: announce.L2, Here: true, Owner: "lb1", Services: 1, Since: since},
		{Addr: netip.MustParseAddr("192.0.2.13"), Mode: announce.L2, Since: since},
		{Addr: netip.MustParseAddr("2001:db8::1"), Mode: announce.BGP, Since: since},
	} {
		r.Announcements.Set(n)
	}
	for _, p := range []announce.Announced{
		{Place: announce.Place{Addr: netip.MustParseAddr("192.0.2.10"), At: "eth0"}, State: "announced", Since: since},
		{Place: announce.Place{Addr: netip.MustParseAddr("192.0.2.12"), At: "eth0"}, State: "conflict", Reason: "02:00:00:00:00:01 has it", Since: since},
	} {
		r.Announced.Set(p)
	}
	r.Peers.Set(announce.Peer{PeerKey: announce.PeerKey{Kind: announce.Neighbor, Name: "lb2"}, Address: "10.0.0.2:7481", State: "alive", Up: true, Since: since, Owned: 7})
	r.Peers.Set(announce.Peer{PeerKey: announce.PeerKey{Kind: announce.BGPSession, Name: "10.0.0.254"}, State: "idle", Reason: "connection refused", Since: since})
	return r
}

// use makes Deps use the tables and drains.
func (r *announceRig) use(d *nodes.Deps) {
	d.Announcements, d.Announced, d.Peers, d.Stale = r.Announcements, r.Announced, r.Peers, func() string { return r.stale }
	d.Drains = func() map[string]drains.Drain { return r.drains }
	d.SetDrain = func(_ context.Context, node string, drain bool, author string) error {
		if delete(r.drains, node); drain {
			r.drains[node] = drains.Drain{Node: node, Since: time.Unix(2000, 0), Author: author}
		}
		return nil
	}
	d.Moves = r.moves
	d.SetMove = func(_ context.Context, m announce.Move) error { r.moves.Set(m); return nil }
	d.EndMove = func(_ context.Context, addr netip.Addr, _ uint32) error { r.moves.Delete(addr); return nil }
}

// A VIP can be moved to a host where the move has an effect, and nowhere else.
func TestMoveVIP(t *testing.T) {
	rig := newAnnounceRig()
	rig.drains["lb3"] = drains.Drain{Node: "lb3"}
	store := "consul"
	r := newRig(t, func(d *Deps) {
		d.Node = "lb1"
		rig.use(&d.Nodes)
		d.Nodes.List = func(context.Context) (v1.NodeList, error) {
			return v1.NodeList{Store: store, Items: []v1.Node{{Name: "lb1"}, {Name: "lb2"}, {Name: "lb3"}, {Name: "lb4"}, {Name: "lb5"}}}, nil
		}
	})
	rig.Peers.Set(announce.Peer{PeerKey: announce.PeerKey{Kind: announce.Neighbor, Name: "lb4"}, State: "alive", Up: true, Draining: true})
	rig.Peers.Set(announce.Peer{PeerKey: announce.PeerKey{Kind: announce.Neighbor, Name: "lb5"}, State: "dead"})
	ranked := announce.Announcement{Addr: netip.MustParseAddr("192.0.2.10"), Mode: announce.L2, Here: true, Owner: "lb1", Services: 2, Ranking: "lb1 (priority 100, 2 services); lb2 (priority 100, 1 service): fewer services"}
	rig.Announcements.Set(ranked)
	rig.moves.Set(announce.Move{Addr: netip.MustParseAddr("192.0.2.98"), Node: "lb2", Pin: true})
	newer := announce.Announcement{Addr: netip.MustParseAddr("192.0.2.11"), Mode: announce.L2, Owner: "lb2", Services: 1, Moved: 4_000_000_000} // a clock that is ahead
	rig.Announcements.Set(newer)
	for _, c := range []struct {
		method, path, store string
		want                int
		says                string
	}{
		{"PUT", v1.AnnouncementMovePath("192.0.2.10", "lb2"), "consul", 200, `"move":{"node":"lb2","pin":false,`},
		{"PUT", v1.AnnouncementMovePath("192.0.2.11", "lb1") + "?pin=true", "consul", 200, `"move":{"node":"lb1","pin":true,"since":"2096-10-02T07:06:41Z"`},
		{"PUT", v1.AnnouncementMovePath("192.0.2.10", "lb2"), "bolt", 404, "without a fleet, ask the host's own agent"},
		{"PUT", v1.AnnouncementMovePath("192.0.2.10", "lb1"), "bolt", 200, `"move":{"node":"lb1"`},
		{"PUT", v1.AnnouncementMovePath("192.0.2.10", "lb9"), "consul", 404, "lb9"},
		{"PUT", v1.AnnouncementMovePath("192.0.2.99", "lb1"), "consul", 404, "not announced"},
		{"PUT", v1.AnnouncementMovePath("x", "lb1"), "consul", 400, "not an address"},
		{"PUT", v1.AnnouncementMovePath("2001:db8::1", "lb1"), "consul", 409, "every eligible host announces it"},
		{"PUT", v1.AnnouncementMovePath("192.0.2.10", "lb3"), "consul", 409, "lb3 drains"},
		{"PUT", v1.AnnouncementMovePath("192.0.2.10", "lb3") + "?pin=true", "consul", 200, `"pin":true`},
		{"PUT", v1.AnnouncementMovePath("192.0.2.10", "lb4"), "consul", 409, "lb4 drains"},
		{"PUT", v1.AnnouncementMovePath("192.0.2.10", "lb5"), "consul", 409, "no heartbeats of node lb5"},
		{"PUT", v1.AnnouncementMovePath("192.0.2.10", "lb5") + "?pin=true", "consul", 200, `"pin":true`},
		{"PUT", v1.AnnouncementMovePath("192.0.2.13", "lb1"), "consul", 409, "can't announce"},
		{"PUT", v1.AnnouncementMovePath("192.0.2.12", "lb2"), "consul", 409, "lb2 can't announce"},
		{"DELETE", v1.AnnouncementMovePath("192.0.2.98", ""), "consul", 200, "no service has this VIP"},
		{"DELETE", v1.AnnouncementMovePath("192.0.2.98", ""), "consul", 404, "no move"},
		{"DELETE", v1.AnnouncementMovePath("192.0.2.10", ""), "consul", 200, `"vip":"192.0.2.10"`},
		{"DELETE", v1.AnnouncementMovePath("192.0.2.10", ""), "consul", 404, "no move"},
	} {
		store = c.store
		if a := r.ask(c.method, c.path, ""); a.StatusCode != c.want || !strings.Contains(string(a.body), c.says) {
			t.Errorf("%s %s: %s\n%s\nwant %d with %s", c.method, c.path, a.Status, a.body, c.want, c.says)
		}
	}
	older, _, _ := rig.Peers.Get(announce.PeerKey{Kind: announce.Neighbor, Name: "lb2"})
	older.Differs = true
	rig.Peers.Set(older)
	if a := r.ask("PUT", v1.AnnouncementMovePath("192.0.2.10", "lb1"), ""); a.StatusCode != 409 || !strings.Contains(string(a.body), "upgrade all hosts") {
		t.Errorf("with a host that decides otherwise: %s\n%s", a.Status, a.body)
	}
}

func TestAnnouncements(t *testing.T) {
	rig := newAnnounceRig()
	rig.stale = "no such file"
	r := newRig(t, func(d *Deps) {
		d.Node = "lb1"
		rig.use(&d.Nodes)
		d.Nodes.List = func(context.Context) (v1.NodeList, error) {
			return v1.NodeList{Items: []v1.Node{{Name: "lb1"}, {Name: "lb2"}, {Name: "lb3"}}}, nil
		}
	})
	var list v1.AnnouncementList
	decode := func(a answer, into any) {
		t.Helper()
		if err := json.Unmarshal(a.body, into); err != nil || a.StatusCode != 200 {
			t.Fatalf("%s: %v\n%s", a.Status, err, a.body)
		}
	}
	decode(r.ask("GET", v1.PathAnnouncements+"?limit=3", ""), &list)
	var states []string
	for _, n := range list.Items {
		states = append(states, n.State)
	}
	var rest v1.AnnouncementList
	decode(r.ask("GET", v1.PathAnnouncements+"?cursor="+list.Next, ""), &rest)
	for _, n := range rest.Items {
		states = append(states, n.State)
	}
	want := []string{"announced", "elsewhere", "conflict", "no owner", "withdrawn"}
	if len(states) != len(want) || list.Stale != "no such file" {
		t.Fatalf("%v, %+v", states, list)
	}
	for i := range want {
		expect.Equal(t, states[i], want[i], "states %v, want %v", states, want)
	}
	var one v1.Announcement
	decode(r.ask("GET", v1.AnnouncementPath("192.0.2.12"), ""), &one)
	if len(one.Places) != 1 || one.Places[0].Reason != "02:00:00:00:00:01 has it" {
		t.Errorf("%+v", one)
	}
	if a := r.ask("GET", v1.AnnouncementPath("192.0.2.99"), ""); a.StatusCode != 404 {
		t.Errorf("%s", a.Status)
	}
	if a := r.ask("GET", v1.AnnouncementPath("x"), ""); a.StatusCode != 400 {
		t.Errorf("%s", a.Status)
	}
	var peers v1.AnnouncePeerList
	decode(r.ask("GET", v1.PathAnnouncePeers, ""), &peers)
	if len(peers.Items) != 2 || peers.Items[0].Name != "lb2" || peers.Items[1].Reason != "connection refused" {
		t.Errorf("%+v", peers)
	}

	var drain v1.NodeDrain
	for node, vips := range map[string]int{"lb1": 2, "lb2": 7, "lb3": -1} {
		drain = v1.NodeDrain{}
		decode(r.ask("PUT", v1.NodeDrainPath(node), ""), &drain)
		if !drain.Draining || drain.Since == nil || vips >= 0 && (drain.VIPs == nil || *drain.VIPs != vips) || vips < 0 && drain.VIPs != nil {
			t.Errorf("%s: %+v", node, drain)
		}
		drain = v1.NodeDrain{}
		decode(r.ask("GET", v1.NodeDrainPath(node), ""), &drain)
		expect.True(t, drain.Draining, "%s: %+v", node, drain)
		drain = v1.NodeDrain{}
		decode(r.ask("DELETE", v1.NodeDrainPath(node), ""), &drain)
		expect.False(t, drain.Draining, "%s: %+v", node, drain)
	}
	if a := r.ask("PUT", v1.NodeDrainPath("lb9"), ""); a.StatusCode != 404 {
		t.Errorf("%s", a.Status)
	}
}

// Only a lost node can be forgotten. Without a fleet, other hosts can't be drained from here.
func TestForgetNode(t *testing.T) {
	store := ""
	r := newRig(t, func(d *Deps) {
		d.Node = "lb1"
		newAnnounceRig().use(&d.Nodes)
		d.Nodes.List = func(context.Context) (v1.NodeList, error) {
			return v1.NodeList{Store: store, Items: []v1.Node{{Name: "lb1"}, {Name: "lb2", State: v1.NodeLost}}}, nil
		}
		d.Nodes.Forget = func(_ context.Context, node string) error {
			return map[string]error{"lb2": nil, "lb1": fmt.Errorf("node lb1 is %w", roster.ErrPresent), "lb3": roster.ErrUnknown, "lb4": fleet.ErrUnavailable}[node]
		}
	})
	for node, want := range map[string]int{"lb2": 200, "lb1": 409, "lb3": 404, "lb4": 503} {
		if a := r.ask("DELETE", v1.NodePath(node), ""); a.StatusCode != want {
			t.Errorf("%s: %s %s, want %d", node, a.Status, a.body, want)
		}
	}
	for at, want := range map[string]int{"consul": 200, "bolt": 404} {
		store = at
		if a := r.ask("PUT", v1.NodeDrainPath("lb2"), ""); a.StatusCode != want {
			t.Errorf("drain of another host with store %s: %s %s, want %d", at, a.Status, a.body, want)
		}
	}
}

// A VIP names the policy of its routes, and each router the routes that it gets. A router that gets none is excluded.
func TestRoutesOfAnAnnouncement(t *testing.T) {
	rig := newAnnounceRig()
	rig.Peers.Set(announce.Peer{PeerKey: announce.PeerKey{Kind: announce.BGPSession, Name: "10.0.0.253"}, State: "established", Up: true, Since: time.Unix(1000, 0),
		Routes: announce.RouteKeys{MED: new(uint32(9))}, IBGP: true})
	p := announce.RoutePolicy{From: "pool \"web\", match 1 (tier=gold)", RouteKeys: announce.RouteKeys{Communities: []string{"1:2:3"}, LinkBandwidth: announce.LinkBandwidthBackends, Peers: []string{"10.0.0.253"}}}
	rig.Announcements.Set(announce.Announcement{Addr: netip.MustParseAddr("192.0.2.20"), Mode: announce.BGP, Here: true, Services: 1, Since: time.Unix(500, 0),
		Route: announce.Route{Policy: p.Text(), Backends: 2}})
	r := newRig(t, func(d *Deps) { rig.use(&d.Nodes) })
	var got v1.Announcement
	a := r.ask("GET", v1.AnnouncementPath("192.0.2.20"), "")
	if err := json.Unmarshal(a.body, &got); err != nil {
		t.Fatal(err, string(a.body))
	}
	expect.Equal(t, got.State+" by "+got.Policy, "announced by pool \"web\", match 1 (tier=gold)")
	expect.Equal(t, fmt.Sprintf("%s %+v", got.Places[0].State, got.Places[0].Routes),
		`announced [{Prefix:192.0.2.20/32 Policy:pool "web", match 1 (tier=gold) Communities:[1:2:3] MED:9 LocalPref:100 Prepend:0 LinkBandwidth:250000}]`)
	expect.Equal(t, fmt.Sprintf("%s %s %v", got.Places[1].At, got.Places[1].State, got.Places[1].Routes), "10.0.0.254 excluded []")
	// Without the session of the router that is named, the VIP waits although another one could be up.
	rig.Peers.Delete(announce.PeerKey{Kind: announce.BGPSession, Name: "10.0.0.253"})
	rig.Peers.Set(announce.Peer{PeerKey: announce.PeerKey{Kind: announce.BGPSession, Name: "10.0.0.254"}, State: "established", Up: true})
	got = v1.Announcement{}
	_ = json.Unmarshal(r.ask("GET", v1.AnnouncementPath("192.0.2.20"), "").body, &got)
	expect.Equal(t, got.State+": "+got.Reason, `waiting: 10.0.0.254: peers of pool "web", match 1 (tier=gold) does not name this router`)
}
