package cleanup

import (
	"context"

	"go4.org/netipx"

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
	served := usage.NewRecords(&netipx.IPSet{})
	for _, k := range frontends {
		k.Audience = vip.Everyone
		served.Set(k, &vip.Frontend{Key: k})
	}
	err := table.Sweep(ctx, 0, conntrack.Flow{}, func(e *conntrack.Entry) bool {
		f := served.At(e.Frontend) // which has no audience
		return f != nil && end(f.Key, e)
	})
	if conntrack.IsMissing(err) {
		return nil
	}
	return err
}
