package announce

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// The states of an announcement at a place. Layer 2 has others, see package l2.
const (
	// Layer 2: frames were sent, and no other station has the VIP. BGP: the UPDATE was sent. Routes: the kernel has the route.
	StateAnnounced = "announced"
	StateWaiting   = "waiting"
	StateExcluded  = "excluded" // BGP: the operator's policy does not announce the VIP at this router
	StateConflict  = "conflict" // another station has the VIP
)

// sendSlack bounds the time from a decision to the moment at which a session notices it.
const sendSlack = time.Second

// SentRoute is a route for a VIP that a router gets.
type SentRoute struct {
	Prefix netip.Prefix // of the VIP, or its aggregate
	From   string       // of the RoutePolicy
	RouteAttributes
}

// sent returns the routes that the router at p gets while this host announces a VIP.
func (p *Peer) sent(n *Announcement) (all []SentRoute) {
	own, aggregate := n.Route.For(n.Addr)
	for _, r := range []PrefixRoute{own, aggregate} {
		if !r.Prefix.IsValid() {
			continue
		}
		if a, gets := r.Attributes(p.Name, p.Routes, p.IBGP, p.Draining); gets {
			all = append(all, SentRoute{r.Prefix, r.Policy.Policy().From, a})
		}
	}
	return all
}

// Result returns what becomes of an announcement of this host at p, which is a session with a router, and the routes
// that the router gets for it while the session is up.
func (p *Peer) Result(n *Announcement) (Announced, []SentRoute) {
	r := Announced{Place: Place{n.Addr, p.Name}, State: StateAnnounced, Since: p.Since, Negotiated: p.Negotiated}
	if n.Since.After(r.Since) {
		r.Since = n.Since
	}
	sent := p.sent(n)
	unsent := p.Sending.Add(-sendSlack)
	switch lacks := p.Lacks[FamilyIndex(n.Addr)]; {
	case len(sent) == 0:
		r.State, r.Reason, r.Since = StateExcluded, "peers of "+n.Route.Policy.Policy().From+" does not name this router", n.Updated.Time()
	case !p.Up:
		r.State, r.Reason, r.Since = StateWaiting, p.Reason, p.Since
	case lacks != "":
		r.State, r.Reason = StateWaiting, lacks
	case !p.Sending.IsZero() && (r.Since.After(unsent) || n.Updated.Time().After(unsent)):
		r.State, r.Reason = StateWaiting, "the router has not read what this host sends"
	}
	return r, sent
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
	var excluded []string
	for _, p := range places {
		switch {
		case p.State == StateConflict:
			return p.State, p.At + ": " + p.Reason
		case p.State == StateAnnounced:
			state, reason = p.State, ""
		case p.State == StateExcluded:
			excluded = append(excluded, p.At+": "+p.Reason)
		case state == "":
			state, reason = p.State, p.At+": "+p.Reason
		}
	}
	if len(excluded) > 0 && state != StateAnnounced { // a session that is up may be one of these
		slices.Sort(excluded)
		if state == StateWaiting {
			excluded = append([]string{reason}, excluded...)
		}
		state, reason = StateWaiting, strings.Join(excluded, "; ")
	}
	return state, reason
}
