package spec

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// ranges reads the prefixes and single addresses of a list, and returns them sorted and without
// duplicates. They must be of the VIP's families if these are stated.
func (b *builder) ranges(list string, in []string) []netip.Prefix {
	if len(in) > MaxRanges {
		b.bad(list, "join ranges", "%d ranges are more than %d", len(in), MaxRanges)
		return nil
	}
	var out []netip.Prefix
	for i, text := range in {
		field := strict.Index(list, i)
		p, err := ParseRange(text)
		if err != nil {
			problem := err.(vip.Problem)
			b.bad(field, problem.Hint, "%s", problem.Message)
			continue
		}
		if f := vip.FamilyOf(p.Addr()); len(b.families) > 0 && !slices.Contains(b.families, f) {
			b.bad(field, "remove it, or add the family to the service", "%s is %s and the service's VIP is %s", p, f, familyNames(b.families))
			continue
		}
		out = append(out, p)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// ParseRange reads a range of addresses, or a single address. The error is a vip.Problem without a
// field.
func ParseRange(text string) (netip.Prefix, error) {
	p, err := strict.ParsePrefix(text)
	if a, notAddr := netip.ParseAddr(text); notAddr == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	} else if problem, ok := err.(vip.Problem); ok && !p.IsValid() {
		problem.Hint += ", or as an address"
		return p, problem
	}
	if !p.Addr().Is4In6() {
		return p, err
	}
	hint := "write it in IPv4 form"
	if p.Bits() >= 96 {
		hint = fmt.Sprintf("write it as %s", netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96))
	}
	return p, vip.Problem{Code: vip.CodeInvalid, Message: text + " is an IPv4 range in IPv6 form", Hint: hint}
}
