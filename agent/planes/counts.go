package planes

import (
	"context"
	"maps"
	"net/netip"

	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

var (
	_ reconcile.Connections      = (*Planes)(nil)
	_ reconcile.ConnectionLister = (*Planes)(nil)
	_ reconcile.Statistics       = (*Planes)(nil)
)

// eachLeaving calls f for each dataplane that leaves, once they are known.
func (p *Planes) eachLeaving(ctx context.Context, f func(plane.Leaver) error) error {
	if err := wake.Wait(ctx, p.looked); err != nil {
		return err
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, x := range p.leaving {
		if x.plane == nil {
			continue
		}
		if err := f(x.plane); err != nil {
			return err
		}
	}
	return nil
}

// Counted implements reconcile.Statistics.
func (p *Planes) Counted() reconcile.Counted { return p.plane().Counted() }

// ListConnections implements reconcile.ConnectionLister, with the dataplane that serves.
func (p *Planes) ListConnections(ctx context.Context, want func(vip.FrontendKey) bool, yield func(reconcile.Connection) bool) error {
	more := true
	err := p.plane().ListConnections(ctx, want, func(c reconcile.Connection) bool {
		more = yield(c)
		return more
	})
	if err != nil || !more || p.connect.Plane == nil {
		return err
	}
	return p.connect.ListConnections(ctx, want, yield)
}

// others returns the connections of a frontend that the dataplane doesn't have. Clients of UDP move to it.
func (p *Planes) others(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	out := map[netip.AddrPort]int{}
	if key.Protocol == vip.UDP {
		return out, nil
	}
	err := p.eachLeaving(ctx, func(l plane.Leaver) error {
		open, err := l.Connections(ctx, key)
		for a, n := range open {
			out[a] += n
		}
		return err
	})
	return out, err
}

// Connections implements reconcile.Connections.
func (p *Planes) Connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	out, err := p.others(ctx, key)
	if err != nil {
		return nil, err
	}
	all := []reconcile.Connections{p.plane()}
	if p.connect.Plane != nil {
		all = append(all, p.connect.Plane)
	}
	for _, c := range all {
		open, err := c.Connections(ctx, key)
		if err != nil {
			return nil, err
		}
		for a, n := range open {
			out[a] += n
		}
	}
	return out, nil
}

// Totals implements reconcile.Statistics. A dataplane that leaves costs one read of all its connections more, and balancing at
// connect() one of its counters and of the host's sockets. A frontend for internal clients that the dataplane counts with the one for everyone is counted
// so here, too.
func (p *Planes) Totals(ctx context.Context, want func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	out, err := p.plane().Totals(ctx, want)
	if err != nil {
		return nil, err
	}
	apart := p.plane().Counted().Audiences
	add := func(key vip.FrontendKey, n reconcile.Traffic) {
		if !want(key) {
			return
		}
		if !apart {
			key.Audience = vip.Everyone
		}
		t := out[key]
		t.Add(n)
		out[key] = t
	}
	if p.connect.Plane != nil {
		beside, err := p.connect.Totals(ctx, want)
		if err != nil {
			return nil, err
		}
		for key, t := range beside {
			add(key, t)
		}
	}
	err = p.eachLeaving(ctx, func(l plane.Leaver) error {
		open, err := l.Open(ctx)
		for key, n := range open {
			add(key, reconcile.Traffic{Active: uint64(n)})
		}
		return err
	})
	return out, err
}

// Breakdown implements reconcile.Statistics. Connections to endpoints that the dataplane no longer has count for the frontend
// only, and not with ranges of ports: a dataplane may count them under two addresses there.
func (p *Planes) Breakdown(ctx context.Context, key vip.FrontendKey) (out reconcile.Breakdown, found bool, err error) {
	if out, found, err = p.plane().Breakdown(ctx, key); err != nil || !found {
		return out, found, err
	}
	if p.connect.Plane != nil {
		beside, err := p.connect.Breakdown(ctx, key, maps.Keys(out.Endpoints))
		if err != nil {
			return out, false, err
		}
		out.Traffic.Add(beside.Traffic)
		for a, n := range beside.Endpoints {
			t := out.Endpoints[a]
			t.Add(n)
			out.Endpoints[a] = t
		}
	}
	others, err := p.others(ctx, key)
	for a, n := range others {
		t, known := out.Endpoints[a]
		if known {
			t.Active += uint64(n)
			out.Endpoints[a] = t
		}
		if known || !key.Ranged() {
			out.Active += uint64(n)
		}
	}
	return out, true, err
}
