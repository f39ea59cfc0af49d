package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// statsReader reads statistics of IPVS. It has its own socket and table, so a long read
// delays neither changes nor drains.
type statsReader struct {
	stats *counters

	mu     sync.Mutex // one read at a time
	kernel *kernel.Conn
	conns  connectionTable
}

func (m *statsReader) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kernel.Close()
}

// sumOf returns the connections of all destinations.
func sumOf(dests []kernel.DestStatus) (sum kernel.Live) {
	for _, d := range dests {
		sum.Active, sum.Inactive = sum.Active+uint64(d.Active), sum.Inactive+uint64(d.Inactive)
	}
	return sum
}

// frontendOf returns the frontend of a service. It returns false for a mark without a
// frontend. A service without a mark may still be foreign.
func (t *Target) frontendOf(s *kernel.Service) (vip.FrontendKey, bool) {
	if s.Mark == 0 {
		return s.Key, true
	}
	return t.marks.frontend(s.Mark, vip.FamilyOf(s.Key.Addr))
}

// Counted implements reconcile.Statistics: the kernel counts everything.
func (t *Target) Counted() reconcile.Counted {
	return reconcile.Counted{Packets: true, Inactive: true, Rates: true, Audiences: true}
}

// Totals implements reconcile.Statistics. It costs one dump of all services, one read of
// the /proc table, and one dump for each service that the table lacks: if other
// namespaces have services, the kernel skips some of this one at each page of the table.
// A service that is added or deleted meanwhile may be missing.
//
// The kernel updates its counters every 2 s, and never if
// net.ipv4.vs.run_estimation is 0. Numbers of connections are current.
func (t *Target) Totals(ctx context.Context, want func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	m := t.statsReader
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.tables.Add(1)
	connections, err := m.conns()
	if err != nil {
		return nil, err
	}
	out := map[vip.FrontendKey]reconcile.Traffic{}
	lacking := map[vip.FrontendKey]uint32{} // to marks
	err = m.kernel.Statistics(ctx, func(s kernel.Service, traffic reconcile.Traffic) {
		key, ok := t.frontendOf(&s)
		if !ok || !want(key) {
			return
		}
		now, listed := connections[kernel.IDOf(&s)]
		if !listed {
			lacking[key] = s.Mark
		}
		out[key] = trafficOf(now, key.Protocol, traffic)
	})
	if err != nil {
		return nil, fmt.Errorf("read the statistics of the ipvs services: %w", err)
	}
	for key, mark := range lacking {
		dests, err := m.kernel.Destinations(ctx, key, mark)
		if err != nil {
			return nil, err
		}
		out[key] = trafficOf(sumOf(dests), key.Protocol, out[key])
	}
	return out, nil
}

// Breakdown implements reconcile.Statistics. It costs one read of the service and one
// dump of its destinations.
func (t *Target) Breakdown(ctx context.Context, key vip.FrontendKey) (out reconcile.Breakdown, found bool, err error) {
	m, mark := t.statsReader, t.marks.get(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	out.Endpoints = map[netip.AddrPort]reconcile.Traffic{}
	s, traffic, err := m.kernel.Service(ctx, key, mark)
	if s == nil || err != nil {
		return out, false, err
	}
	dests, err := m.kernel.Destinations(ctx, key, mark)
	if err != nil {
		return out, false, err
	}
	for _, d := range dests {
		out.Endpoints[d.Addr] = trafficOf(kernel.Live{Active: uint64(d.Active), Inactive: uint64(d.Inactive)}, key.Protocol, d.Traffic)
	}
	out.Traffic = trafficOf(sumOf(dests), key.Protocol, traffic)
	return out, true, nil
}

// trafficOf returns t with these connections. UDP has no state, so the kernel calls all
// its connections inactive: clients that sent something within the timeout.
func trafficOf(l kernel.Live, p vip.Protocol, t reconcile.Traffic) reconcile.Traffic {
	t.Active, t.Inactive = l.Active, l.Inactive
	if p == vip.UDP {
		t.Active, t.Inactive = l.Active+l.Inactive, 0
	}
	return t
}
