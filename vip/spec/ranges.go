package spec

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// sourceRanges reads prefixes and single addresses, and returns them sorted and without duplicates.
// families are those of the VIP if they are stated.
func (b *builder) sourceRanges(in []string, families []vip.Family) []netip.Prefix {
	if len(in) > MaxSourceRanges {
		b.bad("source_ranges", "join ranges, or filter in front of this host", "%d ranges are more than %d", len(in), MaxSourceRanges)
		return nil
	}
	var out []netip.Prefix
	for i, text := range in {
		field := strict.Index("source_ranges", i)
		p, ok := b.prefix(field, text)
		if !ok {
			continue
		}
		if f := vip.FamilyOf(p.Addr()); len(families) > 0 && !slices.Contains(families, f) {
			b.bad(field, "remove it, or add the family to the service", "%s is %s and the service's VIP is %s", p, f, familyNames(families))
			continue
		}
		out = append(out, p)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// prefix reads a range of addresses, or a single address.
func (b *builder) prefix(field, text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			b.bad(field, "write it as 192.0.2.0/24 or 2001:db8::/64, or as an address", "%s is not a range of addresses", strict.Quote(text))
			return p, false
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	one := netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
	switch {
	case p.Addr().Is4In6():
		hint := "write it in IPv4 form"
		if p.Bits() >= 96 {
			hint = fmt.Sprintf("write it as %s", netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96))
		}
		b.bad(field, hint, "%s is an IPv4 range in IPv6 form", text)
	case p.Masked() != p:
		b.bad(field, fmt.Sprintf("write %s, or %s for the one address", p.Masked(), one), "%s is not the first address of its range", p)
	default:
		return p, true
	}
	return p, false
}
