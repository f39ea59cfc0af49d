package announce

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

func TestResultAtASession(t *testing.T) {
	begun := time.Unix(1000, 0)
	up := Peer{PeerKey: PeerKey{BGPSession, "10.0.0.254"}, Up: true, Since: begun.Add(time.Hour)}
	with := func(change func(*Peer)) Peer { p := up; change(&p); return p }
	early, late := begun, begun.Add(3*time.Hour)
	for name, c := range map[string]struct {
		p             Peer
		vip           string
		since         time.Time
		state, reason string
		at            time.Time
	}{
		"before the session":  {up, "10.96.0.1", early, StateAnnounced, "", up.Since},
		"during the session":  {up, "10.96.0.1", late, StateAnnounced, "", late},
		"down":                {with(func(p *Peer) { p.Up, p.Reason = false, "hold timer" }), "10.96.0.1", late, StateWaiting, "hold timer", up.Since},
		"no such family":      {with(func(p *Peer) { p.Lacks[1] = "no IPv6" }), "fd96::1", late, StateWaiting, "no IPv6", late},
		"the other family":    {with(func(p *Peer) { p.Lacks[1] = "no IPv6" }), "10.96.0.1", late, StateAnnounced, "", late},
		"sent before":         {with(func(p *Peer) { p.Sending = late }), "10.96.0.1", early, StateAnnounced, "", up.Since},
		"not sent":            {with(func(p *Peer) { p.Sending = late }), "10.96.0.1", late.Add(time.Second), StateWaiting, "the router has not read what this host sends", late.Add(time.Second)},
		"nothing is sent yet": {with(func(p *Peer) { p.Sending = p.Since }), "10.96.0.1", early, StateWaiting, "the router has not read what this host sends", up.Since},
	} {
		got, _ := c.p.Result(&Announcement{Addr: netip.MustParseAddr(c.vip), Mode: BGP, Here: true, Since: c.since})
		expect.Equal(t, got, Announced{Place: Place{netip.MustParseAddr(c.vip), "10.0.0.254"}, State: c.state, Reason: c.reason, Since: c.at}, "%s", name)
	}
}

// A router gets the routes of the policy, and a VIP without one there is excluded. An aggregate stands for its VIPs.
func TestSentByPolicy(t *testing.T) {
	policy := func(change func(*RoutePolicy)) Route {
		p := RoutePolicy{From: "pool \"web\""}
		change(&p)
		return Route{Policy: p.Text(), Backends: 2}
	}
	aggregated := func(p *RoutePolicy, peers ...string) {
		p.Aggregate = netip.MustParsePrefix("10.96.0.0/24")
		p.Aggregated = (&RoutePolicy{From: "pool", RouteKeys: RouteKeys{MED: new(uint32(7)), Peers: peers}}).Text()
	}
	up := Peer{PeerKey: PeerKey{BGPSession, "r1"}, Up: true, Routes: RouteKeys{Communities: []string{"1:1"}, LocalPref: new(uint32(300)), Prepend: new(3)}}
	draining, internal, down, unread := up, up, up, up
	draining.Draining, internal.IBGP, down.Up, down.Reason = true, true, false, "refused"
	unread.Sending = time.Unix(1000, 0)
	excluded := `excluded: peers of pool "web" does not name this router []`
	for name, c := range map[string]struct {
		p    Peer
		r    Route
		want string
	}{
		"no policy":     {up, Route{}, "announced:  [10.96.0.1/32  {[1:1] 0 0 3 0}]"},
		"inside the AS": {internal, Route{}, "announced:  [10.96.0.1/32  {[1:1] 0 300 0 0}]"},
		"draining":      {draining, Route{}, "announced:  [10.96.0.1/32  {[1:1 graceful-shutdown] 0 0 3 0}]"},
		"keys": {up, policy(func(p *RoutePolicy) {
			p.Communities, p.Prepend, p.LinkBandwidth, p.MED = []string{}, new(0), LinkBandwidthBackends, new(uint32(5))
		}), `announced:  [10.96.0.1/32 pool "web" {[] 5 0 0 250000}]`},
		"named":                 {up, policy(func(p *RoutePolicy) { p.Peers = []string{"r2", "r1"} }), `announced:  [10.96.0.1/32 pool "web" {[1:1] 0 0 3 0}]`},
		"others are named":      {up, policy(func(p *RoutePolicy) { p.Peers = []string{"r2"} }), excluded},
		"and the session is no": {down, policy(func(p *RoutePolicy) { p.Peers = []string{"r2"} }), excluded},
		"down":                  {down, policy(func(p *RoutePolicy) { p.Peers = []string{"r1"} }), `waiting: refused [10.96.0.1/32 pool "web" {[1:1] 0 0 3 0}]`},
		"aggregate":             {up, policy(func(p *RoutePolicy) { aggregated(p) }), `announced:  [10.96.0.1/32 pool "web" {[1:1] 0 0 3 0} 10.96.0.0/24 pool {[1:1] 7 0 3 0}]`},
		"aggregate alone":       {up, policy(func(p *RoutePolicy) { aggregated(p); p.HostRoutes = new(false) }), `announced:  [10.96.0.0/24 pool {[1:1] 7 0 3 0}]`},
		"aggregate elsewhere":   {up, policy(func(p *RoutePolicy) { aggregated(p, "r2"); p.HostRoutes = new(false) }), excluded},
		"aggregate here": {up, policy(func(p *RoutePolicy) { aggregated(p, "r1"); p.Peers = []string{"r2"} }),
			`announced:  [10.96.0.0/24 pool {[1:1] 7 0 3 0}]`},
		"not sent yet": {unread, policy(func(p *RoutePolicy) {}), `waiting: the router has not read what this host sends [10.96.0.1/32 pool "web" {[1:1] 0 0 3 0}]`},
	} {
		n := Announcement{Addr: netip.MustParseAddr("10.96.0.1"), Mode: BGP, Here: true, Since: time.Unix(500, 0), Route: c.r, Updated: vip.InstantOf(time.Unix(1000, 0))}
		r, sent := c.p.Result(&n)
		var routes []string
		for _, s := range sent {
			routes = append(routes, fmt.Sprint(s.Prefix, " ", s.From, " ", s.RouteAttributes))
		}
		expect.Equal(t, fmt.Sprintf("%s: %s %v", r.State, r.Reason, routes), c.want, "%s", name)
	}
}

func TestOutcome(t *testing.T) {
	at := func(name, state, reason string) Announced {
		return Announced{Place: Place{At: name}, State: state, Reason: reason}
	}
	a, b, conflict := at("a", StateAnnounced, ""), at("b", StateWaiting, "silence"), at("eth0", StateConflict, "02:00:00:00:00:01 has it")
	for _, c := range []struct {
		mode          Mode
		places        []Announced
		state, reason string
	}{
		{Routes, nil, StateWaiting, "the route has not been set yet"},
		{Routes, []Announced{a}, StateAnnounced, ""},
		{Routes, []Announced{b}, StateWaiting, "b: silence"},
		{L2, nil, StateWaiting, "the announcer has not begun"},
		{BGP, nil, StateWaiting, "there is no session with a router"},
		{BGP, []Announced{a}, StateAnnounced, ""},
		{BGP, []Announced{b, a, b}, StateAnnounced, ""},
		{BGP, []Announced{b, at("c", StateWaiting, "no route")}, StateWaiting, "b: silence"},
		{L2, []Announced{a, conflict}, StateConflict, "eth0: 02:00:00:00:00:01 has it"},
		{BGP, []Announced{at("c", StateExcluded, "not named"), at("a", StateExcluded, "not named")}, StateWaiting, "a: not named; c: not named"},
		{BGP, []Announced{at("a", StateExcluded, "not named"), b}, StateWaiting, "b: silence; a: not named"},
		{BGP, []Announced{at("c", StateExcluded, "not named"), a}, StateAnnounced, ""},
		{L2, []Announced{at("eth0", "probing", "")}, "probing", "eth0: "},
	} {
		state, reason := Outcome(c.mode, c.places)
		expect.Equal(t, [2]string{state, reason}, [2]string{c.state, c.reason}, "%s %v", c.mode, c.places)
	}
}

// A range stands for its routers, also for one with a zone.
func TestNamesOfRouters(t *testing.T) {
	for _, c := range []struct {
		name, router string
		want         bool
	}{
		{"fe80::/10", "fe80::1%eth0", true},
		{"fe80::/10@red", "fe80::1%eth0@red", true},
		{"fe80::/10", "fe80::1%eth0@red", false},
		{"fe80::/10", "fd00::1", false},
		{"fe80::1%eth0", "fe80::1%eth1", false},
	} {
		expect.Equal(t, stands(c.name, c.router), c.want, "%s stands for %s", c.name, c.router)
	}
}

// A policy is parsed once, and the number of those in memory is bounded.
func TestParsedPolicies(t *testing.T) {
	med := uint32(7)
	text := (&RoutePolicy{RouteKeys: RouteKeys{MED: &med}, From: "pool routed"}).Text()
	expect.Equal(t, text.Policy().From, "pool routed")
	expect.Equal(t, *text.Policy().MED, 7, "MED")
	expect.Equal(t, testing.AllocsPerRun(100, func() { text.Policy() }), 0, "allocations")
	expect.Equal(t, PolicyText("{").Policy().From, "", "no policy")
	for i := range maxParsed {
		PolicyText(fmt.Sprintf(`{"MED":%d}`, i)).Policy()
	}
	expect.AtMost(t, len(parsed.policies), maxParsed, "policies")
	expect.Equal(t, text.Policy().From, "pool routed", "later")
}
