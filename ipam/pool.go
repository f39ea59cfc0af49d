package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/vip"
)

// pool is a Pool prepared for allocation.
type pool struct {
	Pool
	ranges map[vip.Family]*ranges
}

// ranges are a pool's addresses of one family.
type ranges struct {
	v4     bool
	usable spans // what the configuration allows
	// static and dynamic are the usable addresses less what is held out: the band reserved for
	// requests, and the rest, from which automatic allocation takes first.
	static, dynamic spans
	heldOut         uint64
	cursor          number // where automatic allocation continues
}

// newPool prepares p and holds out what g says. The band is a part of what the configuration allows,
// so that it doesn't move when the host gets an address.
func newPool(p Pool, g *guard) *pool {
	out := &pool{Pool: p, ranges: make(map[vip.Family]*ranges)}
	size := make(map[vip.Family]uint64)
	for _, c := range p.CIDRs {
		f := vip.FamilyOf(c.Addr())
		r := out.ranges[f]
		if r == nil {
			r = &ranges{v4: f == vip.IPv4}
			out.ranges[f] = r
		}
		size[f] = addSaturating(size[f], spanOf(netipx.RangeOfPrefix(c)).size())
		var b netipx.IPSetBuilder
		b.AddPrefix(c)
		for _, a := range ends(c) {
			b.Remove(a)
		}
		for _, e := range p.Exclude {
			b.RemovePrefix(e)
		}
		set, _ := b.IPSet() // fails on invalid input only, which CheckPools refused
		for _, part := range set.Ranges() {
			r.usable = append(r.usable, spanOf(part))
		}
	}
	for f, r := range out.ranges {
		static, dynamic := r.usable.split(addressBand(size[f]))
		r.static, r.dynamic = static.without(g.set, r.v4), dynamic.without(g.set, r.v4)
		r.heldOut = r.usable.size() - addSaturating(r.static.size(), r.dynamic.size())
	}
	return out
}

// covers reports whether a is in one of the pool's ranges.
func (p *pool) covers(a netip.Addr) bool {
	return slices.ContainsFunc(p.CIDRs, func(c netip.Prefix) bool { return c.Contains(a) })
}

// families returns the families of the pool's ranges, IPv4 first.
func (p *pool) families() []vip.Family {
	var out []vip.Family
	for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
		if p.ranges[f] != nil {
			out = append(out, f)
		}
	}
	return out
}

// allows reports whether a may be allocated, whether or not it is leased.
func (p *pool) allows(a netip.Addr) bool {
	r := p.ranges[vip.FamilyOf(a)]
	return r != nil && (r.dynamic.contains(numberOf(a)) || r.static.contains(numberOf(a)))
}

// refusal says why a may not be allocated.
func (p *pool) refusal(a netip.Addr, g *guard) vip.Problem {
	outside := func(hint, format string, args ...any) vip.Problem {
		return vip.Problem{Code: vip.CodeOutsidePool, Hint: hint, Message: fmt.Sprintf(format, args...)}
	}
	for _, e := range p.Exclude {
		if e.Contains(a) {
			return outside("request another address, or change the pool", "%s is excluded from pool %q by %s", a, p.Name, e)
		}
	}
	for _, c := range p.CIDRs {
		if slices.Contains(ends(c), a) {
			return outside("request another address", "%s is the network or broadcast address of %s in pool %q", a, c, p.Name)
		}
	}
	if !p.covers(a) {
		return outside("request an address of the pool, or add its range to the pool", "%s is outside of pool %q", a, p.Name)
	}
	code, why := g.why(a)
	return vip.Problem{Code: code, Message: fmt.Sprintf("%s is held out of pool %q: %s", a, p.Name, why), Hint: "request another address"}
}

// most bounds how many alarms of one kind a pool shows.
const most = 10

// alarms returns what a pool has in common with what it must keep clear of. lease returns the lease of
// an address. It costs O(ranges and routes).
func (g *guard) alarms(p *pool, lease func(netip.Addr) (Lease, bool)) []vip.Problem {
	var out, own, routes []vip.Problem
	for _, c := range p.CIDRs {
		for _, r := range g.used {
			if c.Overlaps(r.prefix) {
				out = append(out, vip.Problem{
					Code:    vip.CodeOverlap,
					Message: fmt.Sprintf("pool %q %s overlaps range %s, which %s says is in use: nothing more is allocated there, held addresses are kept", p.Name, c, r.prefix, r.from),
					Hint:    "take that range out of the pool, and move the services that hold addresses of it",
				})
			}
		}
		for _, r := range g.host.Routes {
			if r.Link != "lo" && c.Overlaps(r.Prefix) && c.Bits() <= r.Prefix.Bits() {
				routes = append(routes, vip.Problem{
					Code:    CodeNotice,
					Message: fmt.Sprintf("pool %q %s covers the whole route %s of %s, so others there may have the same addresses", p.Name, c, r.Prefix, r.Link),
					Hint:    fmt.Sprintf("exclude %s from the pool unless its addresses are yours to allocate", r.Prefix),
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
			out = append(out, vip.Problem{Code: CodeNotice, Message: fmt.Sprintf("and %d more of pool %q", more, p.Name)})
		}
	}
	return out
}

// addressBand returns how many of a range's lowest addresses are reserved for requests:
// min(max(16, size/16), 256), and none in a range of 16 or fewer (KEP-3070). size includes the
// network and broadcast addresses.
func addressBand(size uint64) uint64 { return band(size, 16, 256) }

// nodePortBand is the same for node ports: min(max(16, size/32), 128) (KEP-3668), so 86 of the 2768
// ports from 30000 to 32767.
func nodePortBand(size uint64) uint64 { return band(size, 32, 128) }

func band(size, share, most uint64) uint64 {
	if size <= 16 {
		return 0
	}
	return min(max(16, size/share), most)
}
