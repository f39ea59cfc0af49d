package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// The order of automatic addresses, with the numbers of KEP-3070.
func TestOrderOfAutomaticAddresses(t *testing.T) {
	for _, c := range []struct {
		name        string
		cidrs       []string
		exclude     []string
		subnet      string // of an interface of the host; "" is none
		size        uint64 // that may be allocated
		first, last string // of those allocated one after the other until none is left
		turn        string // the first one out of the static band; "" is none
		families    []vip.Family
	}{
		{name: "/24: band of 16", cidrs: []string{"10.96.0.0/24"}, size: 256, first: "10.96.0.16", turn: "10.96.0.0", last: "10.96.0.15"},
		{name: "/20: band of 256", cidrs: []string{"10.96.0.0/20"}, size: 4096, first: "10.96.1.0", turn: "10.96.0.0", last: "10.96.0.255"},
		{name: "/23: band of 32", cidrs: []string{"10.96.0.0/23"}, size: 512, first: "10.96.0.32", turn: "10.96.0.0", last: "10.96.0.31"},
		{name: "/27: band of 16", cidrs: []string{"10.96.0.0/27"}, size: 32, first: "10.96.0.16", turn: "10.96.0.0", last: "10.96.0.15"},
		{name: "/28: no band", cidrs: []string{"10.96.0.0/28"}, size: 16, first: "10.96.0.0", last: "10.96.0.15"},
		{name: "/31: both addresses", cidrs: []string{"10.96.0.0/31"}, size: 2, first: "10.96.0.0", last: "10.96.0.1"},
		{name: "/32: the one address", cidrs: []string{"10.96.0.7/32"}, size: 1, first: "10.96.0.7", last: "10.96.0.7"},
		{name: "two ranges in the order given", cidrs: []string{"10.97.0.0/28", "10.96.0.0/28"}, size: 32,
			first: "10.96.0.0", turn: "10.97.0.0", last: "10.97.0.15"}, // 32 addresses: a band of 16, the first range
		{name: "excludes", cidrs: []string{"192.0.2.0/24"}, exclude: []string{"192.0.2.0/28", "192.0.2.40/30"}, size: 236,
			first: "192.0.2.32", turn: "192.0.2.16", last: "192.0.2.31"},
		{name: "in the host's subnet", cidrs: []string{"10.0.0.0/28"}, subnet: "10.0.0.0/24", size: 15, first: "10.0.0.1", last: "10.0.0.15"},
		{name: "the host's subnet", cidrs: []string{"10.0.0.0/28"}, subnet: "10.0.0.0/28", size: 14, first: "10.0.0.1", last: "10.0.0.14"},
		{name: "in the middle of the host's subnet", cidrs: []string{"10.0.0.200/29", "10.0.0.208/28"}, subnet: "10.0.0.0/24", size: 24,
			first: "10.0.0.216", turn: "10.0.0.200", last: "10.0.0.215"},
		{name: "around the host's subnet", cidrs: []string{"10.0.0.0/27"}, subnet: "10.0.0.4/30", size: 30, first: "10.0.0.16", last: "10.0.0.15"},
		{name: "IPv6 small", cidrs: []string{"2001:db8::/124"}, size: 16, first: "2001:db8::", last: "2001:db8::f"},
		{name: "IPv6 /120: band of 16", cidrs: []string{"2001:db8::/120"}, size: 256, first: "2001:db8::10", turn: "2001:db8::", last: "2001:db8::f"},
		{name: "IPv6, the host's subnet", cidrs: []string{"2001:db8::/124"}, subnet: "2001:db8::/64", size: 15, first: "2001:db8::1", last: "2001:db8::f"},
		{name: "IPv6 point to point", cidrs: []string{"2001:db8::/127"}, size: 2, first: "2001:db8::", last: "2001:db8::1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := ipam.Pool{Name: "p", CIDRs: prefixes(c.cidrs...), Exclude: prefixes(c.exclude...), AutoAssign: true}
			w := newWorld(t, pools(p))
			if c.subnet != "" {
				w.a.SetHost(hostnet.Snapshot{Addrs: []hostnet.Addr{{Prefix: prefixes(c.subnet)[0], Link: "eth0"}}})
			}
			same(t, "size", w.status("p").Size-w.status("p").HeldOut, c.size)
			var services []vip.Service
			for i := range c.size {
				services = append(services, service(fmt.Sprintf("s%d", i)))
			}
			var got []string
			seen := map[string]bool{}
			for _, a := range w.assign(services...) {
				must.Empty(t, a.Problems)
				if seen[vips(a)] {
					t.Fatalf("%s is allocated twice", vips(a))
				}
				seen[vips(a)] = true
				got = append(got, vips(a))
			}
			same(t, "first", got[0], c.first)
			same(t, "last", got[len(got)-1], c.last)
			if c.turn != "" && !seen[c.turn] || c.turn != "" && slices.Index(got, c.turn) < slices.Index(got, c.first) {
				t.Errorf("the static band does not come last: %s is at %d", c.turn, slices.Index(got, c.turn))
			}
			for _, e := range p.Exclude {
				for a := range seen {
					expect.False(t, e.Contains(addr(a)), "excluded %s was allocated", a)
				}
			}
			s := w.status("p")
			same(t, "used", s.Used, c.size)
			same(t, "free", s.Free, 0)
			w.refused(vip.CodePoolFull, `pool "p" has no free`, "late")
			w.durable()
		})
	}
}

// A pool of 2^64 and more addresses costs no more than its leases.
func TestHugeIPv6Pools(t *testing.T) {
	for cidr, want := range map[string]string{"2001:db8::/64": "2001:db8::101", "2001:db8::/32": "2001:db8::101"} {
		w := newWorld(t, pools(pool("p", cidr)))
		same(t, "first of "+cidr, w.get("a"), want)
		same(t, "requested", w.get("b", requests("2001:db8::ffff:ffff:ffff:fffe")), "2001:db8::ffff:ffff:ffff:fffe")
		if s := w.status("p"); s.Free < 1<<63 || s.Used != 2 {
			t.Errorf("%s: %+v", cidr, s)
		}
	}
}

// A full pool's message counts what the same plan gives away, as in a check of files.
func TestFullByThePlan(t *testing.T) {
	cfg := pools(pool("p", "192.0.2.0/29"))
	cfg.ReuseDelay = time.Minute
	w := newWorld(t, cfg)
	w.get("held")
	w.get("cools")
	w.release("cools")
	var proposed []vip.Service
	for i := range 5 {
		proposed = append(proposed, vip.Service{Key: key(fmt.Sprint("s", i)), Source: "s"})
	}
	got := w.a.Preview(append(proposed, vip.Service{Key: key("cools"), Source: "s"}))
	if p := got[4].Problems; len(p) != 1 || !strings.Contains(p[0].Message, "5 are held, 1 cool down") {
		t.Errorf("%+v", got)
	}
	if len(got[5].VIPs) != 1 {
		t.Errorf("the last holder of a cooling address: %+v", got[5])
	}
}

func TestAllocationWalksOn(t *testing.T) {
	cfg := pools(pool("p", "192.0.2.0/29"))
	cfg.ReuseDelay = 0
	w := newWorld(t, cfg)
	same(t, "first", w.get("a"), "192.0.2.1")
	same(t, "second", w.get("b"), "192.0.2.2")
	w.release("a")
	same(t, "walks on", w.get("c"), "192.0.2.3")
	w.restart()
	same(t, "walks on after a restart", w.get("d"), "192.0.2.4")
	w.get("e")
	same(t, "to the end", w.get("f"), "192.0.2.6")
	same(t, "and from the start", w.get("g"), "192.0.2.1")
	w.refused(vip.CodePoolFull, "6 are held, 0 cool down", "h")
}

func TestFamilies(t *testing.T) {
	dual := pool("dual", "192.0.2.0/28", "2001:db8::/124")
	v4 := pool("v4", "198.51.100.0/28")
	w := newWorld(t, pools(dual, v4))
	same(t, "what the pool has", w.get("a"), "192.0.2.1 2001:db8::1")
	same(t, "only IPv6", w.get("b", families(vip.IPv6)), "2001:db8::2")
	same(t, "both, one requested", w.get("c", families(vip.IPv6, vip.IPv4), requests("2001:db8::9")), "192.0.2.2 2001:db8::9")
	same(t, "those requested", w.get("d", requests("192.0.2.9")), "192.0.2.9")
	same(t, "nothing is taken away by a request", w.get("a", requests("192.0.2.1")), "192.0.2.1 2001:db8::1")
	same(t, "what is there", w.refused(vip.CodeNoPool, `pool "v4" has no IPv6 range`, "e", from("v4"), families(vip.IPv4, vip.IPv6)), "198.51.100.1")
	same(t, "a family given up", w.get("a", families(vip.IPv4)), "192.0.2.1")
	if l, ok := w.lease("2001:db8::1"); !ok || l.State != ipam.Cooling {
		t.Errorf("the address given up: %+v", l)
	}
	same(t, "and asked for again", w.get("a"), "192.0.2.1 2001:db8::1")
	w.durable()
}

func TestPools(t *testing.T) {
	manual := pool("manual", "198.51.100.0/28")
	manual.AutoAssign = false
	w := newWorld(t, pools(manual, pool("auto", "192.0.2.0/28"), pool("later", "203.0.113.0/28")))
	same(t, "the first with auto_assign", w.get("a"), "192.0.2.1")
	same(t, "a named one", w.get("b", from("manual")), "198.51.100.1")
	same(t, "the one of the requested address", w.get("c", requests("198.51.100.7")), "198.51.100.7")
	w.refused(vip.CodeNoPool, `there is no pool "none"`, "d", from("none"))
	w.refused(vip.CodeOutsidePool, "10.0.0.1 is in no pool", "e", requests("10.0.0.1"))

	w.configure(pools(manual))
	w.refused(vip.CodeNoPool, `names no pool, and none that serves namespace "default" has auto_assign`, "f")
	w.configure(ipam.Config{})
	w.refused(vip.CodeNoPool, "names no pool", "f")
	same(t, "held without any pool", w.get("a"), "192.0.2.1")
}

// in puts a service into a namespace.
func in(namespace string) change { return func(s *vip.Service) { s.Key.Namespace = namespace } }

func TestNamespacesOfPools(t *testing.T) {
	shop := pool("shop", "192.0.2.0/28")
	shop.Namespaces = []string{"shop"}
	w := newWorld(t, pools(shop, pool("all", "198.51.100.0/28")))
	same(t, "of the namespace", w.get("a", in("shop")), "192.0.2.1")
	same(t, "of another one", w.get("b"), "198.51.100.1")
	w.refused(vip.CodeNoPool, `pool "shop" does not serve namespace "default"`, "c", from("shop"))
	w.refused(vip.CodeNoPool, `pool "shop" does not serve namespace "default"`, "d", requests("192.0.2.9"))
	same(t, "preferred", w.get("e", func(s *vip.Service) { s.Preferred = []netip.Addr{addr("192.0.2.9")} }), "198.51.100.2")
	same(t, "assigned by its source", w.get("f", assigned, requests("192.0.2.9")), "192.0.2.9")
	closed := pool("all", "198.51.100.0/28")
	closed.Namespaces = []string{"shop"}
	w.configure(pools(shop, closed))
	same(t, "held before", w.get("b"), "198.51.100.1")
	w.refused(vip.CodeNoPool, `none that serves namespace "default" has auto_assign`, "g")
	expect.Contains(t, w.assign(service("g"))[0].Problems[0].Hint, "add a [[pool]] that serves the namespace")
	w.durable()
}

func TestQuota(t *testing.T) {
	cfg := pools(pool("p", "192.0.2.0/28"), pool("q", "198.51.100.0/28", "2001:db8::/124"))
	cfg.Quotas = []ipam.Quota{{Namespace: "shop", Addresses: 3, Services: 9}}
	cfg.ReuseDelay = 0
	w := newWorld(t, cfg)
	const full = `namespace "shop" has 3 of 3 addresses`
	same(t, "the first", w.get("a", in("shop")), "192.0.2.1")
	same(t, "two families", w.get("b", in("shop"), from("q")), "198.51.100.1 2001:db8::1")
	w.refused(vip.CodeQuota, full, "c", in("shop"))
	w.refused(vip.CodeQuota, full, "d", in("shop"), requests("192.0.2.9"))
	same(t, "another namespace", w.get("e"), "192.0.2.2")
	same(t, "a move", w.get("a", in("shop"), requests("192.0.2.7")), "192.0.2.7")
	w.restart()
	w.refused(vip.CodeQuota, full, "c", in("shop"))
	got := w.a.Pools()
	expect.Equal(t, fmt.Sprint(got[0].UsedBy, got[1].UsedBy), "map[default:1 shop:1] map[shop:2]")
	cfg.Quotas[0].Addresses = 1
	w.configure(cfg)
	same(t, "held before", w.get("b", in("shop"), from("q")), "198.51.100.1 2001:db8::1")
	cfg.Quotas[0].Addresses = 4
	w.configure(cfg)
	same(t, "raised", w.get("c", in("shop"), share("k", tcp(80))), "192.0.2.3")
	same(t, "shared", w.get("f", in("shop"), share("k", tcp(81))), "192.0.2.3")
	batch := w.a.Preview([]vip.Service{{Key: vip.ServiceKey{Namespace: "one", Name: "x"}, Source: "s"}, {Key: vip.ServiceKey{Namespace: "shop", Name: "y"}, Source: "s"}})
	if len(batch[0].VIPs) != 1 || len(batch[1].VIPs) != 0 || !vip.HasCode(batch[1].Problems, vip.CodeQuota) {
		t.Errorf("in a batch: %+v", batch)
	}
	w.durable()
}

// Services with addresses are counted, however many addresses they have and share. A service that has one keeps it.
func TestQuotaOfServices(t *testing.T) {
	cfg := pools(pool("p", "192.0.2.0/28", "2001:db8::/124"))
	cfg.Quotas = []ipam.Quota{{Namespace: "shop", Addresses: 9, Services: 2}}
	cfg.ReuseDelay = 0
	w := newWorld(t, cfg)
	const full = `namespace "shop" has 2 of 2 services with an address`
	release := func(name string) {
		t.Helper()
		must.Succeed(t, errors.Join(w.a.Release(t.Context(), []ipam.Released{{Service: vip.ServiceKey{Namespace: "shop", Name: name}}})...))
	}
	batch := w.assign(service("a", in("shop"), share("k", tcp(80))), service("b", in("shop"), share("k", tcp(81))), service("c", in("shop"), share("k", tcp(82))))
	same(t, "the first of a batch", vips(batch[0]), "192.0.2.1 2001:db8::1")
	same(t, "the second", vips(batch[1]), "192.0.2.1 2001:db8::1")
	expect.True(t, len(batch[2].VIPs) == 0 && vip.HasCode(batch[2].Problems, vip.CodeQuota), "the third: %+v", batch[2])
	same(t, "another namespace", w.get("c"), "192.0.2.2 2001:db8::2")
	w.restart()
	w.refused(vip.CodeQuota, full, "c", in("shop"))
	waiting := w.a.Freed()
	release("a")
	expect.True(t, freed(waiting), "nobody is told that a part of the quota is free")
	same(t, "the place of another one", w.get("c", in("shop")), "192.0.2.3 2001:db8::3")
	cfg.Quotas[0].Services = 0
	w.configure(cfg)
	same(t, "held before", w.get("c", in("shop")), "192.0.2.3 2001:db8::3")
	release("c")
	w.refused(vip.CodeQuota, `namespace "shop" has 1 of 0 services`, "c", in("shop"))
	w.durable()
}

// Moves give up what they gain, whatever is moved together.
func TestMovesWithinAQuota(t *testing.T) {
	cfg := pools(pool("p", "192.0.2.0/28", "2001:db8::/124"), pool("q", "198.51.100.0/28", "2001:db8:1::/124"), pool("r", "203.0.113.0/28"))
	cfg.Quotas = []ipam.Quota{{Namespace: "shop", Addresses: 3, Services: 9}}
	cfg.ReuseDelay = 0
	w := newWorld(t, cfg)
	same(t, "the first", w.get("a", in("shop"), from("r")), "203.0.113.1")
	same(t, "two families", w.get("b", in("shop"), from("q")), "198.51.100.1 2001:db8:1::1")
	same(t, "both move", w.get("b", in("shop"), from("p")), "192.0.2.1 2001:db8::1")
	w.refused(vip.CodeQuota, "has 3 of 3 addresses", "a", in("shop"), from("q"), families(vip.IPv4, vip.IPv6))
	w.now = w.now.Add(time.Hour)
	must.Succeed(t, w.a.Cool(context.Background()))
	same(t, "another family instead", w.get("a", in("shop"), from("q"), families(vip.IPv6)), "2001:db8:1::2")
	w.now = w.now.Add(time.Hour)
	must.Succeed(t, w.a.Cool(context.Background()))
	got := w.assign(service("a", in("shop"), from("p"), families(vip.IPv6)), service("b", in("shop"), from("q")))
	for i := range got {
		expect.Empty(t, got[i].Problems, "moves of one batch")
	}
	w.durable()
}

// A namespace can't use up a pool by services that come and go, and a service that was refused gets an address that becomes free.
func TestCoolingAddressesOfAQuota(t *testing.T) {
	cfg := pools(pool("p", "192.0.2.0/28"))
	cfg.Quotas = []ipam.Quota{{Namespace: "shop", Addresses: 1, Services: 9}}
	cfg.ReuseDelay = time.Hour
	w := newWorld(t, cfg)
	request := func(n int) change { return requests(fmt.Sprintf("192.0.2.%d", n)) }
	same(t, "the first", w.get("a", in("shop"), request(1)), "192.0.2.1")
	waiting := w.a.Freed()
	same(t, "a move", w.get("a", in("shop"), request(2)), "192.0.2.2")
	expect.True(t, freed(waiting), "nobody is told that a part of the quota is free")
	w.refused(vip.CodeQuota, "has 1 of 1 addresses, and 1 that it has released cool down", "a", in("shop"), request(3))
	same(t, "back to what cools down", w.get("a", in("shop"), request(1)), "192.0.2.1")
	must.Succeed(t, errors.Join(w.a.Release(context.Background(), []ipam.Released{{Service: vip.ServiceKey{Namespace: "shop", Name: "a"}}})...))
	w.refused(vip.CodeQuota, "2 that it has released cool down", "b", in("shop"))
	w.durable()
}

// An address that a service has lost to a damaged store, or that is reserved for it, is its own, whatever the pool's namespaces and
// the quota say now.
func TestOwedAddresses(t *testing.T) {
	closed := pool("p", "192.0.2.0/28")
	closed.Namespaces = []string{"shop"}
	w := newWorld(t, pools(closed))
	_, err := w.a.Reserve(context.Background(), ipam.Reserving{Addr: addr("192.0.2.5"), For: key("a")})
	must.Succeed(t, err)
	same(t, "reserved", w.get("a"), "192.0.2.5")
	w.durable()
}

func TestRequestsThatCannotBeGranted(t *testing.T) {
	p := pool("p", "192.0.2.0/24")
	p.Exclude = prefixes("192.0.2.64/26")
	w := newWorld(t, pools(p))
	w.a.SetHost(hostnet.Snapshot{Addrs: []hostnet.Addr{{Prefix: prefixes("192.0.2.129/25")[0], Link: "eth0"}}})
	w.get("first", requests("192.0.2.10"))
	for request, want := range map[string]struct{ code, words string }{
		"192.0.2.10":    {vip.CodeAddressTaken, `192.0.2.10 is held by service "first" of source static since 2026-11-08T12:00:00Z`},
		"192.0.2.70":    {vip.CodeOutsidePool, `192.0.2.70 is excluded from pool "p" by 192.0.2.64/26`},
		"192.0.2.128":   {vip.CodeAddressTaken, `192.0.2.128 is held out of pool "p": it is the network or broadcast address of 192.0.2.128/25 on eth0`},
		"192.0.2.255":   {vip.CodeAddressTaken, "the network or broadcast address of 192.0.2.128/25"},
		"198.51.100.10": {vip.CodeOutsidePool, `198.51.100.10 is outside of pool "p"`},
	} {
		got := w.refused(want.code, want.words, "second", requests(request), from("p"))
		expect.Equal(t, got, "", "%s: got %s instead", request, got)
	}
	// Once the holder is gone and the time is up, it can be allocated.
	waiting := w.a.Freed()
	w.release("first")
	expect.False(t, freed(waiting), "freed while cooling down")
	w.refused(vip.CodeAddressTaken, `was released by service "first" and is kept for it until 2026-11-08T12:05:00Z`, "second", requests("192.0.2.10"))
	same(t, "its last holder has it back", w.get("first", requests("192.0.2.10")), "192.0.2.10")
	w.durable()
}

// A preferred address is chosen for a service that holds none, if it can have it.
func TestPreferredAddresses(t *testing.T) {
	p := pool("p", "192.0.2.0/28", "2001:db8::/124")
	p.Exclude = append(p.Exclude, prefixes("192.0.2.12/30")...)
	manual := pool("manual", "198.51.100.0/28")
	manual.AutoAssign = false
	w := newWorld(t, pools(p, manual))
	prefers := func(addrs ...string) change {
		return func(s *vip.Service) {
			for _, a := range addrs {
				s.Preferred = append(s.Preferred, addr(a))
			}
		}
	}
	same(t, "both families", w.get("a", prefers("192.0.2.9", "2001:db8::9")), "192.0.2.9 2001:db8::9")
	same(t, "one family", w.get("b", prefers("2001:db8::a")), "192.0.2.1 2001:db8::a")
	same(t, "held by another service", w.get("c", prefers("192.0.2.9")), "192.0.2.2 2001:db8::1")
	same(t, "excluded", w.get("d", prefers("192.0.2.13"), families(vip.IPv4)), "192.0.2.3")
	same(t, "in no pool", w.get("e", prefers("203.0.113.1"), families(vip.IPv4)), "192.0.2.4")
	same(t, "in a pool without auto_assign", w.get("f", prefers("198.51.100.7")), "198.51.100.7")
	same(t, "in another pool than the named one", w.get("g", prefers("198.51.100.8"), from("p"), families(vip.IPv4)), "192.0.2.5")
	same(t, "held by another service, in a pool without auto_assign", w.get("m", prefers("198.51.100.7"), families(vip.IPv4)), "192.0.2.6")
	same(t, "of a family that the service does not want", w.get("n", prefers("198.51.100.8"), families(vip.IPv6)), "2001:db8::2")
	same(t, "it has one", w.get("b", prefers("192.0.2.8")), "192.0.2.1 2001:db8::a")
	same(t, "a request comes first", w.get("h", prefers("192.0.2.8"), requests("192.0.2.7")), "192.0.2.7")
	w.release("a")
	same(t, "kept for another service", w.get("i", prefers("192.0.2.9"), families(vip.IPv4)), "192.0.2.8")
	same(t, "shared, first", w.get("j", prefers("198.51.100.10"), share("k", tcp(80))), "198.51.100.10")
	same(t, "shared, then", w.get("k", prefers("198.51.100.10"), share("k", tcp(81))), "198.51.100.10")
	w.refused(vip.CodePortTaken, "port 81/tcp of the shared 198.51.100.10 is held", "l", prefers("198.51.100.10"), share("k", tcp(81)), from("manual"))
	w.durable()
}

func TestPreferredAddressesComeBeforeAutomaticOnesInABatch(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	got := w.a.Preview([]vip.Service{{Key: key("a"), Source: "s"}, {Key: key("b"), Source: "s", Preferred: []netip.Addr{addr("192.0.2.1")}}, {Key: key("c"), Source: "s", VIPs: []netip.Addr{addr("192.0.2.2")}}})
	expect.Equal(t, fmt.Sprint(got[0].VIPs, got[1].VIPs, got[2].VIPs), "[192.0.2.3] [192.0.2.1] [192.0.2.2]")
}

func TestRequestsComeBeforeAutomaticOnesInABatch(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	got := w.assign(service("auto"), service("asks", requests("192.0.2.1")))
	same(t, "asks", vips(got[1]), "192.0.2.1")
	same(t, "auto", vips(got[0]), "192.0.2.2")
	same(t, "commits", w.store.Commits(), 1)
}

// A service keeps what it holds, whatever else happens.
func TestSticky(t *testing.T) {
	big := pool("p", "192.0.2.0/24")
	for name, between := range map[string]func(*world){
		"asking again":                 func(w *world) {},
		"a restart":                    func(w *world) { w.restart() },
		"released and back in time":    func(w *world) { w.release("web"); w.now = w.now.Add(4 * time.Minute) },
		"released, restarted and back": func(w *world) { w.release("web"); w.restart() },
		"late, but nobody ended it":    func(w *world) { w.release("web"); w.now = w.now.Add(time.Hour) },
		"the pool is gone":             func(w *world) { w.configure(pools(pool("other", "10.0.0.0/24"))) },
		"the pool is gone over a restart": func(w *world) {
			w.cfg = pools(pool("other", "10.0.0.0/24"))
			w.restart()
		},
		"the pool has other ranges": func(w *world) { w.configure(pools(pool("p", "10.0.0.0/24"))) },
		"the pool has another name": func(w *world) { w.configure(pools(pool("q", "192.0.2.0/24"))) },
		"the address is excluded": func(w *world) {
			p := big
			p.Exclude = prefixes("192.0.2.0/25")
			w.configure(pools(p))
		},
		"another pool comes first": func(w *world) { w.configure(pools(pool("new", "10.0.0.0/24"), big)) },
		"no auto_assign any more": func(w *world) {
			p := big
			p.AutoAssign = false
			w.configure(pools(p))
		},
		"a pod range covers it": func(w *world) { w.a.SetPodCIDRs("kubernetes", prefixes("192.0.0.0/16")) },
		"the host has it too": func(w *world) {
			w.a.SetHost(hostnet.Snapshot{Addrs: []hostnet.Addr{{Prefix: prefixes("192.0.2.17/24")[0], Link: "eth0"}}})
		},
		"the pool is full": func(w *world) {
			for i := range 300 {
				w.assign(service(fmt.Sprintf("s%d", i)))
			}
		},
		"others want it": func(w *world) { w.assign(service("x", requests("192.0.2.17"))) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, pools(big))
			same(t, "before", w.get("web", ports(on(tcp(80), 0))), "192.0.2.17")
			between(w)
			got := w.assign(service("web", ports(on(tcp(80), 0))))[0]
			same(t, "after", vips(got), "192.0.2.17")
			same(t, "node port", got.NodePorts[vip.PortKey{Port: 80, Protocol: vip.TCP}], 30086)
			expect.Equal(t, got.Since, vip.InstantOf(time.Date(2026, 11, 8, 12, 0, 0, 0, time.UTC)), "since")
			expect.Empty(t, got.Problems)
			w.durable()
		})
	}
}

// Only a change of the service itself moves it, and it keeps its address until it has the new one.
func TestMoving(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28"), pool("q", "198.51.100.0/28")))
	same(t, "start", w.get("web"), "192.0.2.1")
	w.get("db", requests("192.0.2.5"))
	same(t, "asks for what is taken",
		w.refused(vip.CodeAddressTaken, `held by service "db" of source static since 2026-11-08T12:00:00Z; the service keeps 192.0.2.1`, "web", requests("192.0.2.5")), "192.0.2.1")
	same(t, "asks for what is free", w.get("web", requests("192.0.2.6"), drains(time.Hour)), "192.0.2.6")
	if l, _ := w.lease("192.0.2.1"); l.State != ipam.Cooling || l.Until != vip.InstantOf(w.now.Add(time.Hour)) {
		t.Errorf("what it left: %+v, want it to cool for its drain timeout", l)
	}
	same(t, "asks for nothing", w.get("web"), "192.0.2.6")
	same(t, "back to the first", w.get("web", requests("192.0.2.1")), "192.0.2.1")
	same(t, "another pool", w.get("web", from("q")), "198.51.100.1")
	same(t, "a pool that isn't", w.refused(vip.CodeNoPool, "the service keeps", "db", from("gone"), requests("192.0.2.9")), "192.0.2.5")
	same(t, "a pool that isn't, and no request", w.refused(vip.CodeNoPool, "the service keeps 192.0.2.5", "db", from("gone")), "192.0.2.5")
	w.durable()
}

func TestCoolingKeepsOthersAway(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/30")))
	w.get("a")
	w.get("b")
	w.release("a")
	w.refused(vip.CodePoolFull, "1 are held, 1 cool down", "c")
	s := w.status("p")
	if s.Used != 1 || s.Cooling != 1 || s.Free != 0 || s.Size != 2 {
		t.Errorf("%+v", s)
	}
	must.Succeed(t, w.a.Release(t.Context(), []ipam.Released{{Service: key("b"), Cooldown: time.Hour}})[0])
	l, _ := w.lease("192.0.2.2")
	if l.Until != vip.InstantOf(w.now.Add(time.Hour)) {
		t.Errorf("cools until %s: the longer of reuse delay and drain counts", l.Until)
	}
	if err := w.a.Release(t.Context(), []ipam.Released{{Service: key("b"), Cooldown: time.Minute}})[0]; err != nil { // again: nothing to do
		t.Fatal(err)
	}
	again, _ := w.lease("192.0.2.2")
	expect.True(t, again.Equal(l), "a second release made it %+v", again)
}

func TestOwns(t *testing.T) {
	w := newWorld(t, pools(ipam.Pool{Name: "p", CIDRs: prefixes("192.0.2.0/28", "2001:db8::/64")}, pool("q", "198.51.100.0/28")))
	w.get("web", from("q"), source("rest"))
	for a, want := range map[string]bool{
		"192.0.2.0": true, "192.0.2.9": true, "192.0.2.16": false, "2001:db8::9": true, "198.51.100.1": true,
		"::ffff:192.0.2.9": true, "127.0.0.1": false,
	} {
		same(t, a, w.a.Owns(addr(a)), want)
	}
	w.configure(pools(pool("p", "192.0.2.0/28")))
	same(t, "leased outside of every pool", w.a.Owns(addr("198.51.100.1")), true)
	same(t, "free outside of every pool", w.a.Owns(addr("198.51.100.2")), false)
	p := pool("q", "198.51.100.0/28")
	p.Exclude = prefixes("198.51.100.0/29")
	w.configure(pools(pool("p", "192.0.2.0/28"), p))
	same(t, "leased and excluded", w.a.Owns(addr("198.51.100.1")), true)
	same(t, "excluded", w.a.Owns(addr("198.51.100.2")), false)
	same(t, "not excluded", w.a.Owns(addr("198.51.100.9")), true)
	w.configure(pools(pool("p", "192.0.2.0/28")))

	check := func(name, want string, known bool) {
		t.Helper()
		got, ok := w.a.SourceOf(key(name))
		if got != want || ok != known {
			t.Errorf("prior source of %s: %q, %v", name, got, ok)
		}
	}
	check("web", "rest", true)
	check("none", "", false)
	w.get("web", source("static"))
	check("web", "static", true)
	w.release("web")
	w.restart()
	check("web", "static", true)
	removed := w.status("q")
	if !removed.Removed || removed.Cooling != 1 || len(removed.Alarms) != 1 {
		t.Errorf("a removed pool: %+v", removed)
	}
}

func TestPreviewChangesNothing(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	w.get("web")
	waiting := w.a.Freed()
	proposed := []vip.Service{service("web", requests("192.0.2.9")), service("new", ports(on(tcp(80), 0))), service("clash", requests("192.0.2.9"))}
	for range 2 {
		got := w.a.Preview(proposed)
		same(t, "web", vips(got[0]), "192.0.2.9")
		same(t, "new", vips(got[1]), "192.0.2.2")
		same(t, "new's node port", got[1].NodePorts[vip.PortKey{Port: 80, Protocol: vip.TCP}], 30086)
		if len(got[2].Problems) != 1 || !strings.Contains(got[2].Problems[0].Message, `held by service "web"`) {
			t.Errorf("clash: %+v", got[2])
		}
	}
	same(t, "commits", w.store.Commits(), 1)
	same(t, "free", w.status("p").Free, 13)
	same(t, "the same then happens", vips(w.assign(proposed...)[1]), "192.0.2.2")
	expect.False(t, freed(waiting), "something was freed")
}
