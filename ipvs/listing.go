package ipvs

import (
	"context"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// ListConnections implements reconcile.ConnectionLister. It costs one read of the kernel's list,
// which has the connections of all services, for one caller at a time. See kernel.EachConn.
func (t *Target) ListConnections(ctx context.Context, want func(vip.FrontendKey) bool, yield func(reconcile.Connection) bool) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case t.listing <- struct{}{}:
	}
	defer func() { <-t.listing }()
	return t.list(ctx, func(e *kernel.Entry) bool {
		key := vip.FrontendKey{Addr: e.To.Addr(), Port: e.To.Port(), Protocol: e.Protocol}
		if e.Mark != 0 {
			var ours bool
			if key, ours = t.marks.frontend(e.Mark, vip.FamilyOf(e.Client.Addr())); !ours {
				return true
			}
		}
		if !want(key) {
			return true
		}
		c := reconcile.Connection{Frontend: key, Client: e.Client, Backend: e.Backend, State: e.State, Expires: e.Expires}
		if e.Client.Port() == 0 {
			c.State = reconcile.StateAffinity
		}
		return yield(c)
	})
}
