package announce

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/internal/text"
)

// why returns the reason for the announcement of a VIP in words: "lb2: highest of 3 eligible; lb1 is
// draining".
func (d *Decider) why(addr netip.Addr, e *entry, v *view, here bool) string {
	if !e.here {
		return ""
	}
	if e.mode != L2 {
		return d.whyRoute(addr, e, v)
	}
	var parts []string
	switch owner := v.owner(); {
	case here && v.services == 0:
		parts = append(parts, d.self.Name+": keeps it until another host is eligible")
	case here && d.self.Draining:
		parts = append(parts, fmt.Sprintf("%s: keeps it until %s announces it", d.self.Name, v.best.host.Name))
	case here && v.best != &v.self:
		parts = append(parts, fmt.Sprintf("%s: keeps it until %s has settled", d.self.Name, v.best.host.Name))
	case here:
		parts = append(parts, v.best.first(len(v.candidates)))
	case owner != "" && v.best != nil && v.best.host.Name == owner:
		parts = append(parts, v.best.first(len(v.candidates)))
	case owner != "" && v.oneWay:
		parts = append(parts, fmt.Sprintf("%s: does not receive heartbeats of %s", owner, d.self.Name))
	case owner != "" && v.best == nil:
		parts = append(parts, owner+": no other host is eligible")
	case owner != "":
		parts = append(parts, fmt.Sprintf("%s: keeps it until %s has settled", owner, v.best.host.Name))
	case v.best == nil:
		parts = append(parts, "no eligible host")
	case d.listening:
		parts = append(parts, d.self.Name+" is finding out what other hosts announce")
	default:
		parts = append(parts, v.best.host.Name+" is taking it over")
	}
	return strings.Join(append(parts, d.obstacles(addr, e)...), "; ")
}

// first returns why a candidate is the first one of a number of them.
func (c *candidate) first(of int) string {
	why := fmt.Sprintf("highest of %d eligible", of)
	switch {
	case c.policy.Moved > 0 && c.policy.Pinned:
		why = "pinned here by an operator"
	case c.policy.Moved > 0:
		why = "moved here by an operator, until it fails, drains or is not eligible"
	case of == 1:
		why = "the only eligible host"
	}
	return c.host.Name + ": " + why
}

// maxRanked bounds the hosts that a ranking names.
const maxRanked = 8

// ranking returns the order of candidates in words: "lb1 (priority 200, 1 service); lb2 (priority 100, 1 service): lower
// priority". It sorts them.
func ranking(all []*candidate) string {
	if len(all) < 2 {
		return ""
	}
	slices.SortFunc(all, func(a, b *candidate) int { order, _ := b.compare(a); return order })
	var b strings.Builder
	for i, c := range all[:min(len(all), maxRanked)] {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s (", c.host.Name)
		switch {
		case c.policy.Moved > 0 && c.policy.Pinned:
			b.WriteString("pinned, ")
		case c.policy.Moved > 0:
			b.WriteString("moved, ")
		}
		if c.policy.Standby {
			b.WriteString("standby, ")
		}
		fmt.Fprintf(&b, "priority %d, %s)", c.policy.Priority(), text.Plural(c.services, "service"))
		if i > 0 {
			_, why := all[i-1].compare(c)
			b.WriteString(": " + why)
		}
	}
	if more := len(all) - maxRanked; more > 0 {
		fmt.Fprintf(&b, "; and %d more", more)
	}
	return b.String()
}

// Ranks reports whether a host is one of those that could own the VIP, or may be one that Ranking doesn't name.
func (a *Announcement) Ranks(host string) bool {
	return a.Owner == host || strings.Contains("; "+a.Ranking, "; "+host+" (") || strings.HasSuffix(a.Ranking, " more")
}

// obstacles returns what keeps hosts from owning a VIP, this host first and the others by name.
func (d *Decider) obstacles(addr netip.Addr, e *entry) []string {
	var out []string
	if reason := d.obstacle(addr, e); reason != "" {
		out = append(out, d.self.Name+" "+reason)
	}
	var others []string
	for i := range e.claims {
		switch c := &e.claims[i]; {
		case !c.peer.Alive:
			others = append(others, c.peer.Name+" is dead")
		case c.peer.Draining:
			others = append(others, c.peer.Name+" is draining")
		case c.services == 0:
			others = append(others, c.peer.Name+" is not eligible any more")
		}
	}
	slices.Sort(others)
	return append(out, others...)
}

// obstacle returns what keeps this host from announcing a VIP, as a predicate, or "".
func (d *Decider) obstacle(addr netip.Addr, e *entry) string {
	switch {
	case d.self.Draining:
		return "is draining"
	case e.mode == L2 && e.offline:
		return "can't announce it: " + d.offline(addr)
	case d.withdrawn != "":
		return "is not eligible: " + d.withdrawn
	case e.services == 0 && e.reason != "":
		return "is not eligible: " + e.reason
	case e.services == 0:
		return "is not eligible"
	}
	return ""
}

func (d *Decider) whyRoute(addr netip.Addr, e *entry, v *view) string {
	if reason := d.obstacle(addr, e); reason != "" {
		return d.self.Name + " " + reason
	}
	if e.mode == Off {
		return "announcing is off for its pool"
	}
	return fmt.Sprintf("%s: eligible, like %s", d.self.Name, others(len(v.candidates)-1))
}

func others(n int) string {
	switch n {
	case 0:
		return "no other known host"
	case 1:
		return "1 other host"
	}
	return fmt.Sprintf("%d other hosts", n)
}
