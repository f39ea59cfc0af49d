package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
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
	m.conns.Close()
}

// all calls each for every service that want selects, with its statistics and the
// connections of its destinations. It costs one dump, one read of the /proc table, and
// one dump for each service that the table lacks: if other namespaces have services,
// the kernel skips some of this one at each page of the table. A service that is added
// or deleted meanwhile may be missing.
func (m *statsReader) all(ctx context.Context, want func(*kernel.Service) bool, each func(*kernel.Service, reconcile.Traffic, kernel.Live)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.tables.Add(1)
	connections, err := m.conns.Read()
	if err != nil {
		return err
	}
	type counted struct {
		service kernel.Service
		traffic reconcile.Traffic
	}
	var lacking []counted
	err = m.kernel.Query(ctx, func(b []byte) []byte {
		return kernel.AppendCommand(b, m.kernel.Family, kernel.CmdGetService, unix.NLM_F_DUMP)
	}, func(_ uint16, data []byte) error {
		s, t, err := kernel.DecodeServiceStats(data)
		if err != nil || !want(&s) {
			return err
		}
		if now, ok := connections[kernel.IDOf(&s)]; ok {
			each(&s, t, now)
		} else {
			lacking = append(lacking, counted{s, t})
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the statistics of the ipvs services: %w", err)
	}
	for i := range lacking {
		s, now := &lacking[i].service, kernel.Live{}
		if err := kernel.Destinations(ctx, m.kernel, s.Key, s.Mark, kernel.DecodeDestStatus, func(d kernel.DestStatus) {
			now.Active, now.Inactive = now.Active+uint64(d.Active), now.Inactive+uint64(d.Inactive)
		}); err != nil {
			return err
		}
		each(s, lacking[i].traffic, now)
	}
	return nil
}

// one reads a service's statistics and calls each for its destinations. Found is false
// if there is no service.
func (m *statsReader) one(ctx context.Context, s *kernel.Service, each func(kernel.DestStatus)) (t reconcile.Traffic, found bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err = m.kernel.Query(ctx, func(b []byte) []byte {
		return kernel.AppendService(kernel.AppendCommand(b, m.kernel.Family, kernel.CmdGetService, 0), s, false)
	}, func(_ uint16, data []byte) (err error) {
		_, t, err = kernel.DecodeServiceStats(data)
		return err
	})
	if err == unix.ESRCH {
		return t, false, nil
	}
	if err != nil {
		return t, false, fmt.Errorf("read the statistics of %s: %w", s.Key, err)
	}
	return t, true, kernel.Destinations(ctx, m.kernel, s.Key, s.Mark, kernel.DecodeDestStatus, each)
}

// kernelService returns the identity of a frontend's service in the kernel.
func (t *Target) kernelService(key vip.FrontendKey) kernel.Service {
	return kernel.Service{Key: key, Mark: t.marks.get(key)}
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
	return reconcile.Counted{Packets: true, Inactive: true, Rates: true}
}

// Totals implements reconcile.Statistics. It costs one dump of all services and one read
// of the /proc table.
//
// The kernel updates its counters every 2 s, and never if
// net.ipv4.vs.run_estimation is 0. Numbers of connections are current.
func (t *Target) Totals(ctx context.Context, want func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	out := map[vip.FrontendKey]reconcile.Traffic{}
	err := t.statsReader.all(ctx, func(s *kernel.Service) bool {
		key, ok := t.frontendOf(s)
		return ok && want(key)
	}, func(s *kernel.Service, traffic reconcile.Traffic, now kernel.Live) {
		if key, ok := t.frontendOf(s); ok { // its mark may have been released meanwhile
			out[key] = trafficOf(now, key.Protocol, traffic)
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Breakdown implements reconcile.Statistics. It costs one read of the service and one
// dump of its destinations.
func (t *Target) Breakdown(ctx context.Context, key vip.FrontendKey) (out reconcile.Breakdown, found bool, err error) {
	out.Endpoints = map[netip.AddrPort]reconcile.Traffic{}
	var sum kernel.Live
	s := t.kernelService(key)
	out.Traffic, found, err = t.statsReader.one(ctx, &s, func(d kernel.DestStatus) {
		now := kernel.Live{Active: uint64(d.Active), Inactive: uint64(d.Inactive)}
		sum.Active, sum.Inactive = sum.Active+now.Active, sum.Inactive+now.Inactive
		out.Endpoints[d.Addr] = trafficOf(now, key.Protocol, d.Traffic)
	})
	out.Traffic = trafficOf(sum, key.Protocol, out.Traffic)
	return out, found && err == nil, err
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
