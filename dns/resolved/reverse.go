package resolved

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ReverseZones returns the domains that contain the reverse names of the addresses in pools, and no
// others. A pool that begins or ends within a byte of its addresses (a nibble in IPv6) has several:
// at most 128, or 8 in IPv6.
func ReverseZones(pools []netip.Prefix) []string {
	var out []string
	for _, p := range pools {
		p = p.Masked()
		step, suffix := 8, "in-addr.arpa"
		if p.Addr().Is6() {
			step, suffix = 4, "ip6.arpa"
		}
		labels := (p.Bits() + step - 1) / step
		if labels == 0 {
			out = append(out, suffix)
			continue
		}
		first := digits(p.Addr())[:labels]
		for i := range 1 << (labels*step - p.Bits()) {
			var b strings.Builder
			b.WriteString(format(first[labels-1]+i, step))
			for _, d := range slices.Backward(first[:labels-1]) {
				b.WriteString("." + format(d, step))
			}
			out = append(out, b.String()+"."+suffix)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// digits returns the labels of an address's reverse name, the most significant one first.
func digits(a netip.Addr) (out []int) {
	for _, b := range a.AsSlice() {
		if a.Is4() {
			out = append(out, int(b))
		} else {
			out = append(out, int(b>>4), int(b&15))
		}
	}
	return out
}

func format(digit, step int) string {
	if step == 8 {
		return strconv.Itoa(digit)
	}
	return strconv.FormatInt(int64(digit), 16)
}
