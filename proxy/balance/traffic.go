package balance

import (
	"net/netip"
	"sync/atomic"

	"github.com/ironvip/ironvip/plane/reconcile"
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

// Tallies are the two tallies of a connection: its frontend's, which remains when the endpoint is
// removed, and its endpoint's.
type Tallies [2]*tally

// Tallies returns those of connections to e.
func (f *Frontend) Tallies(e *Endpoint) Tallies { return Tallies{&f.tally, &e.tally} }

// Connected counts a connection in its Tallies.
func (f *Frontend) Connected(t Tallies) {
	if t[0].connections.Add(1) == 1 {
		f.balancer.busy.Store(f, nil)
	}
	t[1].connections.Add(1)
}

// In counts bytes from the client.
func (t Tallies) In(bytes int) { t[0].in.Add(uint64(bytes)); t[1].in.Add(uint64(bytes)) }

// Out counts bytes to the client.
func (t Tallies) Out(bytes int) { t[0].out.Add(uint64(bytes)); t[1].out.Add(uint64(bytes)) }

// Traffic returns what the frontend has carried, also with backends that were removed.
func (f *Frontend) Traffic() reconcile.Traffic {
	var open int64
	for _, e := range f.Endpoints() {
		open += e.State.Open.Load()
	}
	return f.tally.traffic(open)
}

// Breakdown returns the traffic by backend.
func (f *Frontend) Breakdown() reconcile.Breakdown {
	out := reconcile.Breakdown{Traffic: f.Traffic(), Endpoints: map[netip.AddrPort]reconcile.Traffic{}}
	b := f.backends.Load()
	for i := range b.spec.Backends {
		out.Endpoints[b.spec.Backends[i].Addr] = reconcile.Traffic{}
	}
	for _, e := range b.all {
		out.Endpoints[e.Addr] = e.tally.traffic(e.State.Open.Load())
	}
	return out
}
