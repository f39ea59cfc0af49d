package announce

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
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
		got := c.p.Result(&Announcement{Addr: netip.MustParseAddr(c.vip), Mode: BGP, Here: true, Since: c.since})
		expect.Equal(t, got, Announced{Place: Place{netip.MustParseAddr(c.vip), "10.0.0.254"}, State: c.state, Reason: c.reason, Since: c.at}, "%s", name)
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
		{L2, []Announced{at("eth0", "probing", "")}, "probing", "eth0: "},
	} {
		state, reason := Outcome(c.mode, c.places)
		expect.Equal(t, [2]string{state, reason}, [2]string{c.state, c.reason}, "%s %v", c.mode, c.places)
	}
}
