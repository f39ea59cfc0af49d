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

// meter reads what IPVS counts. It has a socket and a table of its own, so that
// a long reading keeps neither changes nor drains waiting.
type meter struct {
	stats *counters

	mu     sync.Mutex // one reading at a time
	kernel *kernel.Conn
	conns  connectionTable
}

func (m *meter) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kernel.Close()
	m.conns.Close()
}

// all calls each for every service in the kernel that want chooses, with its
// statistics and the connections of its destinations. It costs one dump and one
// reading of the table, and one dump more for each such service that the table
// lacks: where other namespaces have services, the kernel passes over one of
// this namespace's or more at each page of the table. A service that was made or
// deleted meanwhile may be there or not.
func (m *meter) all(ctx context.Context, want func(*kernel.Service) bool, each func(*kernel.Service, reconcile.Traffic, kernel.Live)) error {
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

// one reads a service's statistics and then calls each for its destinations;
// false when there is no such service.
func (m *meter) one(ctx context.Context, s *kernel.Service, each func(kernel.DestStatus)) (t reconcile.Traffic, found bool, err error) {
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

// kernelService returns what the kernel knows a frontend's service by.
func (t *Target) kernelService(key vip.FrontendKey) kernel.Service {
	return kernel.Service{Key: key, Mark: t.marks.get(key)}
}

// frontendOf is the way back; false for a service that is no frontend's. One
// without a mark may be somebody else's all the same.
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

// Totals implements reconcile.Statistics by one dump of all services and one
// reading of the kernel's table, in the order of their number.
//
// The kernel brings its counters up to date every 2 s, and not at all with
// net.ipv4.vs.run_estimation = 0; connections are those of the moment.
func (t *Target) Totals(ctx context.Context, want func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	out := map[vip.FrontendKey]reconcile.Traffic{}
	err := t.meter.all(ctx, func(s *kernel.Service) bool {
		key, ok := t.frontendOf(s)
		return ok && want(key)
	}, func(s *kernel.Service, traffic reconcile.Traffic, now kernel.Live) {
		if key, ok := t.frontendOf(s); ok { // it may have given its mark back meanwhile
			out[key] = trafficOf(now, key.Protocol, traffic)
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Breakdown implements reconcile.Statistics by reading one service and one dump
// of its destinations.
func (t *Target) Breakdown(ctx context.Context, key vip.FrontendKey) (out reconcile.Breakdown, found bool, err error) {
	out.Endpoints = map[netip.AddrPort]reconcile.Traffic{}
	var sum kernel.Live
	s := t.kernelService(key)
	out.Traffic, found, err = t.meter.one(ctx, &s, func(d kernel.DestStatus) {
		now := kernel.Live{Active: uint64(d.Active), Inactive: uint64(d.Inactive)}
		sum.Active, sum.Inactive = sum.Active+now.Active, sum.Inactive+now.Inactive
		out.Endpoints[d.Addr] = trafficOf(now, key.Protocol, d.Traffic)
	})
	out.Traffic = trafficOf(sum, key.Protocol, out.Traffic)
	return out, found && err == nil, err
}

// trafficOf returns t with these connections. The kernel calls all of UDP inactive,
// which has no state: a client that it remembers was heard of within the
// timeout.
func trafficOf(l kernel.Live, p vip.Protocol, t reconcile.Traffic) reconcile.Traffic {
	t.Active, t.Inactive = l.Active, l.Inactive
	if p == vip.UDP {
		t.Active, t.Inactive = l.Active+l.Inactive, 0
	}
	return t
}
