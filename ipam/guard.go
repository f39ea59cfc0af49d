package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/vip"
)

// guard is what pools must keep clear of: ranges of pods and whatever else a
// source says is in use, and what the host has.
type guard struct {
	used  []usedRange
	hosts map[netip.Addr]string // what else the address is: "this host's address on eth0"
	host  hostnet.Snapshot
	set   *netipx.IPSet // all of it
}

type usedRange struct {
	prefix netip.Prefix
	from   string // who says so
}

func newGuard(configured []netip.Prefix, learnt map[string][]netip.Prefix, host hostnet.Snapshot) *guard {
	g := &guard{hosts: make(map[netip.Addr]string), host: host}
	var b netipx.IPSetBuilder
	add := func(p netip.Prefix, from string) {
		if p = p.Masked(); p.IsValid() {
			g.used = append(g.used, usedRange{p, from})
			b.AddPrefix(p)
		}
	}
	for _, p := range configured {
		add(p, "the configuration")
	}
	for from, prefixes := range learnt {
		for _, p := range prefixes {
			add(p, "source "+from)
		}
	}
	slices.SortFunc(g.used, func(a, b usedRange) int {
		if c := a.prefix.Addr().Compare(b.prefix.Addr()); c != 0 {
			return c
		}
		if c := a.prefix.Bits() - b.prefix.Bits(); c != 0 {
			return c
		}
		return strings.Compare(a.from, b.from)
	})
	for _, a := range host.Gateways {
		g.hosts[a.Unmap().WithZone("")] = "a gateway of this host"
	}
	for _, a := range host.Addrs {
		g.hosts[a.Prefix.Addr().Unmap().WithZone("")] = "this host's own address on " + a.Link
	}
	for a := range g.hosts {
		b.Add(a)
	}
	g.set, _ = b.IPSet() // fails on invalid input only
	return g
}

// why says what else has an address that is held out.
func (g *guard) why(a netip.Addr) (code, what string) {
	if what, ok := g.hosts[a]; ok {
		return vip.CodeAddressTaken, "it is " + what
	}
	for _, p := range g.used {
		if p.prefix.Contains(a) {
			return vip.CodeOverlap, fmt.Sprintf("it is in range %s, which %s says is in use", p.prefix, p.from)
		}
	}
	return vip.CodeOverlap, "something else has it"
}

// most bounds how many alarms of one kind a pool shows.
const most = 10

// alarms says what a pool has in common with what it must keep clear of. Lease
// tells who holds an address. It costs O(ranges and routes).
func (g *guard) alarms(p *pool, lease func(netip.Addr) (Lease, bool)) []vip.Problem {
	var out, own, routes []vip.Problem
	for _, c := range p.CIDRs {
		for _, r := range g.used {
			if c.Overlaps(r.prefix) {
				out = append(out, vip.Problem{
					Code:    vip.CodeOverlap,
					Message: fmt.Sprintf("pool %q %s overlaps range %s, which %s says is in use: nothing more is given out there, what is held stays", p.Name, c, r.prefix, r.from),
					Hint:    "take that range out of the pool, and move the services that hold addresses of it",
				})
			}
		}
		for _, r := range g.host.Routes {
			if r.Link != "lo" && c.Overlaps(r.Prefix) && c.Bits() <= r.Prefix.Bits() {
				routes = append(routes, vip.Problem{
					Code:    CodeNotice,
					Message: fmt.Sprintf("pool %q %s covers the whole route %s of %s, so others there may have the same addresses", p.Name, c, r.Prefix, r.Link),
					Hint:    fmt.Sprintf("exclude %s from the pool unless it is yours to give out", r.Prefix),
				})
			}
		}
	}
	for a, what := range g.hosts {
		if !p.covers(a) {
			continue
		}
		message := fmt.Sprintf("%s is held out of pool %q: it is %s", a, p.Name, what)
		code, hint := CodeNotice, ""
		if l, ok := lease(a); ok && l.State == Held {
			message = fmt.Sprintf("%s is leased to %s, but it is also %s", a, l.Holders[0].Service, what)
			code, hint = vip.CodeAddressTaken, "take the address off the host, or delete the service"
		}
		own = append(own, vip.Problem{Code: code, Message: message, Hint: hint})
	}
	for _, list := range [][]vip.Problem{own, routes} {
		slices.SortFunc(list, func(a, b vip.Problem) int { return strings.Compare(a.Message, b.Message) })
		out = append(out, list[:min(len(list), most)]...)
		if more := len(list) - most; more > 0 {
			out = append(out, vip.Problem{Code: CodeNotice, Message: fmt.Sprintf("%d more such in pool %q", more, p.Name)})
		}
	}
	return out
}
