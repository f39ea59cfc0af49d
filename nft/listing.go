package nft

import (
	"context"
	"slices"

	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// ListConnections implements reconcile.ConnectionLister. It costs one dump of connection tracking. Keys have the single port
// that the client asked for, and no audience. It doesn't list the clients that affinity remembers.
func (t *Target) ListConnections(ctx context.Context, want func(vip.FrontendKey) bool, yield func(reconcile.Connection) bool) error {
	return t.flows.Each(ctx, 0, conntrack.Flow{}, func(e *conntrack.Entry) bool {
		return !slices.Contains(conntrack.Protocols, e.Frontend.Protocol) || !e.Forwarded() || !want(e.Frontend) ||
			yield(reconcile.Connection{Frontend: e.Frontend, Client: e.Client, Backend: e.Backend, State: e.StateName(), Expires: e.Expires})
	})
}
