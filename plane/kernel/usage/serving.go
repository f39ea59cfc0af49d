package usage

import "github.com/ironvip/ironvip/vip"

// Serving returns a function that finds which of the frontends has an address, protocol and port. The audience doesn't
// count: the function returns the key for everyone.
func Serving(frontends []vip.FrontendKey) func(vip.FrontendKey) (vip.FrontendKey, bool) {
	single := map[vip.FrontendKey]bool{}
	ranges := map[PortSpace][]vip.FrontendKey{}
	space := func(k vip.FrontendKey) PortSpace { return PortSpaceOf(&vip.Frontend{Key: k}) }
	for _, k := range frontends {
		if k.Audience = vip.Everyone; k.Ranged() {
			ranges[space(k)] = append(ranges[space(k)], k)
		} else {
			single[k] = true
		}
	}
	return func(k vip.FrontendKey) (vip.FrontendKey, bool) {
		if k.Audience = vip.Everyone; single[k] {
			return k, true
		}
		for _, r := range ranges[space(k)] {
			if r.Port <= k.Port && k.Port <= r.LastPort {
				return r, true
			}
		}
		return vip.FrontendKey{}, false
	}
}
