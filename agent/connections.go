package agent

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// connections counts the open connections of clients wherever this host has them: in its dataplane, and in a former one that
// still drains.
type connections struct {
	reconcile.Statistics // of the dataplane

	plane  reconcile.Connections
	looked chan struct{} // closed when the former dataplanes have been looked for

	mu      sync.RWMutex // held for writing to close one of formers
	formers map[string]formerState
}

var (
	_ reconcile.Connections = (*connections)(nil)
	_ reconcile.Statistics  = (*connections)(nil)
)

// newConnections returns what counts the connections of p.
func newConnections(p *plane) *connections {
	return &connections{Statistics: p, plane: p,
		looked: make(chan struct{}), formers: map[string]formerState{}}
}

// setFormer replaces what counts the connections of a former dataplane, and closes what did before. Nil: there are none left.
func (c *connections) setFormer(mode string, f formerState) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.formers[mode]
	if c.formers[mode] = f; f == nil {
		delete(c.formers, mode)
	}
	if before == nil || before == f {
		return nil
	}
	return before.Close()
}

// former returns what counts the connections of a former dataplane, or nil.
func (c *connections) former(mode string) formerState {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.formers[mode]
}

// close closes what counts the connections of former dataplanes.
func (c *connections) close() (err error) {
	for _, mode := range preference {
		err = errors.Join(err, c.setFormer(mode, nil))
	}
	return err
}

// eachFormer calls f for each former dataplane, once they are known.
func (c *connections) eachFormer(ctx context.Context, f func(formerState) error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.looked:
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, former := range c.formers {
		if err := f(former); err != nil {
			return err
		}
	}
	return nil
}

// others returns the connections of a frontend that the dataplane doesn't have.
func (c *connections) others(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	out := map[netip.AddrPort]int{}
	err := c.eachFormer(ctx, func(f formerState) error {
		open, err := f.Connections(ctx, key)
		for a, n := range open {
			out[a] += n
		}
		return err
	})
	return out, err
}

// Connections implements reconcile.Connections.
func (c *connections) Connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	out, err := c.others(ctx, key)
	if err != nil {
		return nil, err
	}
	own, err := c.plane.Connections(ctx, key)
	for a, n := range own {
		out[a] += n
	}
	return out, err
}

// Totals implements reconcile.Statistics. A former dataplane costs one read of all its connections more.
func (c *connections) Totals(ctx context.Context, want func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	out, err := c.Statistics.Totals(ctx, want)
	if err != nil {
		return nil, err
	}
	add := func(key vip.FrontendKey, n int) {
		if t, counted := out[key]; counted {
			t.Active += uint64(n)
			out[key] = t
		}
	}
	err = c.eachFormer(ctx, func(f formerState) error {
		open, err := f.Open(ctx)
		for key, n := range open {
			add(key, n)
		}
		return err
	})
	return out, err
}

// Breakdown implements reconcile.Statistics. Connections to endpoints that the dataplane no longer has count for the frontend
// only, and not with ranges of ports: a dataplane may count them under two addresses there.
func (c *connections) Breakdown(ctx context.Context, key vip.FrontendKey) (out reconcile.Breakdown, found bool, err error) {
	if out, found, err = c.Statistics.Breakdown(ctx, key); err != nil || !found {
		return out, found, err
	}
	others, err := c.others(ctx, key)
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
