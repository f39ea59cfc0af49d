package ipvs

import (
	"context"

	"github.com/ironvip/ironvip/plane/kernel/drift"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Changed implements reconcile.Target.
func (t *Target) Changed() <-chan struct{} { return t.drift.Changed() }

// Check implements reconcile.Target. It sees that others have changed the table or forwarding. The kernel has no
// events of IPVS.
func (t *Target) Check(ctx context.Context) (reconcile.Drift[vip.FrontendKey, vip.Frontend], error) {
	return drift.Check[vip.FrontendKey, vip.Frontend](ctx, &t.drift)
}
