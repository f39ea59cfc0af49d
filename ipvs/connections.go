package ipvs

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// quiet is how long a backend must receive no packets before its inactive connections
// don't count any more. The kernel's counters lag by 2 s.
const quiet = 5 * time.Second

// idleTracker counts the connections that endpoints still have. It has its own socket,
// so it can be used during Apply.
type idleTracker struct {
	now func() time.Time

	mu     sync.Mutex
	kernel *kernel.Conn
	seen   map[conntrack.Flow]sample
}

// sample is when an endpoint's packet count last changed.
type sample struct {
	packets   uint64
	moved     time.Time
	refreshed time.Time
}

func newIdleTracker(k *kernel.Conn) *idleTracker {
	return &idleTracker{kernel: k, now: time.Now, seen: map[conntrack.Flow]sample{}}
}

func (w *idleTracker) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kernel.Close()
}

// Connections implements reconcile.Connections. It costs one dump of the frontend's
// destinations.
//
// Established TCP connections count. The kernel calls all others inactive: half-closed
// ones that may still transfer data, and those that only wait for their timers, up to
// 2 minutes. Single ones can't be told apart, so they count until the endpoint has
// received no packet for 5 s. If the kernel's counters are off, all count. UDP has
// only inactive connections: clients that sent something within the UDP timeout.
func (t *Target) Connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	w := t.idleTracker
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[netip.AddrPort]int{}
	now := w.now()
	mark := t.marks.get(key)
	if w.kernel == nil || filter.ByMark(key) && mark == 0 {
		return out, nil // no service
	}
	all := key.Protocol == vip.UDP || t.sysctl.Check(estimationOff).OK
	dests, err := w.kernel.Destinations(ctx, key, mark)
	if err != nil {
		return nil, err
	}
	for _, d := range dests {
		n := int(d.Active)
		if d.Inactive > 0 && (all || w.busy(conntrack.Flow{Frontend: key, Backend: d.Addr}, d.Traffic.In.Packets+d.Traffic.Out.Packets, now)) {
			n += int(d.Inactive)
		}
		if n > 0 {
			out[d.Addr] = n
		}
	}
	w.forget(now)
	return out, nil
}

// busy reports whether an endpoint's packet count changed recently. It returns true for
// a new endpoint.
func (w *idleTracker) busy(k conntrack.Flow, packets uint64, now time.Time) bool {
	s, known := w.seen[k]
	if !known || s.packets != packets {
		s = sample{packets: packets, moved: now}
	}
	s.refreshed = now
	w.seen[k] = s
	return now.Sub(s.moved) < quiet
}

// forget removes endpoints without a request in the last minute, if there are many.
func (w *idleTracker) forget(now time.Time) {
	if len(w.seen) < 1024 {
		return
	}
	for k, s := range w.seen {
		if now.Sub(s.refreshed) > time.Minute {
			delete(w.seen, k)
		}
	}
}

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
