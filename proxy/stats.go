package proxy

import (
	"context"
	"net/netip"
	"sync/atomic"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// tally counts what a frontend or an endpoint has carried since it was created.
type tally struct {
	connections, in, out atomic.Uint64 // bytes: in is from clients
}

func (t *tally) traffic(open int64) reconcile.Traffic {
	return reconcile.Traffic{
		Connections: t.connections.Load(),
		Active:      uint64(max(open, 0)),
		In:          reconcile.Volume{Bytes: t.in.Load()},
		Out:         reconcile.Volume{Bytes: t.out.Load()},
	}
}

// tallies are the two tallies of a connection: its frontend's, which remains when the endpoint is
// removed, and its endpoint's.
type tallies [2]*tally

func (f *frontend) tallies(e *endpoint) tallies { return tallies{&f.tally, &e.tally} }

// connected counts a connection.
func (f *frontend) connected(t tallies) {
	if t[0].connections.Add(1) == 1 {
		f.target.busy.Store(f, nil)
	}
	t[1].connections.Add(1)
}

func (t tallies) in(bytes int)  { t[0].in.Add(uint64(bytes)); t[1].in.Add(uint64(bytes)) }
func (t tallies) out(bytes int) { t[0].out.Add(uint64(bytes)); t[1].out.Add(uint64(bytes)) }

// Counted implements reconcile.Statistics. The proxy counts no packets, which only the kernel sees,
// and no rates. It has no inactive connections.
func (t *Target) Counted() reconcile.Counted { return reconcile.Counted{} }

// Totals implements reconcile.Statistics. It costs O(frontends that have had a connection, and their endpoints).
func (t *Target) Totals(ctx context.Context, want func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make(map[vip.FrontendKey]reconcile.Traffic)
	t.busy.Range(func(busy, _ any) bool {
		if f := busy.(*frontend); t.frontends[f.key] == f && want(f.key) {
			out[f.key] = f.traffic()
		}
		return true
	})
	return out, nil
}

// Breakdown implements reconcile.Statistics.
func (t *Target) Breakdown(_ context.Context, key vip.FrontendKey) (reconcile.Breakdown, bool, error) {
	f := t.frontend(key)
	if f == nil {
		return reconcile.Breakdown{}, false, nil
	}
	out := reconcile.Breakdown{Traffic: f.traffic(), Endpoints: map[netip.AddrPort]reconcile.Traffic{}}
	for _, e := range f.backends.Load().all {
		out.Endpoints[e.addr] = e.tally.traffic(e.state.Open.Load())
	}
	return out, true, nil
}

func (f *frontend) traffic() reconcile.Traffic {
	var open int64
	for _, e := range f.backends.Load().all {
		open += e.state.Open.Load()
	}
	return f.tally.traffic(open)
}
