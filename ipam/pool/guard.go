package pool

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// Guard is what pools must keep clear of: ranges that are in use according to the configuration or a
// source, and the host's own addresses and gateways.
type Guard struct {
	used  []usedRange
	hosts map[netip.Addr]hostUse
	host  hostnet.Snapshot
	set   *netipx.IPSet // used and hosts
}

type usedRange struct {
	prefix netip.Prefix
	from   string // "the configuration" or "source NAME"
}

// hostUse is what the host has an address for.
type hostUse struct {
	reason ipam.Reason
	what   string // "this host's own address on eth0"
}

// NewGuard returns the guard against configured ranges, those that sources have learned, by source,
// and the host's network.
func NewGuard(configured []netip.Prefix, learned map[string][]netip.Prefix, host hostnet.Snapshot) *Guard {
	g := &Guard{hosts: make(map[netip.Addr]hostUse), host: host}
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
	for from, prefixes := range learned {
		for _, p := range prefixes {
			add(p, "source "+from)
		}
	}
	slices.SortFunc(g.used, func(a, b usedRange) int {
		return cmp.Or(a.prefix.Compare(b.prefix), cmp.Compare(a.from, b.from))
	})
	for _, a := range host.Addrs {
		for _, end := range ends(a.Prefix) {
			g.hosts[end] = hostUse{ipam.SubnetEnd, fmt.Sprintf("the network or broadcast address of %s on %s", a.Prefix.Masked(), a.Link)}
		}
	}
	for _, a := range host.Gateways {
		g.hosts[a.Unmap().WithZone("")] = hostUse{ipam.Gateway, "a gateway of this host"}
	}
	for _, a := range host.Addrs {
		g.hosts[a.Prefix.Addr().Unmap().WithZone("")] = hostUse{ipam.OwnAddress, "this host's own address on " + a.Link}
	}
	for a := range g.hosts {
		b.Add(a)
	}
	g.set, _ = b.IPSet() // fails on invalid input only
	return g
}

// ends returns the addresses of an interface's subnet that no station of it can have: the network and
// broadcast address of IPv4 (a /31 and a /32 have none), and the subnet-router anycast address of IPv6
// (RFC 4291; a /127 and a /128 have none). A part of the subnet has no such addresses of its own.
func ends(subnet netip.Prefix) []netip.Addr {
	r := netipx.RangeOfPrefix(subnet)
	switch {
	case subnet.Addr().BitLen()-subnet.Bits() < 2:
		return nil
	case subnet.Addr().Is4():
		return []netip.Addr{r.From(), r.To()}
	default:
		return []netip.Addr{r.From()}
	}
}

// what says what an address of the range is.
func (r *usedRange) what() string {
	return fmt.Sprintf("in range %s, which %s says is in use", r.prefix, r.from)
}

// Same reports whether two guards hold out the same addresses.
func (g *Guard) Same(o *Guard) bool { return g.set.Equal(o.set) }

// why says what an address that is held out is used for.
func (g *Guard) why(a netip.Addr) (code, what string) {
	if use, ok := g.hosts[a]; ok {
		return vip.CodeAddressTaken, "it is " + use.what
	}
	for _, p := range g.used {
		if p.prefix.Contains(a) {
			return vip.CodeOverlap, "it is " + p.what()
		}
	}
	return vip.CodeOverlap, "something else has it"
}

// most bounds how many alarms of one kind a pool shows.
const most = 10

// Alarms returns excludes without effect, and what the pool has in common with what it must keep
// clear of. holder returns the service that holds an address. It costs O(ranges and routes).
func (p *Pool) Alarms(holder func(netip.Addr) (vip.ServiceKey, bool)) []vip.Problem {
	var own, routes []vip.Problem
	out := p.nothingToGive()
	for _, e := range p.Exclude {
		if notice, useless := uselessExclude(&p.Pool, e); useless {
			out = append(out, notice)
		}
	}
	for _, c := range p.CIDRs {
		for _, r := range p.guard.used {
			if c.Overlaps(r.prefix) {
				out = append(out, vip.Problem{
					Code:    vip.CodeOverlap,
					Message: fmt.Sprintf("pool %q %s overlaps range %s, which %s says is in use: nothing more is allocated there, held addresses are kept", p.Name, c, r.prefix, r.from),
					Hint:    "take that range out of the pool, and move the services that hold addresses of it",
				})
			}
		}
		for _, r := range p.guard.host.Routes {
			if r.Link != "lo" && c.Overlaps(r.Prefix) && c.Bits() <= r.Prefix.Bits() {
				routes = append(routes, vip.Problem{
					Code:    CodeNotice,
					Message: fmt.Sprintf("pool %q %s covers the whole route %s of %s, so others there may have the same addresses", p.Name, c, r.Prefix, r.Link),
					Hint:    fmt.Sprintf("exclude %s from the pool unless its addresses are yours to allocate", r.Prefix),
				})
			}
		}
	}
	for a, use := range p.guard.hosts {
		if !p.Covers(a) {
			continue
		}
		message := fmt.Sprintf("%s is held out of pool %q: it is %s", a, p.Name, use.what)
		code, hint := CodeNotice, ""
		if service, held := holder(a); held {
			message = fmt.Sprintf("%s is leased to %s, but it is also %s", a, service, use.what)
			code, hint = vip.CodeAddressTaken, "take the address off the host, or delete the service"
		} else if use.reason == ipam.SubnetEnd {
			continue // as it should be
		}
		own = append(own, vip.Problem{Code: code, Message: message, Hint: hint})
	}
	for _, list := range [][]vip.Problem{own, routes} {
		slices.SortFunc(list, func(a, b vip.Problem) int { return strings.Compare(a.Message, b.Message) })
		out = append(out, list[:min(len(list), most)]...)
		if more := len(list) - most; more > 0 {
			out = append(out, vip.Problem{Code: CodeNotice, Message: fmt.Sprintf("and %d more of pool %q", more, p.Name)})
		}
	}
	return out
}
