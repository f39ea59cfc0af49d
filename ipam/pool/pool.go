// Package pool prepares pools of addresses for allocation.
//
// Its inputs are pools as configured, and what they must keep clear of: ranges in use by pods, and
// the host's own addresses and gateways. Its outputs are the ranges that may be allocated, the
// reason why an address may not, and the problems of pools. The package knows no leases and does no
// I/O.
//
//   - check.go: Check, the problems of a configuration
//   - guard.go: Guard, what pools must keep clear of, and the alarms
//   - heldout.go: HeldOut, the parts of a pool that are not allocated, and why
//   - pool.go: Pool
package pool

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/vip"
)

// Pool is an ipam.Pool prepared for allocation.
type Pool struct {
	ipam.Pool
	Ranges map[vip.Family]*Ranges
	guard  *Guard
}

// Ranges are a pool's addresses of one family, or the node ports of one protocol.
type Ranges struct {
	v4     bool
	Usable numbers.Spans // what the configuration allows
	// Static and Dynamic are the usable addresses less what is held out of the pool: the band reserved for
	// requests, and the rest, from which automatic allocation takes first.
	Static, Dynamic numbers.Spans
	HeldOut         uint64
	Cursor          numbers.Number // where automatic allocation continues
}

// New prepares p and holds out what g says. The band is a part of what the configuration allows,
// so that it doesn't move when the host gets an address.
func New(p ipam.Pool, g *Guard) *Pool {
	out := &Pool{Pool: p, guard: g, Ranges: make(map[vip.Family]*Ranges)}
	size := make(map[vip.Family]uint64)
	for _, c := range p.CIDRs {
		f := vip.FamilyOf(c.Addr())
		r := out.Ranges[f]
		if r == nil {
			r = &Ranges{v4: f == vip.IPv4}
			out.Ranges[f] = r
		}
		size[f] = numbers.AddSaturating(size[f], numbers.SpanOf(netipx.RangeOfPrefix(c)).Size())
		var b netipx.IPSetBuilder
		b.AddPrefix(c)
		for _, e := range p.Exclude {
			b.RemovePrefix(e)
		}
		set, _ := b.IPSet() // fails on invalid input only, which Check refuses
		for _, part := range set.Ranges() {
			r.Usable = append(r.Usable, numbers.SpanOf(part))
		}
	}
	for f, r := range out.Ranges {
		static, dynamic := r.Usable.Split(addressBand(size[f]))
		r.Static, r.Dynamic = static.Without(g.set, r.v4), dynamic.Without(g.set, r.v4)
		r.HeldOut = r.Usable.Size() - numbers.AddSaturating(r.Static.Size(), r.Dynamic.Size())
	}
	return out
}

// NodePorts returns the ranges of the node ports from first to last.
func NodePorts(first, last uint16) *Ranges {
	all := numbers.Spans{{First: numbers.OfPort(first), Last: numbers.OfPort(last)}}
	r := &Ranges{Usable: all}
	r.Static, r.Dynamic = all.Split(nodePortBand(all.Size()))
	return r
}

// Addr returns the address of a number in the ranges.
func (r *Ranges) Addr(k numbers.Number) netip.Addr { return k.Addr(r.v4) }

// Free returns how many addresses may be allocated and are not in the set of used ones.
func (r *Ranges) Free(used *numbers.Set) (n uint64) {
	for _, part := range []numbers.Spans{r.Static, r.Dynamic} {
		for _, run := range part {
			n = numbers.AddSaturating(n, run.Size()-used.Count(run))
		}
	}
	return n
}

// Covers reports whether a is in one of the pool's ranges.
func (p *Pool) Covers(a netip.Addr) bool {
	return slices.ContainsFunc(p.CIDRs, func(c netip.Prefix) bool { return c.Contains(a) })
}

// Owns reports whether a is in one of the pool's ranges and not excluded.
func (p *Pool) Owns(a netip.Addr) bool {
	return p.Covers(a) && !slices.ContainsFunc(p.Exclude, func(e netip.Prefix) bool { return e.Contains(a) })
}

// Families returns the families of the pool's ranges, IPv4 first.
func (p *Pool) Families() []vip.Family {
	var out []vip.Family
	for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
		if p.Ranges[f] != nil {
			out = append(out, f)
		}
	}
	return out
}

// Allows reports whether a may be allocated, whether or not it is leased.
func (p *Pool) Allows(a netip.Addr) bool {
	r := p.Ranges[vip.FamilyOf(a)]
	return r != nil && (r.Dynamic.Contains(numbers.Of(a)) || r.Static.Contains(numbers.Of(a)))
}

// Refusal says why a may not be allocated.
func (p *Pool) Refusal(a netip.Addr) vip.Problem {
	outside := func(hint, format string, args ...any) vip.Problem {
		return vip.Problem{Code: vip.CodeOutsidePool, Hint: hint, Message: fmt.Sprintf(format, args...)}
	}
	for _, e := range p.Exclude {
		if e.Contains(a) {
			return outside("request another address, or change the pool", "%s is excluded from pool %q by %s", a, p.Name, e)
		}
	}
	if !p.Covers(a) {
		return outside("request an address of the pool, or add its range to the pool", "%s is outside of pool %q", a, p.Name)
	}
	code, why := p.guard.why(a)
	return vip.Problem{Code: code, Message: fmt.Sprintf("%s is held out of pool %q: %s", a, p.Name, why), Hint: "request another address"}
}

// addressBand returns how many of a range's lowest addresses are reserved for requests:
// min(max(16, size/16), 256), and none in a range of 16 or fewer (KEP-3070).
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
