package eligible

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

func (b *bench) service(namespace, name string, labels ...string) {
	s := vip.Service{Key: vip.ServiceKey{Namespace: namespace, Name: name}, Labels: map[string]string{}}
	for i := 0; i < len(labels); i += 2 {
		s.Labels[labels[i]] = labels[i+1]
	}
	b.services.Set(s)
}

func (b *bench) setPools(all ...announce.Pool) {
	close(b.pools.Swap(&pools{all, make(chan struct{})}).changed)
}

// routed returns a pool with MED 1, and with MED 10 and more for the VIPs that a rule selects.
func routed(rules ...vip.Selector) announce.Pool {
	p := announce.Pool{Name: "web", Mode: announce.BGP, CIDRs: lan[0].CIDRs}
	p.Routes.From, p.Routes.MED = "pool", new(uint32(1))
	for i, s := range rules {
		p.Routes.Rules = append(p.Routes.Rules, announce.RouteRule{Selector: s, From: fmt.Sprint("rule ", i), RouteKeys: announce.RouteKeys{MED: new(uint32(10 + i))}})
	}
	return p
}

// wantRoute checks where the choice for a VIP is from, its MED, and its backends.
func (b *bench) wantRoute(t *testing.T, addr, want string) {
	t.Helper()
	synctest.Wait()
	row, _, _ := b.out.Get(netip.MustParseAddr(addr))
	p, med := row.Route.Policy.Policy(), uint32(0)
	if p.MED != nil {
		med = *p.MED
	}
	expect.Equal(t, fmt.Sprintf("%s: %d, %d backends", p.From, med, row.Route.Backends), want, "%s", addr)
}

// The first rule counts that selects one of the services of a VIP, in any state; else the pool.
func TestChoiceOfARoute(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := start(t)
		b.setPools(routed(vip.Selector{Labels: []string{"tier=gold"}, Namespaces: []string{"default"}}, vip.Selector{Labels: []string{"tier"}}))
		b.service("default", "web", "tier", "silver")
		b.service("default", "dns", "tier", "gold")
		b.apply(key("192.0.2.1", 80), "web", 1, "")
		b.apply(key("192.0.2.2", 80), "plain", 1, "")
		close(b.synced)
		b.wantRoute(t, "192.0.2.1", "rule 1: 11, 0 backends")
		b.wantRoute(t, "192.0.2.2", "pool: 1, 0 backends")
		// Another service shares the VIP: the earlier rule counts, also while that service is not served.
		b.apply(key("192.0.2.1", 53), "dns", 0, "")
		b.wantRoute(t, "192.0.2.1", "rule 0: 10, 0 backends")
		b.service("default", "dns", "tier", "golden")
		b.wantRoute(t, "192.0.2.1", "rule 1: 11, 0 backends")
		b.service("default", "dns", "tier", "gold")
		b.wantRoute(t, "192.0.2.1", "rule 0: 10, 0 backends")
		// A deleted service keeps its choice until its frontends are gone.
		b.services.Delete(vip.ServiceKey{Namespace: "default", Name: "dns"})
		b.wantRoute(t, "192.0.2.1", "rule 0: 10, 0 backends")
		b.applied.Delete(key("192.0.2.1", 53))
		b.wantRoute(t, "192.0.2.1", "rule 1: 11, 0 backends")
		// A port that another service takes.
		b.apply(key("192.0.2.1", 80), "plain", 1, "")
		b.wantRoute(t, "192.0.2.1", "pool: 1, 0 backends")
		// A pool without a choice, and one of another mode.
		b.setPools(announce.Pool{Mode: announce.BGP, CIDRs: lan[0].CIDRs})
		b.wantRoute(t, "192.0.2.1", ": 0, 0 backends")
		l2 := routed()
		l2.Mode = announce.L2
		b.setPools(l2)
		b.wantRoute(t, "192.0.2.1", ": 0, 0 backends")
	})
}

// A rule for a namespace does not select the services of another one that have its labels.
func TestNamespaceOfARule(t *testing.T) {
	s := vip.Selector{Labels: []string{"tier=gold"}, Namespaces: []string{"shop"}}
	for namespace, want := range map[string]bool{"shop": true, "tenant": false} {
		expect.Equal(t, s.Selects(vip.ServiceKey{Namespace: namespace, Name: "web"}, map[string]string{"tier": "gold"}), want, "%s", namespace)
	}
}

// Backends are counted only if a router may get the link bandwidth: of each service those of its largest frontend.
func TestBackendsOfARoute(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := start(t)
		apply := func(k vip.FrontendKey, service string, weights ...uint16) {
			f := vip.Frontend{Key: k, Service: vip.ServiceKey{Namespace: "default", Name: service}, Kind: vip.OnVIP}
			for i, w := range weights {
				f.Backends = append(f.Backends, vip.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80), Weight: w})
			}
			b.applied.Set(appliedFrontend(f))
		}
		apply(key("192.0.2.1", 80), "web", 1, 5, 0)
		apply(key("192.0.2.1", 443), "web", 1, 5, 1)
		apply(key("192.0.2.1", 53), "dns", 1)
		close(b.synced)
		p := routed()
		b.setPools(p)
		b.wantRoute(t, "192.0.2.1", "pool: 1, 0 backends")
		revision := b.out.Revision()
		apply(key("192.0.2.1", 443), "web", 1, 0, 1)
		synctest.Wait()
		expect.Equal(t, b.out.Revision(), revision, "a backend changes the row of a VIP whose routes have no bandwidth")
		p.Routes.CountsBackends = true // by a router's own keys
		b.setPools(p)
		b.wantRoute(t, "192.0.2.1", "pool: 1, 3 backends")
		p.Routes.LinkBandwidth = announce.LinkBandwidthOff
		b.setPools(p)
		b.wantRoute(t, "192.0.2.1", "pool: 1, 0 backends")
		p.Routes.CountsBackends, p.Routes.LinkBandwidth = false, announce.LinkBandwidthBackends
		b.setPools(p)
		b.wantRoute(t, "192.0.2.1", "pool: 1, 3 backends")
		apply(key("192.0.2.1", 443), "web", 1, 1, 1)
		b.wantRoute(t, "192.0.2.1", "pool: 1, 4 backends")
		apply(key("192.0.2.1", 53), "dns", 0)
		b.wantRoute(t, "192.0.2.1", "pool: 1, 3 backends")
	})
}

// A VIP names the aggregate that it is in. The aggregate carries the keys of the pool, whatever rule selects the VIP.
func TestAggregateOfAVIP(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := start(t)
		p := routed(vip.Selector{Labels: []string{"tier=gold"}})
		p.Routes.Aggregates = []netip.Prefix{netip.MustParsePrefix("192.0.2.128/25"), netip.MustParsePrefix("192.0.2.0/28")}
		p.Routes.Rules[0].HostRoutes, p.Routes.HostRoutes = new(true), new(false)
		b.setPools(p)
		b.service("default", "gold", "tier", "gold")
		for _, c := range []struct{ vip, service, want string }{
			{"192.0.2.1", "web", "own invalid Prefix 0, aggregate 192.0.2.0/28 1"},
			{"192.0.2.2", "gold", "own 192.0.2.2/32 10, aggregate 192.0.2.0/28 1"},
			{"192.0.2.200", "web", "own invalid Prefix 0, aggregate 192.0.2.128/25 1"},
			{"192.0.2.77", "web", "own 192.0.2.77/32 1, aggregate invalid Prefix 0"},
		} {
			b.apply(key(c.vip, 80), c.service, 1, "")
			if c.vip == "192.0.2.1" {
				close(b.synced)
			}
			synctest.Wait()
			addr := netip.MustParseAddr(c.vip)
			row, _, _ := b.out.Get(addr)
			own, aggregate := row.Route.For(addr)
			med := func(r announce.PrefixRoute) uint32 {
				a, _ := r.Attributes("r", announce.RouteKeys{}, false, false)
				return a.MED
			}
			expect.Equal(t, fmt.Sprintf("own %s %d, aggregate %s %d", own.Prefix, med(own), aggregate.Prefix, med(aggregate)), c.want, "%s", c.vip)
		}
	})
}

// A change of a service among 10,000 writes the rows of its VIPs, and the stage keeps nothing of services that are gone.
func TestCostOfLabels(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := start(t)
		b.setPools(announce.Pool{Mode: announce.BGP, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Routes: routed(vip.Selector{Labels: []string{"tier"}}).Routes})
		for i := range 10_000 {
			name := fmt.Sprint("s", i)
			b.service("default", name, "app", name)
			b.apply(key(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String(), 80), name, 1, "")
		}
		close(b.synced)
		synctest.Wait()
		before := b.out.Revision()
		b.service("default", "s77", "tier", "gold")
		b.wantRoute(t, "10.1.0.77", "rule 0: 10, 0 backends")
		expect.Equal(t, b.out.Revision(), before+2, "revisions: of the service and of one row")
		for k := range b.applied.All() {
			b.applied.Delete(k)
		}
		synctest.Wait()
		expect.Equal(t, len(b.stage.services), 10_000, "services with labels")
		for k := range b.services.All() {
			b.services.Delete(k)
		}
		synctest.Wait()
		expect.Equal(t, len(b.stage.services), 0, "services that are gone")
	})
}

func appliedFrontend(f vip.Frontend) reconcile.AppliedFrontend {
	return reconcile.AppliedFrontend{Tried: &table.Row[vip.Frontend]{Value: f}}
}
