package probepath

import (
	"context"

	"github.com/ironvip/ironvip/plane/kernel/drift"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Changed implements reconcile.Target.
func (t *Target) Changed() <-chan struct{} { return t.watch.Changed() }

// Check implements reconcile.Target. It sees that others have changed the table. Without it, only the resync does: then the
// probes of all paths fail meanwhile, and their backends are taken for unhealthy.
func (t *Target) Check(ctx context.Context) (reconcile.Drift[vip.ProbePath, vip.ProbePath], error) {
	found, err := drift.Check[vip.ProbePath, vip.ProbePath](ctx, &t.watch)
	found.Unknown = found.Unknown && len(t.record) > 0
	return found, err
}
