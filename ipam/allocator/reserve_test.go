package allocator_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// reserve reserves an address for a service; "" is for nobody.
func (w *world) reserve(a, service string) ipam.Lease {
	w.t.Helper()
	what := ipam.Reserving{Addr: addr(a)}
	if service != "" {
		what.For = key(service)
	}
	l := must.Get(w.a.Reserve(w.t.Context(), what))(w.t)
	return l
}

func (w *world) unreserve(a string) {
	w.t.Helper()
	must.Get(w.a.Unreserve(w.t.Context(), addr(a)))(w.t)
}

// state returns "held web", "reserved for web", or "free".
func (w *world) state(a string) string {
	l, ok := w.lease(a)
	if !ok {
		return "free"
	}
	out := l.State.String()
	for _, h := range l.Holders {
		out += " " + h.Service.Name
	}
	if l.Reservation != nil {
		out += ", reserved " + l.Reservation.For.Name
	}
	return out
}

// cool ends all cooling.
func (w *world) cool() {
	w.t.Helper()
	w.now = w.now.Add(24 * time.Hour)
	must.Succeed(w.t, w.a.Cool(w.t.Context()))
}

// A reserved address is given to its service alone, and stays reserved after the service and a
// restart.
func TestReservationForAService(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/24"), ipam.Pool{Name: "q", CIDRs: prefixes("198.51.100.0/24")}))
	w.reserve("198.51.100.40", "web")
	w.refused(vip.CodeAddressTaken, `198.51.100.40 is reserved for service "web" since 2026-11-08T12:00:00Z`, "db", requests("198.51.100.40"))
	w.refused(vip.CodeAddressTaken, "reserved", "db", requests("198.51.100.40"), assigned)
	same(t, "another", w.get("other", from("q")), "198.51.100.16")
	same(t, "its service, which names no pool", w.get("web"), "198.51.100.40")
	same(t, "state", w.state("198.51.100.40"), "held web, reserved web")
	w.release("web")
	w.cool()
	w.restart()
	same(t, "state after the service", w.state("198.51.100.40"), "reserved web, reserved web")
	w.refused(vip.CodeAddressTaken, "reserved", "db", requests("198.51.100.40"))
	same(t, "again", w.get("web"), "198.51.100.40")
	w.durable()

	w.unreserve("198.51.100.40")
	same(t, "held all the same", w.state("198.51.100.40"), "held web")
	w.release("web")
	same(t, "afterwards", w.state("198.51.100.40"), "cooling web")
	w.durable()
}

// A reservation for nobody is given only to a service that requests the address, and stays.
func TestReservationForNobody(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	w.reserve("192.0.2.1", "")
	same(t, "state", w.state("192.0.2.1"), "reserved, reserved ")
	same(t, "automatic", w.get("auto"), "192.0.2.2")
	same(t, "asked", w.get("web", requests("192.0.2.1")), "192.0.2.1")
	same(t, "state", w.state("192.0.2.1"), "held web, reserved ")
	w.release("web")
	same(t, "state", w.state("192.0.2.1"), "reserved, reserved ")
	w.get("db", requests("192.0.2.1"))
	w.release("db")
	w.restart()
	w.cool()
	freedBefore := w.a.Freed()
	w.unreserve("192.0.2.1")
	same(t, "state", w.state("192.0.2.1"), "free")
	expect.True(t, freed(freedBefore), "nobody is told that the address is free")
	w.durable()
}

// A service that shares a reserved address doesn't inherit it.
func TestReservationOfASharedAddress(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	same(t, "shared", w.get("other", share("k", tcp(443))), "192.0.2.1")
	w.reserve("192.0.2.9", "web")
	same(t, "web", w.get("web", share("k", tcp(80))), "192.0.2.9")
	same(t, "db", w.get("db", share("k", tcp(443)), requests("192.0.2.9")), "192.0.2.9")
	w.release("web")
	same(t, "state", w.state("192.0.2.9"), "held db, reserved web")
	w.release("db")
	same(t, "state", w.state("192.0.2.9"), "reserved web, reserved web")
}

// An address in use can be reserved for the service that uses it.
func TestReservationOfAnAddressInUse(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	w.get("web")
	w.get("db")
	w.release("db")
	since, _ := w.lease("192.0.2.1")
	w.now = w.now.Add(time.Minute)
	w.reserve("192.0.2.1", "web")
	w.reserve("192.0.2.2", "db")
	same(t, "web", w.state("192.0.2.1"), "held web, reserved web")
	now, _ := w.lease("192.0.2.1")
	same(t, "since", now.Since, since.Since)
	same(t, "db", w.state("192.0.2.2"), "reserved db, reserved db")
	w.cool()
	same(t, "db", w.get("db"), "192.0.2.2")
	if source, known := w.a.SourceOf(key("db")); !known || source != "static" {
		t.Errorf("source of db: %q, %t", source, known)
	}
}

// A reservation doesn't say which source its service comes from.
func TestReservationHasNoSource(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	w.reserve("192.0.2.1", "web")
	if source, known := w.a.SourceOf(key("web")); known {
		t.Errorf("it is from %q", source)
	}
	w.get("web")
	if source, known := w.a.SourceOf(key("web")); !known || source != "static" {
		t.Errorf("it is from %q, %t", source, known)
	}
}

// A reservation from a pool takes what automatic allocation would take, and the pool counts it.
func TestReservationFromAPool(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/29", "2001:db8::/125")))
	any := func(f vip.Family) (string, error) {
		l, err := w.a.Reserve(t.Context(), ipam.Reserving{Pool: "p", Family: f})
		return l.Resource.String(), err
	}
	first, _ := any(0)
	same(t, "first", first, "192.0.2.1")
	six, _ := any(vip.IPv6)
	same(t, "IPv6", six, "2001:db8::1")
	same(t, "automatic", w.get("web", families(vip.IPv4)), "192.0.2.2")
	for range 4 {
		must.Get(any(vip.IPv4))(t)
	}
	_, err := any(0)
	problem, _ := errors.AsType[vip.Problem](err)
	same(t, "code", problem.Code, vip.CodePoolFull)
	same(t, "full", problem.Message, `pool "p" has no free IPv4 address: 1 are held, 0 cool down, 6 are reserved`)
	s := w.status("p")
	same(t, "reserved", s.Reserved, 6)
	same(t, "used", s.Used, 1)
	same(t, "free", s.Free, 6)
	w.configure(pools(pool("q", "198.51.100.0/28")))
	same(t, "reserved in the removed pool", w.status("p").Reserved, 6)
	w.release("web")
	w.cool()
	same(t, "the pool is shown as long as it has reservations", w.status("p").Removed, true)
	notice := w.status("p").Alarms[0]
	same(t, "notice", notice.Message, `pool "p" is not in the configuration any more; of its addresses, 0 are held, 0 cool down, 6 are reserved`)
	same(t, "its hint", notice.Hint, "add the pool again, or end its reservations: ironvip vip release ADDRESS")
	w.unreserve("192.0.2.1")
	same(t, "reserved", w.status("p").Reserved, 5)
}

func TestReservationRefused(t *testing.T) {
	cfg := pools(ipam.Pool{Name: "p", CIDRs: prefixes("192.0.2.0/24"), Exclude: prefixes("192.0.2.64/28"), AutoAssign: true}, pool("v4", "198.51.100.0/28"))
	w := newWorld(t, cfg)
	w.a.SetPodCIDRs("kubernetes", prefixes("192.0.2.128/28"))
	w.get("web", requests("192.0.2.1"))
	w.get("old", requests("192.0.2.2"))
	w.release("old")
	w.reserve("192.0.2.3", "")
	w.reserve("192.0.2.4", "web")
	for _, c := range []struct {
		what ipam.Reserving
		code string
		want string
	}{
		{ipam.Reserving{Addr: addr("10.0.0.1")}, vip.CodeOutsidePool, "10.0.0.1 is in no pool"},
		{ipam.Reserving{Addr: addr("192.0.2.65")}, vip.CodeOutsidePool, `192.0.2.65 is excluded from pool "p" by 192.0.2.64/28`},
		{ipam.Reserving{Addr: addr("192.0.2.130")}, vip.CodeOverlap, "192.0.2.130 is held out of pool"},
		{ipam.Reserving{Addr: addr("192.0.2.1")}, vip.CodeAddressTaken, `192.0.2.1 is held by service "web" of source static since`},
		{ipam.Reserving{Addr: addr("192.0.2.1"), For: key("db")}, vip.CodeAddressTaken, `is held by service "web"`},
		{ipam.Reserving{Addr: addr("192.0.2.2"), For: key("db")}, vip.CodeAddressTaken, `192.0.2.2 was released by service "old" and is kept for it until`},
		{ipam.Reserving{Addr: addr("192.0.2.2")}, vip.CodeAddressTaken, `was released by service "old"`},
		{ipam.Reserving{Addr: addr("192.0.2.3")}, vip.CodeAddressTaken, "192.0.2.3 is reserved since"},
		{ipam.Reserving{Addr: addr("192.0.2.4"), For: key("web")}, vip.CodeAddressTaken, `192.0.2.4 is reserved for service "web" since`},
		{ipam.Reserving{Pool: "none"}, vip.CodeNoPool, `there is no pool "none"`},
		{ipam.Reserving{Pool: "v4", Family: vip.IPv6}, vip.CodeNoPool, `pool "v4" has no IPv6 range`},
	} {
		_, err := w.a.Reserve(t.Context(), c.what)
		if p, _ := errors.AsType[vip.Problem](err); p.Code != c.code || !strings.Contains(p.Message, c.want) || p.Hint == "" || p.Field == "" {
			t.Errorf("%+v: %+v, want %s %q", c.what, err, c.code, c.want)
		}
	}
	for a, want := range map[string]string{
		"192.0.2.1": `address: 192.0.2.1 is held by service "web" of source static since 2026-11-08T12:00:00Z, and is not reserved`,
		"192.0.2.2": `address: 192.0.2.2 is not reserved: it was released by service "old" and is kept for it until 2026-11-08T12:05:00Z`,
		"192.0.2.9": "not reserved",
	} {
		_, err := w.a.Unreserve(t.Context(), addr(a))
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v", a, err)
		}
	}
	w.durable()
	w.store.Fail(errFull)
	_, err := w.a.Reserve(t.Context(), ipam.Reserving{Addr: addr("192.0.2.9")})
	expect.Is(t, err, ipam.ErrUnavailable)
	same(t, "state", w.state("192.0.2.9"), "free")
}

// A waiting service gets what is reserved for it.
func TestReservationWakesItsService(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.1/32")))
	w.get("old")
	w.release("old")
	w.refused(vip.CodePoolFull, "1 cool down", "web")
	w.cool()
	waiting := w.a.Freed()
	w.reserve("192.0.2.1", "web")
	expect.True(t, freed(waiting), "it isn't woken")
	w.refused(vip.CodePoolFull, "1 are reserved", "db")
	same(t, "address", w.get("web"), "192.0.2.1")
}

// The pool of a service is the one with the lowest address that is reserved for it and that it can
// get, whatever name the pool had when the address was reserved.
func TestReservationChoosesThePool(t *testing.T) {
	auto, other := pool("auto", "192.0.2.0/28", "2001:db8::/124"), ipam.Pool{Name: "other", CIDRs: prefixes("198.51.100.0/28")}
	without := func(p ipam.Pool, exclude string) ipam.Pool {
		p.Exclude = prefixes(exclude)
		return p
	}
	renamed := ipam.Pool{Name: "renamed", CIDRs: other.CIDRs}
	for name, c := range map[string]struct {
		reserved []string
		after    ipam.Config
		service  []change
		want     string
	}{
		"another pool":   {[]string{"198.51.100.9"}, pools(auto, other), nil, "198.51.100.9"},
		"excluded now":   {[]string{"198.51.100.9"}, pools(auto, without(other, "198.51.100.9/32")), nil, "192.0.2.1 2001:db8::1"},
		"another family": {[]string{"198.51.100.9"}, pools(auto, other), []change{families(vip.IPv6)}, "2001:db8::1"},
		"renamed":        {[]string{"198.51.100.9"}, pools(auto, renamed), nil, "198.51.100.9"},
		"the lowest":     {[]string{"198.51.100.9", "192.0.2.9", "198.51.100.2"}, pools(other, auto), []change{families(vip.IPv4)}, "192.0.2.9"},
		"the next one":   {[]string{"198.51.100.9", "192.0.2.9"}, pools(without(auto, "192.0.2.8/29"), other), nil, "198.51.100.9"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, pools(auto, other))
			for _, a := range c.reserved {
				w.reserve(a, "web")
			}
			w.configure(c.after)
			same(t, "address", w.get("web", c.service...), c.want)
		})
	}
}

// A held address keeps its reservation if its lease vanishes from the store, also while the store
// can't read it and from a pool without auto_assign.
func TestReservationOfAVanishedLease(t *testing.T) {
	cfg := pools(pool("p", "192.0.2.0/28"), ipam.Pool{Name: "q", CIDRs: prefixes("198.51.100.0/28")})
	for name, damaged := range map[string]bool{"removed": false, "unreadable and then removed": true} {
		t.Run(name, func(t *testing.T) {
			together(t, cfg, func(_ *election, a, _ *world) {
				blocked := &blocking{Store: a.store}
				c := &world{t: t, store: a.store, cfg: cfg}
				c.with(blocked, allocator.Options{Node: "lb3"})
				defer c.start()()
				a.reserve("198.51.100.9", "web")
				same(t, "address", a.get("web"), "198.51.100.9")
				pass(0)
				same(t, "here", c.state("198.51.100.9"), "held web, reserved web")
				lease, _ := a.lease("198.51.100.9")
				if damaged {
					blocked.later(ipam.LeaseChange{Resource: lease.Resource, Lease: &ipam.Lease{
						Resource: lease.Resource, State: ipam.Blocked, Reason: "junk", Holders: []ipam.Holder{{Service: key("web")}}}})
					a.get("other") // which the store reports with it
					pass(0)
					got := c.assign(service("web"))[0]
					if vips(got) != "198.51.100.9" || !got.Reserved[0] || len(got.Problems) != 1 {
						t.Errorf("while it is unreadable: %+v", got)
					}
				}
				must.Succeed(t, a.store.Commit(t.Context(), []ipam.Op{{Old: &lease}}))
				pass(0)
				same(t, "vanished", c.state("198.51.100.9"), "free")
				same(t, "claimed back", c.get("web"), "198.51.100.9")
				same(t, "state", c.state("198.51.100.9"), "held web, reserved web")
			})
		})
	}
}
