package pool

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/ipam"
)

// HeldOut returns what is held out of the pool's ranges, without what the configuration excludes: at most
// the given number of parts, with IPv4 first. An address has one part, with the reason for which a request
// of it is refused.
func (p *Pool) HeldOut(most int) (out []ipam.HeldOut) {
	hosts := slices.SortedFunc(maps.Keys(p.guard.hosts), netip.Addr.Compare)
	hosts = slices.DeleteFunc(hosts, func(a netip.Addr) bool { return !p.Owns(a) })
	for _, a := range hosts[:min(len(hosts), most)] {
		use := p.guard.hosts[a]
		out = append(out, ipam.HeldOut{Prefix: netip.PrefixFrom(a, a.BitLen()), Reason: use.reason, Detail: use.what})
	}
	var wide netip.Prefix // the last range that is in no other one: wider ranges come first
	for i := range p.guard.used {
		r := &p.guard.used[i]
		if len(out) >= most {
			break
		}
		if wide.IsValid() && wide.Overlaps(r.prefix) {
			continue
		}
		wide = r.prefix
		for _, part := range p.rest(r.prefix, hosts) {
			out = append(out, ipam.HeldOut{Prefix: part, Reason: ipam.Overlap, Detail: r.what()})
		}
	}
	slices.SortFunc(out, func(a, b ipam.HeldOut) int {
		return cmp.Or(cmp.Compare(a.Prefix.Addr().BitLen(), b.Prefix.Addr().BitLen()), a.Prefix.Compare(b.Prefix))
	})
	return out[:min(len(out), most)]
}

// rest returns what a range has in common with the pool, without what is excluded and without hosts.
func (p *Pool) rest(r netip.Prefix, hosts []netip.Addr) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, c := range p.CIDRs {
		if c.Overlaps(r) && c.Bits() < r.Bits() { // one prefix contains the other
			b.AddPrefix(r)
		} else if c.Overlaps(r) {
			b.AddPrefix(c)
		}
	}
	for _, e := range p.Exclude {
		b.RemovePrefix(e)
	}
	for _, a := range hosts {
		b.Remove(a)
	}
	set, _ := b.IPSet() // fails on invalid input only, which Check refuses
	return set.Prefixes()
}
