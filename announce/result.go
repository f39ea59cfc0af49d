package announce

import (
	"net/netip"
	"time"
)

// The states of an announcement at a place. Layer 2 has others, see package l2.
const (
	// Layer 2: frames were sent, and no other station has the VIP. BGP: the UPDATE was sent. Routes: the kernel has the route.
	StateAnnounced = "announced"
	StateWaiting   = "waiting"
	StateConflict  = "conflict" // another station has the VIP
)

// sendSlack bounds the time from a decision to the moment at which a session notices it.
const sendSlack = time.Second

// Result returns what becomes of an announcement of this host at p, which is a session with a router.
func (p *Peer) Result(n *Announcement) Announced {
	r := Announced{Place: Place{n.Addr, p.Name}, State: StateAnnounced, Since: p.Since, Negotiated: p.Negotiated}
	if n.Since.After(r.Since) {
		r.Since = n.Since
	}
	switch lacks := p.Lacks[FamilyIndex(n.Addr)]; {
	case !p.Up:
		r.State, r.Reason, r.Since = StateWaiting, p.Reason, p.Since
	case lacks != "":
		r.State, r.Reason = StateWaiting, lacks
	case !p.Sending.IsZero() && r.Since.After(p.Sending.Add(-sendSlack)):
		r.State, r.Reason = StateWaiting, "the router has not read what this host sends"
	}
	return r
}

// FamilyIndex returns the index of an address's family in Peer.Lacks.
func FamilyIndex(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// Outcome returns the state of a VIP that this host is to announce, of its results at all places, and the reason of a state
// other than announced. One place at which it is announced is enough, but a conflict at one is a conflict.
func Outcome(m Mode, places []Announced) (state, reason string) {
	if len(places) == 0 {
		switch m {
		case L2:
			return StateWaiting, "the announcer has not begun"
		case BGP:
			return StateWaiting, "there is no session with a router"
		}
		return StateWaiting, "the route has not been set yet"
	}
	for i, p := range places {
		switch {
		case p.State == StateConflict:
			return p.State, p.At + ": " + p.Reason
		case p.State == StateAnnounced:
			state, reason = p.State, ""
		case i == 0:
			state, reason = p.State, p.At+": "+p.Reason
		}
	}
	return state, reason
}
