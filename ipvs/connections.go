package ipvs

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/ironvip/ironvip/ipvs/internal/conntrack"
	"github.com/ironvip/ironvip/ipvs/internal/filter"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/vip"
)

// quiet is how long a backend must carry no packet before its connections that
// the kernel calls inactive stop to count. The kernel's counters lag by 2 s.
const quiet = 5 * time.Second

// idleWatch tells how many connections endpoints still have. It has a socket
// of its own, so that it can be asked while the dataplane is programmed.
type idleWatch struct {
	now func() time.Time

	mu     sync.Mutex
	kernel *kernel.Conn
	seen   map[conntrack.Flow]sample
}

// sample is when an endpoint's packet count last moved.
type sample struct {
	packets   uint64
	moved     time.Time
	refreshed time.Time
}

func newIdleWatch(k *kernel.Conn) *idleWatch {
	return &idleWatch{kernel: k, now: time.Now, seen: map[conntrack.Flow]sample{}}
}

func (w *idleWatch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kernel.Close()
}

// Connections implements reconcile.Connections, by one dump of the frontend's
// destinations.
//
// A TCP connection that is established counts. What the kernel calls inactive
// is anything else: half-closed connections that may still stream, and those
// that only wait for their timers, up to 2 minutes. They can't be told apart
// one by one, so they count while the endpoint carries packets, and until it
// has carried none for 5 s. Where the kernel's counters stand still, nothing
// says whether it does, and all count. UDP has inactive connections only:
// clients that were heard of within the UDP timeout.
func (t *Target) Connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	w := t.idle
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[netip.AddrPort]int{}
	now := w.now()
	mark := t.marks.get(key)
	if filter.ByMark(key) && mark == 0 {
		return out, nil // there is no such service
	}
	all := key.Protocol == vip.UDP || t.sysctl.Check(countersStill).OK
	err := kernel.Destinations(ctx, w.kernel, key, mark, kernel.DecodeDestStatus, func(d kernel.DestStatus) {
		n := int(d.Active)
		if d.Inactive > 0 && (all || w.busy(conntrack.Flow{Frontend: key, Backend: d.Addr}, d.Traffic.In.Packets+d.Traffic.Out.Packets, now)) {
			n += int(d.Inactive)
		}
		if n > 0 {
			out[d.Addr] = n
		}
	})
	if err != nil {
		return nil, err
	}
	w.forget(now)
	return out, nil
}

// busy reports whether an endpoint's packet count moved lately; one that is
// seen for the first time counts as moving.
func (w *idleWatch) busy(k conntrack.Flow, packets uint64, now time.Time) bool {
	s, known := w.seen[k]
	if !known || s.packets != packets {
		s = sample{packets: packets, moved: now}
	}
	s.refreshed = now
	w.seen[k] = s
	return now.Sub(s.moved) < quiet
}

// forget drops endpoints that nobody has asked about for a minute. It looks at
// all of them when they have become many.
func (w *idleWatch) forget(now time.Time) {
	if len(w.seen) < 1024 {
		return
	}
	for k, s := range w.seen {
		if now.Sub(s.refreshed) > time.Minute {
			delete(w.seen, k)
		}
	}
}
