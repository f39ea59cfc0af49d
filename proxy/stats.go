package proxy

import (
	"context"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/vip"
)

// Counted implements reconcile.Statistics. The proxy counts no packets, which only the kernel sees,
// and no rates. It has no inactive connections.
func (t *Target) Counted() reconcile.Counted { return reconcile.Counted{Audiences: true} }

// Totals implements reconcile.Statistics. It has the frontends that have had a connection. It costs O(these, and their endpoints).
func (t *Target) Totals(ctx context.Context, want func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make(map[vip.FrontendKey]reconcile.Traffic)
	t.balance.Busy(func(b *balance.Frontend) {
		if f := t.frontends[b.Key]; f != nil && f.Frontend == b && want(b.Key) {
			out[b.Key] = b.Traffic()
		}
	})
	return out, nil
}

// Breakdown implements reconcile.Statistics.
func (t *Target) Breakdown(_ context.Context, key vip.FrontendKey) (reconcile.Breakdown, bool, error) {
	f := t.frontend(key)
	if f == nil {
		return reconcile.Breakdown{}, false, nil
	}
	return f.Breakdown(), true, nil
}
