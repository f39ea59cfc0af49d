package nftwire

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/vip"
)

// RangeElements encodes the ranges of one family for an interval set: the first
// address of each range, and the first address after it unless the range ends
// with the last address of the family.
func RangeElements(ranges *netipx.IPSet, f vip.Family) []Element {
	var all []Element
	for _, r := range ranges.Ranges() {
		if vip.FamilyOf(r.From()) != f {
			continue
		}
		all = append(all, Element{Key: r.From().AsSlice()})
		if end := r.To().Next(); end.IsValid() {
			all = append(all, Element{Key: end.AsSlice(), edge: true})
		}
	}
	return all
}

// Edge is the first address of a range, or the first address after one.
type Edge struct {
	at  netip.Addr
	end bool
}

// AsEdge reads one element that RangeElements encoded.
func (x *Element) AsEdge() (Edge, bool) {
	a, ok := netip.AddrFromSlice(x.Key)
	return Edge{a, x.edge}, ok
}

// AddRanges adds the ranges between edges to b. The order of edges doesn't matter.
func AddRanges(b *netipx.IPSetBuilder, edges []Edge) {
	slices.SortFunc(edges, func(a, b Edge) int { return a.at.Compare(b.at) })
	for i, e := range edges {
		if e.end {
			continue
		}
		last := lastAddr(e.at)
		if i+1 < len(edges) {
			last = edges[i+1].at.Prev()
		}
		b.AddRange(netipx.IPRangeFrom(e.at, last))
	}
}

func lastAddr(a netip.Addr) netip.Addr {
	return netipx.RangeOfPrefix(netip.PrefixFrom(a, 0).Masked()).To()
}
