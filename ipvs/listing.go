package ipvs

import (
	"context"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// lister reads the kernel's list of connections, for one caller at a time. It has its own
// file, so a long list delays nothing else.
type lister struct {
	list connectionList
	busy chan struct{} // has an element while list is in use
}

func newLister(l connectionList) *lister { return &lister{list: l, busy: make(chan struct{}, 1)} }

func (l *lister) close() {
	l.busy <- struct{}{}
	l.list.Close()
	<-l.busy
}

// ListConnections implements reconcile.ConnectionLister. It costs one read of the kernel's list,
// which has the connections of all services. See kernel.Conns.
func (t *Target) ListConnections(ctx context.Context, want func(vip.FrontendKey) bool, yield func(reconcile.Connection) bool) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case t.lister.busy <- struct{}{}:
	}
	defer func() { <-t.lister.busy }()
	return t.lister.list.Each(ctx, func(e *kernel.Entry) bool {
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
