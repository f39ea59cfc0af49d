package nftwire

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func TestRangesAreReadBackAsWritten(t *testing.T) {
	cases := [][]string{
		{},
		{"10.0.0.0/8"},
		{"10.0.0.0/9", "10.128.0.0/9", "10.5.0.0/16"},
		{"10.0.0.0/24", "10.0.2.0/24", "fd00::/8", "fe00::/8"},
		{"0.0.0.0/0", "::/0"},
		{"255.255.255.0/24", "ffff::/16"},
		{"10.1.2.3/8"},
	}
	for _, c := range cases {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			var in []netip.Prefix
			for _, s := range c {
				in = append(in, netip.MustParsePrefix(s))
			}
			var all, b netipx.IPSetBuilder
			for _, p := range in {
				all.AddPrefix(p.Masked())
			}
			want := must.Get(all.IPSet())(t)
			for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
				elems := RangeElements(want, f)
				slices.Reverse(elems)
				var edges []Edge
				for _, x := range elems {
					at, ok := x.AsEdge()
					must.True(t, ok, "%x is no address", x.Key)
					edges = append(edges, at)
				}
				AddRanges(&b, edges)
			}
			got, err := b.IPSet()
			if err != nil || !got.Equal(want) {
				t.Errorf("%v is read as %v, %v", want.Ranges(), got.Ranges(), err)
			}
			for _, p := range in {
				if !got.ContainsPrefix(p.Masked()) {
					t.Errorf("%s is not in %v", p, got.Ranges())
				}
			}
		})
	}
}
