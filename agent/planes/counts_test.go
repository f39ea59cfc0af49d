package planes

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/ironvip/ironvip/api/forwarding"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// countingPlane is a dataplane that serves or leaves, with some connections.
type countingPlane struct {
	reconcile.Plane
	open   map[vip.FrontendKey]map[netip.AddrPort]int
	closed bool
}

func (p *countingPlane) Connections(_ context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	return maps.Clone(p.open[key]), nil
}

func (p *countingPlane) Counted() reconcile.Counted { return reconcile.Counted{} }

func (p *countingPlane) Totals(_ context.Context, want func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	out := map[vip.FrontendKey]reconcile.Traffic{}
	for key := range p.open {
		if want(key) {
			b, _, _ := p.Breakdown(context.Background(), key)
			out[key] = b.Traffic
		}
	}
	return out, nil
}

func (p *countingPlane) Breakdown(_ context.Context, key vip.FrontendKey) (reconcile.Breakdown, bool, error) {
	out := reconcile.Breakdown{Endpoints: map[netip.AddrPort]reconcile.Traffic{}}
	for a, n := range p.open[key] {
		out.Endpoints[a] = reconcile.Traffic{Active: uint64(n)}
		out.Active += uint64(n)
	}
	return out, p.open[key] != nil, nil
}

func (p *countingPlane) Left(context.Context) (usage.Left, error) { return usage.Left{}, nil }
func (p *countingPlane) Leave(context.Context) error              { return nil }
func (p *countingPlane) Remove(context.Context) error             { return nil }
func (p *countingPlane) Close() error                             { p.closed = true; return nil }

func (p *countingPlane) Open(context.Context) (map[vip.FrontendKey]int, error) {
	out := map[vip.FrontendKey]int{}
	for key, open := range p.open {
		for _, n := range open {
			out[key] += n
		}
	}
	return out, nil
}

// with returns the dataplanes with one that serves.
func with(o Options, d *dataplane) *Planes {
	p := &Planes{o: o, looked: make(chan struct{}), leaving: map[string]*leaving{}}
	p.serving.Store(d)
	return p
}

// Connections of the dataplane that serves and of one that leaves add up. Nothing is counted before it is known which ones
// leave: a count without them would be too low.
func TestConnectionsOfAllDataplanes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		key := vip.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: vip.TCP}
		other := vip.FrontendKey{Addr: netip.MustParseAddr("10.96.0.2"), Port: 80, Protocol: vip.TCP}
		a, b, gone := netip.MustParseAddrPort("10.1.0.1:80"), netip.MustParseAddrPort("10.1.0.2:80"), netip.MustParseAddrPort("10.1.0.3:80")
		counts := func(n, m int) map[vip.FrontendKey]map[netip.AddrPort]int {
			return map[vip.FrontendKey]map[netip.AddrPort]int{key: {a: n, b: m}}
		}
		leaves := &countingPlane{open: counts(10, 20)}
		leaves.open[key][gone] = 40
		leaves.open[other] = map[netip.AddrPort]int{a: 80} // nobody asks for it
		idle := vip.FrontendKey{Addr: key.Addr, Port: 81, Protocol: vip.TCP, Audience: vip.InternalClients}
		leaves.open[idle] = map[netip.AddrPort]int{a: 2} // the dataplane that serves has no traffic of it
		c := with(Options{Log: slog.New(slog.DiscardHandler)}, &dataplane{Opened: plane.Opened{Plane: &countingPlane{open: counts(1, 0)}}})
		check := func(when string, wantA, wantB, all, ofIdle int) {
			t.Helper()
			open, err := c.Connections(t.Context(), key)
			if err != nil || open[a] != wantA || open[b] != wantB {
				t.Errorf("%s: connections %v, %v", when, open, err)
			}
			one, found, err := c.Breakdown(t.Context(), key)
			if err != nil || !found || one.Active != uint64(all) || one.Endpoints[a].Active != uint64(wantA) || one.Endpoints[b].Active != uint64(wantB) || len(one.Endpoints) != 2 {
				t.Errorf("%s: breakdown %+v, %v", when, one, err)
			}
			totals, err := c.Totals(t.Context(), func(k vip.FrontendKey) bool { return k != other })
			everyone := idle
			everyone.Audience = vip.Everyone
			if _, is := totals[other]; err != nil || totals[key].Active != uint64(all) || is || totals[everyone].Active != uint64(ofIdle) {
				t.Errorf("%s: totals %+v, %v", when, totals, err)
			}
		}
		answered := false
		go func() {
			open, err := c.Connections(t.Context(), key)
			if answered = true; err != nil || open[a] != 11 {
				t.Errorf("a count that waited: %v, %v", open, err)
			}
		}()
		if synctest.Wait(); answered {
			t.Error("counted before it is known which dataplanes leave")
		}
		x, _ := c.add(t.Context(), "nft", leaves)
		close(c.looked)
		synctest.Wait()
		check("with all", 11, 20, 1+30+40, 2)
		c.drop(x)
		expect.True(t, leaves.closed, "closed")
		check("alone", 1, 0, 1, 0)
	})
}

// The kernel, and a proxy in a process of its own, forward while the agent doesn't run.
func TestForwards(t *testing.T) {
	for _, c := range []struct {
		mode, socket string
		forwards     bool
	}{{configs.ModeNFT, "", true}, {configs.ModeProxy, "/run/proxy.sock", true}, {configs.ModeProxy, "", false}} {
		cfg := &configs.Config{}
		cfg.Dataplane.ProxySocket = c.socket
		p := with(Options{Started: cfg}, &dataplane{about: forwarding.Dataplane{Mode: c.mode}})
		expect.Equal(t, p.Forwards(), c.forwards, "%s at %q", c.mode, c.socket)
	}
}
