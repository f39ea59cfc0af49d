package usage

import (
	"cmp"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/vip"
)

// Forward returns f's forwarding method in normal form.
func Forward(f *vip.Frontend) vip.Forward { return cmp.Or(f.Forward, vip.ForwardNAT) }

// OnDevice reports whether f's address is on our device.
func OnDevice(f *vip.Frontend) bool { return f.Kind != vip.OnHost }

// Masquerade returns f's mode in normal form. For a node port auto means always, as in
// kube-proxy for cluster policy, because its clients come from anywhere.
func Masquerade(f *vip.Frontend) vip.Masquerade {
	switch {
	case Forward(f) != vip.ForwardNAT, f.Kind == vip.OnRealServer:
		return vip.MasqueradeNever
	case f.Masquerade == vip.MasqueradeNever, f.Masquerade == vip.MasqueradeAlways, f.Masquerade == vip.MasqueradeOwn:
		return f.Masquerade
	case f.Kind == vip.OnHost:
		return vip.MasqueradeAlways
	}
	return vip.MasqueradeAuto
}

// NoClient stands for source ranges without a range of the frontend's family: no client
// may reach it.
var NoClient = []netip.Prefix{{}}

// Sources returns f's source ranges of its family in normal form: disjoint, sorted, and
// as few as possible. Restricted is false if every client may reach f.
func Sources(f *vip.Frontend) (ranges []netip.Prefix, restricted bool) {
	if len(f.SourceRanges) == 0 || f.Kind != vip.OnVIP {
		return nil, false
	}
	var own []netip.Prefix
	for _, p := range f.SourceRanges {
		if p.IsValid() && p.Addr().Is4() == f.Key.Addr.Is4() {
			own = append(own, p)
		}
	}
	ranges = PodSet(own).Prefixes()
	if len(ranges) == 1 && ranges[0].Bits() == 0 {
		return nil, false
	}
	return ranges, true
}

// SameSources reports whether a and b, of one key, allow the same clients.
func SameSources(a, b *vip.Frontend) bool {
	if a.Kind == b.Kind && slices.Equal(a.SourceRanges, b.SourceRanges) {
		return true
	}
	x, some := Sources(a)
	y, others := Sources(b)
	return some == others && slices.Equal(x, y)
}

// LocalTunnels returns the addresses of this host to which directors tunnel f's packets,
// sorted.
func LocalTunnels(f *vip.Frontend) []netip.Addr {
	if f == nil || f.Kind != vip.OnRealServer || Forward(f) != vip.ForwardTunnel {
		return nil
	}
	var all []netip.Addr
	for _, b := range f.Backends {
		all = append(all, b.Addr.Addr())
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// PodSet merges prefixes into disjoint ranges.
func PodSet(prefixes []netip.Prefix) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(p.Masked())
	}
	s, err := b.IPSet()
	if err != nil { // an invalid prefix, which the configuration rejects
		s = &netipx.IPSet{}
	}
	return s
}
