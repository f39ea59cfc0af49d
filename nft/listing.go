package nft

import (
	"context"

	"github.com/ironvip/ironvip/internal/kernelplane/conntrack"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// ListConnections implements reconcile.ConnectionLister. It costs one dump of connection tracking for each family and
// protocol, which the kernel filters by protocol. Keys have the single port that the client asked for, and no audience.
// It doesn't list the clients that affinity remembers.
func (t *Target) ListConnections(ctx context.Context, want func(vip.FrontendKey) bool, yield func(reconcile.Connection) bool) error {
	for _, p := range conntrack.Protocols {
		for _, f := range families {
			more := true
			err := t.flows.Each(ctx, f, conntrack.Flow{Frontend: vip.FrontendKey{Protocol: p}}, func(e *conntrack.Entry) bool {
				if e.Forwarded() && want(e.Frontend) {
					more = yield(reconcile.Connection{Frontend: e.Frontend, Client: e.Client, Backend: e.Backend, State: e.StateName(), Expires: e.Expires})
				}
				return more
			})
			if err != nil || !more {
				return err
			}
		}
	}
	return nil
}
