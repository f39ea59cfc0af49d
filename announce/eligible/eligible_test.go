package eligible

import (
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/heapsize"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

type bench struct {
	stage    *Stage
	moves    *table.Table[netip.Addr, announce.Move]
	services *table.Table[vip.ServiceKey, vip.Service]
	applied  *table.Table[vip.FrontendKey, reconcile.AppliedFrontend]
	out      *table.Table[netip.Addr, announce.Eligible]
	synced   chan struct{}
	sick     atomic.Bool
	pools    atomic.Pointer[pools]
}

// pools is what Options.Pools returns.
type pools struct {
	all     []announce.Pool
	changed chan struct{}
}

var lan = []announce.Pool{{Name: "lan", Mode: announce.L2, CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}}}

func start(t *testing.T) *bench {
	clock := &table.Clock{}
	b := &bench{services: table.New(clock, vip.KeyOfService, nil), applied: table.New(clock, reconcile.KeyOfApplied, nil), out: table.New(clock, announce.KeyOfEligible, func(a, b announce.Eligible) bool { return a == b }),
		moves: table.New(clock, announce.KeyOfMove, nil), synced: make(chan struct{})}
	b.pools.Store(&pools{lan, make(chan struct{})})
	s := New(Options{Moves: b.moves, Node: "lb1", Applied: b.applied, Services: b.services, Synced: b.synced, Eligible: b.out, Healthy: func() bool { return !b.sick.Load() },
		Pools: func() ([]announce.Pool, <-chan struct{}) { p := b.pools.Load(); return p.all, p.changed }})
	scope.Go(t, s.Run)
	b.stage = s
	return b
}

func key(addr string, port uint16) vip.FrontendKey {
	return vip.FrontendKey{Addr: netip.MustParseAddr(addr), Port: port, Protocol: vip.TCP}
}

func (b *bench) apply(k vip.FrontendKey, service string, weight uint16, problem string) {
	f := vip.Frontend{Key: k, Service: vip.ServiceKey{Namespace: "default", Name: service}, Kind: vip.OnVIP,
		Backends: []vip.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Weight: weight}}}
	a := reconcile.AppliedFrontend{Tried: &table.Row[vip.Frontend]{Value: f}}
	if problem != "" {
		a.Problem = &vip.Problem{Message: problem}
	}
	b.applied.Set(a)
}

func (b *bench) want(t *testing.T, addr string, services int, reason string) {
	t.Helper()
	synctest.Wait()
	got, _, ok := b.out.Get(netip.MustParseAddr(addr))
	if !ok || got.Services != services || got.Reason != reason {
		t.Errorf("%s: %+v, %v; want %d services, %q", addr, got, ok, services, reason)
	}
}

func TestEligibility(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := start(t)
		b.apply(key("192.0.2.1", 80), "web", 1, "")
		b.apply(key("192.0.2.1", 443), "web", 0, "")
		b.apply(key("192.0.2.1", 53), "dns", 1, "")
		b.apply(key("192.0.2.2", 80), "api", 0, "")
		b.apply(key("192.0.2.3", 80), "bad", 1, "no such device")
		b.apply(key("198.51.100.1", 80), "other", 1, "")
		b.apply(vip.FrontendKey{Addr: netip.MustParseAddr("192.0.2.4"), Port: 80, Protocol: vip.TCP, Audience: vip.InternalClients}, "internal", 1, "")
		synctest.Wait()
		// The announcer would apply these rows, and withdraw what an earlier agent has left in the kernel.
		if table.IsClosed(b.out.Ready()) || b.out.Len() > 0 {
			t.Errorf("before the dataplane is in sync: ready %v, %d rows", table.IsClosed(b.out.Ready()), b.out.Len())
		}
		close(b.synced)
		synctest.Wait()
		if !table.IsClosed(b.out.Ready()) || b.out.Len() != 3 {
			t.Errorf("ready %v, %d rows", table.IsClosed(b.out.Ready()), b.out.Len())
		}
		b.want(t, "192.0.2.1", 2, "")
		b.want(t, "192.0.2.2", 0, "api: no usable backend (192.0.2.2:80/tcp)")
		b.want(t, "192.0.2.3", 0, "bad: not applied: no such device (192.0.2.3:80/tcp)")

		b.apply(key("192.0.2.1", 53), "dns", 0, "")
		b.want(t, "192.0.2.1", 1, "dns: no usable backend (192.0.2.1:53/tcp)")
		b.sick.Store(true)
		time.Sleep(healthEvery)
		b.want(t, "192.0.2.1", 0, "the dataplane does not work")
		b.sick.Store(false)
		time.Sleep(healthEvery)
		b.want(t, "192.0.2.1", 1, "dns: no usable backend (192.0.2.1:53/tcp)")
		b.applied.Delete(key("192.0.2.1", 53))
		b.want(t, "192.0.2.1", 1, "")
		b.applied.Delete(key("192.0.2.1", 80))
		b.want(t, "192.0.2.1", 0, "web: no usable backend (192.0.2.1:443/tcp)")
		b.applied.Delete(key("192.0.2.1", 443))
		if synctest.Wait(); b.out.Row(netip.MustParseAddr("192.0.2.1")) != nil {
			t.Error("a removed VIP stays")
		}

		routed := []announce.Pool{{Mode: announce.BGP, CIDRs: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}}
		close(b.pools.Swap(&pools{all: routed}).changed)
		b.want(t, "198.51.100.1", 1, "")
		expect.Equal(t, b.out.Len(), 1, "rows")
	})
}

// A VIP with one frontend keeps less than 300 bytes.
func TestMemoryOfAVIP(t *testing.T) {
	const vips = 10_000
	size := heapsize.Of(func() any {
		s := New(Options{Eligible: table.New(&table.Clock{}, announce.KeyOfEligible, nil)})
		for i := range vips {
			f := vip.Frontend{Key: vip.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Port: 80, Protocol: vip.TCP}, Kind: vip.OnVIP}
			s.receive(&table.Change[reconcile.AppliedFrontend]{Row: &table.Row[reconcile.AppliedFrontend]{Value: reconcile.AppliedFrontend{Tried: &table.Row[vip.Frontend]{Value: f}}}})
		}
		return s.vips
	})
	if size > 300*vips {
		t.Errorf("%d bytes for each VIP", size/vips)
	}
}

// One change among 10,000 VIPs writes one row.
func TestChangeIsOneRow(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := start(t)
		addr := func(i int) string {
			return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 14: byte(i >> 8), 15: byte(i)}).String()
		}
		for i := range 10_000 {
			b.apply(key(addr(i), 80), "web", 1, "")
		}
		close(b.synced)
		synctest.Wait()
		before := b.out.Revision()
		b.apply(key(addr(rand.IntN(10_000)), 80), "web", 0, "")
		synctest.Wait()
		feed := b.out.Watch()
		defer feed.Close()
		changed := 0
		for batch, _ := feed.TryNext(); len(batch) > 0; batch, _ = feed.TryNext() {
			for _, c := range batch {
				if c.Rev > before {
					changed++
				}
			}
		}
		expect.Equal(t, changed, 1, "rows changed")
	})
}

// A VIP that loses its last usable backend is not eligible at once: no time passes in the stage.
func TestDecidesAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := start(t)
		b.apply(key("192.0.2.1", 80), "web", 1, "")
		close(b.synced)
		b.want(t, "192.0.2.1", 1, "")
		began := time.Now()
		for range 5 {
			b.apply(key("192.0.2.1", 80), "web", 0, "")
			b.want(t, "192.0.2.1", 0, "web: no usable backend (192.0.2.1:80/tcp)")
			b.apply(key("192.0.2.1", 80), "web", 1, "")
			b.want(t, "192.0.2.1", 1, "")
		}
		expect.Equal(t, time.Since(began), 0, "have passed")
	})
}

// A service counts only with enough usable backends, which a pool can change. Backends that are being removed are no
// part of the share.
func TestLeastBackends(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := start(t)
		close(b.synced)
		endpoints := func(usable, idle, leaving int) (out []vip.Endpoint) {
			for i := range usable + idle + leaving {
				e := vip.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)}
				if i < usable {
					e.Weight = 1
				} else if i >= usable+idle {
					e.Leaving = vip.Instant(1)
				}
				out = append(out, e)
			}
			return out
		}
		k := key("192.0.2.1", 80)
		for _, c := range []struct {
			least                 announce.Least
			usable, idle, leaving int
			reason                string
		}{
			{announce.Least{}, 1, 9, 0, ""},
			{announce.Least{}, 0, 1, 0, "web: no usable backend (192.0.2.1:80/tcp)"},
			{announce.Least{Number: 2}, 2, 0, 0, ""},
			{announce.Least{Number: 2}, 1, 1, 1, "web: 1 of 2 backends usable, fewer than 2: min_backends is 2 (192.0.2.1:80/tcp)"},
			{announce.Least{Number: 2}, 1, 0, 0, "web: 1 of 1 backend usable, fewer than 2: min_backends is 2 (192.0.2.1:80/tcp)"},
			{announce.Least{Percent: 50}, 2, 1, 5, ""},
			{announce.Least{Percent: 50}, 1, 2, 0, "web: 1 of 3 backends usable, fewer than 2: min_backends is 50% (192.0.2.1:80/tcp)"},
			{announce.Least{Percent: 1}, 1, 9, 0, ""},
			{announce.Least{Percent: 100}, 3, 0, 2, ""},
		} {
			pool := lan[0]
			pool.MinBackends, pool.Policy = c.least, announce.Policy{Above: int16(c.usable), Standby: true}
			f := vip.Frontend{Key: k, Service: vip.ServiceKey{Namespace: "default", Name: "web"}, Kind: vip.OnVIP, Backends: endpoints(c.usable, c.idle, c.leaving)}
			b.applied.Set(reconcile.AppliedFrontend{Tried: &table.Row[vip.Frontend]{Value: f}})
			before := b.pools.Swap(&pools{[]announce.Pool{pool}, make(chan struct{})})
			close(before.changed)
			services := 1
			if c.reason != "" {
				services = 0
			}
			b.want(t, "192.0.2.1", services, c.reason)
			if got, _, _ := b.out.Get(k.Addr); got.Policy != pool.Policy {
				t.Errorf("%+v: policy %+v", c, got.Policy)
			}
		}
	})
}

// A move to this host is in the row of its VIP, from the move to its end. One to another host is not.
func TestMoves(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := start(t)
		close(b.synced)
		addr := netip.MustParseAddr("192.0.2.10")
		expectPolicy := func(what string, want announce.Policy) {
			t.Helper()
			synctest.Wait()
			v, _, ok := b.out.Get(addr)
			expect.True(t, ok && v.Policy == want, "%s: %+v, want %+v", what, v, want)
		}
		b.apply(key("192.0.2.10", 80), "web", 1, "")
		expectPolicy("before", announce.Policy{})
		b.moves.Set(announce.Move{Addr: addr, Node: "lb2", Since: time.Unix(1, 0)})
		expectPolicy("to another host", announce.Policy{})
		b.moves.Set(announce.Move{Addr: addr, Node: "lb1", Since: time.Unix(2, 0), Pin: true})
		expectPolicy("to this host", announce.Policy{Moved: 2, Pinned: true})
		b.moves.Delete(addr)
		expectPolicy("after", announce.Policy{})
	})
}

// The owner of a whole VIP keeps it if its service wants that and its check fails, but not if it is not applied.
func TestKeep(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := start(t)
		close(b.synced)
		whole := vip.FrontendKey{Addr: netip.MustParseAddr("192.0.2.10")}
		for _, c := range []struct {
			weight  uint16
			keeps   bool
			problem string
			want    bool
		}{{1, true, "", false}, {0, true, "", true}, {0, false, "", false}, {0, true, "no such device", false}} {
			a := reconcile.AppliedFrontend{Tried: &table.Row[vip.Frontend]{Value: vip.Frontend{Key: whole, Kind: vip.OnVIP, KeepsOwner: c.keeps,
				Backends: []vip.Endpoint{{Addr: netip.MustParseAddrPort("127.0.0.1:0"), Weight: c.weight}}}}}
			if c.problem != "" {
				a.Problem = &vip.Problem{Message: c.problem}
			}
			b.applied.Set(a)
			synctest.Wait()
			v, _, ok := b.out.Get(whole.Addr)
			expect.True(t, ok && v.Keep == c.want, "%+v: %+v", c, v)
		}
		b.sick.Store(true)
		time.Sleep(healthEvery)
		synctest.Wait()
		v, _, _ := b.out.Get(whole.Addr)
		expect.False(t, v.Keep, "a dataplane that does not work: %+v", v)
	})
}
