package agent

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ironvip/ironvip/connect"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// planes are the dataplanes of this host: the one that serves, and those that leave. It counts the open connections of
// clients wherever they are.
type planes struct {
	serving atomic.Pointer[dataplane]
	connect *connect.Plane // has connections beside the one that serves; nil: there is none
	looked  chan struct{}  // closed when it is known which dataplanes have left something here

	mu      sync.RWMutex // held for writing to close one of leaving
	leaving map[string]*leaving
}

var (
	_ reconcile.Connections      = (*planes)(nil)
	_ reconcile.ConnectionLister = (*planes)(nil)
	_ reconcile.Statistics       = (*planes)(nil)
)

// newPlanes returns the dataplanes with p that serves.
func newPlanes(p *dataplane) *planes {
	all := &planes{looked: make(chan struct{}), leaving: map[string]*leaving{}}
	all.serving.Store(p)
	return all
}

// plane returns the dataplane that serves.
func (p *planes) plane() *dataplane { return p.serving.Load() }

// collect collects the metrics of the dataplane that serves.
func (p *planes) collect(w *metric.Writer) {
	for _, c := range p.plane().Metrics {
		c(w)
	}
}

// add adds a dataplane that shall leave, and returns the context for that. L is nil if it was not found.
func (p *planes) add(ctx context.Context, mode string, l plane.Leaver) (*leaving, context.Context) {
	ctx, stop := context.WithCancel(ctx)
	x := &leaving{mode: mode, plane: l, stop: stop, ended: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaving[mode] = x
	return x, ctx
}

// found records that a dataplane that shall leave is there.
func (p *planes) found(x *leaving, l plane.Leaver) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x.plane = l
}

// drop closes a dataplane that has left, or shall not leave.
func (p *planes) drop(x *leaving, log *slog.Logger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.leaving, x.mode)
	if x.plane != nil {
		if err := x.plane.Close(); err != nil {
			log.Debug("close a dataplane that has left", "dataplane", x.mode, "err", err)
		}
	}
	close(x.ended)
}

// of returns the dataplane of a mode if it leaves, or nil.
func (p *planes) of(mode string) *leaving {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.leaving[mode]
}

// shown returns those that leave and have been counted, by mode.
func (p *planes) shown() (out []*leaving) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, x := range p.leaving {
		if x.state.Load() != nil {
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b *leaving) int { return strings.Compare(a.mode, b.mode) })
	return out
}

// eachLeaving calls f for each dataplane that leaves, once they are known.
func (p *planes) eachLeaving(ctx context.Context, f func(plane.Leaver) error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-p.looked:
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
func (p *planes) Counted() reconcile.Counted { return p.plane().Counted() }

// ListConnections implements reconcile.ConnectionLister, with the dataplane that serves.
func (p *planes) ListConnections(ctx context.Context, want func(vip.FrontendKey) bool, yield func(reconcile.Connection) bool) error {
	more := true
	err := p.plane().ListConnections(ctx, want, func(c reconcile.Connection) bool {
		more = yield(c)
		return more
	})
	if err != nil || !more || p.connect == nil {
		return err
	}
	return p.connect.ListConnections(ctx, want, yield)
}

// others returns the connections of a frontend that the dataplane doesn't have. Clients of UDP move to it.
func (p *planes) others(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
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
func (p *planes) Connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	out, err := p.others(ctx, key)
	if err != nil {
		return nil, err
	}
	all := []reconcile.Connections{p.plane()}
	if p.connect != nil {
		all = append(all, p.connect)
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
func (p *planes) Totals(ctx context.Context, want func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	out, err := p.plane().Totals(ctx, want)
	if err != nil {
		return nil, err
	}
	add := func(key vip.FrontendKey, n reconcile.Traffic) {
		t, counted := out[key]
		if !counted {
			key.Audience = vip.Everyone
			t, counted = out[key]
		}
		if counted {
			t.Add(n)
			out[key] = t
		}
	}
	if p.connect != nil {
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
func (p *planes) Breakdown(ctx context.Context, key vip.FrontendKey) (out reconcile.Breakdown, found bool, err error) {
	if out, found, err = p.plane().Breakdown(ctx, key); err != nil || !found {
		return out, found, err
	}
	if p.connect != nil {
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
