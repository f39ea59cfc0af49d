package zone

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/miekg/dns"
	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// The older lease wins a name, then the one with a lease, then the lower key. A service that loses is
// reported with the winner, and gets the name when the winner no longer claims it.
func TestClaims(t *testing.T) {
	w := newWorld(t)
	w.set(svc("prod/b", 5, "10.64.16.5").with("shop.example.com"))
	w.checkConflicts()
	w.set(svc("prod/c", 6, "10.64.16.6").with("shop.example.com"))
	w.check("shop.example.com A: 10.64.16.5")
	w.checkConflicts("shop.example.com prod/c prod/b")
	w.set(svc("prod/a", 4, "10.64.16.4").with("shop.example.com"), svc("prod/n", 0).with("shop.example.com"), svc("prod/d", 6, "10.64.16.7").with("shop.example.com"))
	w.check("shop.example.com A: 10.64.16.4", "c.prod.svc.vip.internal A: 10.64.16.6")
	w.checkConflicts("shop.example.com prod/b prod/a", "shop.example.com prod/c prod/a", "shop.example.com prod/d prod/a", "shop.example.com prod/n prod/a")
	w.remove("prod/a")
	w.check("shop.example.com A: 10.64.16.5")
	w.checkConflicts("shop.example.com prod/c prod/b", "shop.example.com prod/d prod/b", "shop.example.com prod/n prod/b")
	w.set(svc("prod/b", 7, "10.64.16.5").with("shop.example.com")) // a new lease
	w.check("shop.example.com A: 10.64.16.6")
	w.checkConflicts("shop.example.com prod/b prod/c", "shop.example.com prod/d prod/c", "shop.example.com prod/n prod/c")
	w.set(svc("prod/b", 7, "10.64.16.5"), svc("prod/c", 6, "10.64.16.6"))
	w.checkConflicts("shop.example.com prod/n prod/d")
	w.remove("prod/d")
	w.check("shop.example.com A: soa:shop.example.com.")
	w.checkConflicts()
	w.set(svc("prod/n", 9, "10.64.16.9").with("shop.example.com"))
	w.check("shop.example.com A: 10.64.16.9")
}

// A hostname and the short name of another service are claims of one name.
func TestHostnameAndShortName(t *testing.T) {
	w := newWorld(t)
	w.set(svc("db", 5, "10.64.16.5"), svc("prod/x", 4, "10.64.16.4").with("db.vip.internal"))
	w.check("db.vip.internal A: 10.64.16.4", "db.default.svc.vip.internal A: 10.64.16.5")
	kind := func(want Kind) {
		t.Helper()
		expect.Equal(t, must.Get(w.Explain("db.vip.internal", dns.TypeA))(t).Kind, want, "the name is a")
	}
	kind(Hostname)
	w.checkConflicts("db.vip.internal db prod/x")
	names := w.NamesOf(key("db"))
	if len(names) != 2 || names[0].Lost || !names[1].Lost || names[1].Winner != key("prod/x") || names[1].Kind != Short || names[1].Name != "db.vip.internal" {
		t.Errorf("names %+v", names)
	}
	w.set(svc("prod/x", 4, "10.64.16.4"))
	w.check("db.vip.internal A: 10.64.16.5")
	w.checkConflicts()
	kind(Short)

	// A hostname that is the service's own short name.
	w.set(svc("db", 5, "10.64.16.5").with("db.vip.internal", "other.example.com"))
	if names := w.NamesOf(key("db")); len(names) != 3 || names[1].Kind != Short || names[2].Name != "other.example.com" || names[2].Kind != Hostname {
		t.Errorf("names %+v", names)
	}
	w.set(svc("db", 5, "10.64.16.5"))
	w.check("db.vip.internal A: 10.64.16.5")
	w.remove("db")
	w.check("db.vip.internal A: NXDOMAIN, soa:vip.internal.")
	expect.True(t, w.NamesOf(key("db")) == nil, "names of a service that is gone")
}

// No service gets a name that ironvip uses, or one in a namespace of ironvip.
func TestReservedNames(t *testing.T) {
	w := newWorld(t)
	w.set(svc("prod/x", 1, "10.64.16.4").with("vip.internal", "ns.dns.vip.internal", "a.svc.vip.internal", "b.a.svc.vip.internal", "1.in-addr.arpa", "free.vip.internal", "a.b.vip.internal"),
		svc("svc", 2, "10.64.16.2"), svc("dns-version", 3, "10.64.16.3"), svc("dns", 4, "10.64.16.5"))
	w.check(
		"vip.internal A: soa:vip.internal.",
		"ns.dns.vip.internal A: 127.0.0.1",
		"svc.vip.internal A: soa:vip.internal.",
		"dns-version.vip.internal A: soa:vip.internal.",
		"dns-version.default.svc.vip.internal A: 10.64.16.3",
		"dns.vip.internal A: 10.64.16.5", // ironvip uses only a name below it
		"free.vip.internal A: 10.64.16.4",
		"b.vip.internal A: soa:vip.internal.",
		"a.b.vip.internal A: 10.64.16.4",
		"a.svc.vip.internal A: NXDOMAIN, soa:vip.internal.",
	)
	w.checkConflicts("1.in-addr.arpa prod/x", "a.svc.vip.internal prod/x", "b.a.svc.vip.internal prod/x", "dns-version.vip.internal dns-version",
		"ns.dns.vip.internal prod/x", "svc.vip.internal svc", "vip.internal prod/x")
	if names := w.NamesOf(key("prod/x")); len(names) != 8 || !names[1].Lost || names[1].Winner != (vip.ServiceKey{}) {
		t.Errorf("names %+v", names)
	}
	w.remove("svc")
	w.remove("dns-version")
	w.remove("dns")
	w.set(svc("prod/x", 1, "10.64.16.4").with("vip.internal"))
	w.checkConflicts("vip.internal prod/x")
	w.check("dns.vip.internal A: soa:vip.internal.", "ns.dns.vip.internal A: 127.0.0.1")
	w.remove("prod/x")
	w.checkConflicts()
}

// Whatever happened, a zone answers and reports what a new zone with the same services does, while
// names are held and after that.
func TestHistoryHasNoEffect(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		now := map[vip.ServiceKey]Service{}
		names := []string{"a", "b", "dns", "svc", "prod/a", "prod/b"}
		held := map[string]vip.ServiceKey{}
		for _, name := range rapid.SliceOfN(rapid.SampledFrom([]string{"a.vip.internal", "y.vip.internal", "h.example.com", "i.h.example.com", "svc.vip.internal"}), 0, 3).Draw(rt, "held") {
			if held[name] = (vip.ServiceKey{}); rapid.Bool().Draw(rt, "known") {
				held[name] = key(rapid.SampledFrom(names).Draw(rt, "former winner"))
			}
		}
		w := newWorld(t)
		w.Zone.synced = false
		steps := rapid.IntRange(1, 30).Draw(rt, "steps")
		holdAt, syncAt := rapid.IntRange(0, steps-1).Draw(rt, "hold at"), rapid.IntRange(0, 2*steps).Draw(rt, "synced at")
		for step := range steps {
			if step == holdAt {
				w.report(w.Hold(held))
			}
			if step == syncAt {
				w.report(w.SetSynced())
			}
			var changes []Change
			for range rapid.IntRange(1, 3).Draw(rt, "batch") {
				k := key(rapid.SampledFrom(names).Draw(rt, "service"))
				if rapid.IntRange(0, 3).Draw(rt, "kind") == 0 {
					delete(now, k)
					changes = append(changes, Change{Service: Service{Key: k}, Gone: true})
					continue
				}
				s := Service{Key: k, Since: vip.Instant(rapid.IntRange(0, 3).Draw(rt, "since"))}
				for i := range rapid.IntRange(0, 2).Draw(rt, "vips") {
					s.VIPs = append(s.VIPs, addrs(fmt.Sprintf([]string{"10.64.16.%d", "2001:db8:1::%d"}[i], rapid.IntRange(1, 3).Draw(rt, "vip")))...)
				}
				s.Hostnames = slices.Sorted(maps.Keys(rapid.MapOfN(rapid.SampledFrom([]string{"a.vip.internal", "dns.vip.internal", "x.y.vip.internal", "y.vip.internal",
					"h.example.com", "i.h.example.com", "svc.vip.internal", "q.svc.vip.internal"}), rapid.Bool(), 0, 3).Draw(rt, "hostnames")))
				for i, p := range rapid.SliceOfN(rapid.SampledFrom([]string{"tcp/http", "udp/dns", "tcp/x", "tcp"}), 0, 2).Draw(rt, "ports") {
					s = s.ports(strconv.Itoa(i+1) + "/" + p)
				}
				now[k] = s
				changes = append(changes, Change{Service: s})
			}
			w.report(w.Apply(1, changes))
		}
		fresh := newWorld(t)
		if fresh.Zone.synced = syncAt < steps; !fresh.Zone.synced {
			fresh.Hold(held)
		}
		for _, s := range now {
			fresh.set(s)
		}
		must.True(rt, maps.Equal(w.conflicts, fresh.conflicts), "conflicts %v, want %v", w.conflicts, fresh.conflicts)
		if w.Len() != fresh.Len() || len(w.names) != len(fresh.names) || len(w.rivals) != len(fresh.rivals) {
			rt.Fatalf("%d names, %d nodes, %d contested; want %d, %d, %d", w.Len(), len(w.names), len(w.rivals), fresh.Len(), len(fresh.names), len(fresh.rivals))
		}
		for name, n := range fresh.names {
			o := w.names[name]
			if o == nil || o.below != n.below || o.kind != n.kind || (o.owner == nil) != (n.owner == nil) || o.owner != nil && o.owner.Key != n.owner.Key {
				rt.Fatalf("name %q is %+v, should be %+v", name, o, n)
			}
		}
		contested := map[string]vip.ServiceKey{}
		for name, n := range w.names {
			if len(w.Zone.rivals[n]) > 0 && n.kind != Address {
				contested[name] = n.owner.Key
			}
		}
		for k := range now {
			for _, n := range w.NamesOf(k) {
				winner, is := contested[n.Name]
				if got, ok := w.Contested(n.Name); ok != is || got != winner {
					rt.Fatalf("%s is contested: %v, won by %s; want %v, %s", n.Name, ok, got, is, winner)
				}
				if c, ok := w.conflicts[ConflictKey{n.Name, k}]; ok != n.Lost || c.Winner != n.Winner || c.Undecided != n.Undecided {
					rt.Fatalf("%+v, but conflict %+v, %v", n, c, ok)
				}
				reserved := n.Lost && n.Winner == (vip.ServiceKey{}) && !n.Undecided
				if got := w.answer(t, n.Name, dns.TypeA); (got == "SERVFAIL") != n.Undecided && !reserved {
					rt.Fatalf("%+v, but the answer is %s", n, got)
				}
				if !n.Lost {
					want := ""
					for i, a := range n.VIPs {
						if a.Is4() && i == 0 {
							want = a.String()
						}
					}
					if got := w.answer(t, n.Name, dns.TypeA); want != "" && got != want {
						rt.Fatalf("%s is %s, want %s", n.Name, got, want)
					}
				}
			}
		}
	})
}
