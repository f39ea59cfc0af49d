package cleanup

import (
	"context"

	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// Sweep calls end for each connection tracking entry of the frontends, with the key of the frontend for everyone at its
// place, and ends those for which it returns true. It costs one dump. A kernel that can't list entries has none.
func Sweep(ctx context.Context, table Table, frontends []vip.FrontendKey, end func(vip.FrontendKey, *conntrack.Entry) bool) error {
	if len(frontends) == 0 {
		return nil
	}
	served := serving(frontends)
	err := table.Sweep(ctx, 0, conntrack.Flow{}, func(e *conntrack.Entry) bool {
		at, ours := served(e.Frontend)
		return ours && end(at, e)
	})
	if conntrack.IsMissing(err) {
		return nil
	}
	return err
}

// serving returns a function that finds which of the frontends has an address, protocol and port. The audience doesn't
// count: the function returns the key for everyone.
func serving(frontends []vip.FrontendKey) func(vip.FrontendKey) (vip.FrontendKey, bool) {
	single := map[vip.FrontendKey]bool{}
	ranges := map[usage.PortSpace][]vip.FrontendKey{}
	space := func(k vip.FrontendKey) usage.PortSpace { return usage.PortSpaceOf(&vip.Frontend{Key: k}) }
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
