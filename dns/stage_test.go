package dns

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/dnstest"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func settings() zone.Settings {
	return zone.Settings{Domain: "vip.internal", TTL: 30 * time.Second, NegativeTTL: time.Second, ShortNames: true, Reverse: true,
		Pools: []netip.Prefix{netip.MustParsePrefix("10.64.0.0/16")}, Servers: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
}

// world is a running Stage and the tables that it reads.
type world struct {
	testing.TB
	*Stage
	*dnstest.Tables
	end func() // ends Run
}

var key = dnstest.Key

func newWorld(t testing.TB) *world { return newWorldWith(t, nil, nil) }

// newWorldWith creates a world whose contested names survive in a store.
func newWorldWith(t testing.TB, store ContestedStore, log *slog.Logger) *world {
	w := &world{TB: t, Tables: dnstest.NewTables()}
	w.Stage = newStage(t, w.Tables, store, log)
	w.end = scope.Go(t, w.Run)
	return w
}

// newStage returns a Stage that doesn't run.
func newStage(t testing.TB, tables *dnstest.Tables, store ContestedStore, log *slog.Logger) *Stage {
	return must.Get(New(Options{Settings: settings(), Clock: tables.Clock, Services: tables.Services, Allocations: tables.Allocations, Leases: tables.Leases, Store: store, Log: log}))(t)
}

// answer returns the code and the addresses of a name.
func (s *Stage) answer(t testing.TB, name string, qtype uint16) string {
	var m dns.Msg
	m.SetQuestion(dns.Fqdn(name), qtype)
	reply, _ := s.Answer(must.Get(m.Pack())(t), false)
	must.Succeed(t, m.Unpack(reply))
	return dnstest.Short(&m)
}

// await waits until a name has an answer.
func (w *world) await(name, want string) {
	w.Helper()
	wait.For(w, name, func() error {
		if got := w.answer(w, name, dns.TypeA); got != want {
			return fmt.Errorf("%s, want %s", got, want)
		}
		return nil
	})
}

// check asks at once.
func (w *world) check(name, want string) {
	w.Helper()
	expect.Equal(w, w.answer(w, name, dns.TypeA), want, "%s", name)
}

// From the start of the process, a name of the last run is answered with the addresses of its leases,
// then with its allocation. An unknown name is answered with NXDOMAIN only when every source has
// listed its services.
func TestStart(t *testing.T) {
	w := newWorld(t)
	w.check("web.vip.internal", "SERVFAIL")
	w.Lease("10.64.0.2", 2, ipam.Held, "web", "prod/gone")
	w.Lease("2001:db8::1", 1, ipam.Held, "web")
	w.Lease("10.64.0.9", 1, ipam.Cooling, "cold")
	w.Lease("10.64.0.8", 1, ipam.Blocked, "odd")
	w.Leases.Set(&ipam.Lease{Resource: ipam.Resource{NodePort: 30080, Protocol: vip.TCP}, State: ipam.Held, Holders: []ipam.Holder{{Service: key("port")}}})
	w.Lease("10.64.0.3", 3, ipam.Held, "moved")
	w.await("moved.vip.internal", "NOERROR 10.64.0.3")
	w.check("web.vip.internal", "NOERROR 10.64.0.2")
	w.check("gone.prod.svc.vip.internal", "NOERROR 10.64.0.2")
	for _, unknown := range []string{"cold.vip.internal", "odd.vip.internal", "port.vip.internal", "shop.example.com"} {
		w.check(unknown, "SERVFAIL")
	}
	expect.Equal(t, w.answer(t, "web.vip.internal", dns.TypeAAAA), "NOERROR 2001:db8::1", "AAAA")

	// A lease that changes while the sources are still silent.
	w.Lease("10.64.0.3", 3, ipam.Cooling, "moved")
	w.await("moved.vip.internal", "SERVFAIL")
	w.Lease("10.64.0.4", 4, ipam.Held, "moved")
	w.await("moved.vip.internal", "NOERROR 10.64.0.4")

	// Its source lists a service, whose allocation comes later.
	w.Service("web", "shop.example.com")
	w.await("shop.example.com", "NOERROR 10.64.0.2")
	w.Service("fresh")
	w.await("fresh.default.svc.vip.internal", "SERVFAIL")
	w.Allocate("fresh", 9, "10.64.0.20")
	w.await("fresh.vip.internal", "NOERROR 10.64.0.20")

	// Every source has listed its services: the others are gone. The allocation of web still comes.
	select {
	case <-w.Synced():
		t.Error("synced before the sources")
	default:
	}
	w.Listed()
	<-w.Synced()
	w.check("gone.prod.svc.vip.internal", "NXDOMAIN")
	w.check("moved.vip.internal", "NXDOMAIN")
	w.check("www.example.com", "REFUSED")
	w.check("web.vip.internal", "NOERROR 10.64.0.2")

	w.Service("second")
	w.Granted()
	w.await("web.vip.internal", "SERVFAIL") // complete, and none for it
	w.Allocate("web", 1, "10.64.0.2")
	w.await("web.vip.internal", "NOERROR 10.64.0.2")
	w.Lease("10.64.0.5", 1, ipam.Held, "second")
	w.Allocate("web", 1, "10.64.0.6")
	w.await("web.vip.internal", "NOERROR 10.64.0.6")
	w.check("second.vip.internal", "SERVFAIL") // leases have no effect any more
}

// ready is a world in which every source has listed its services.
func ready(t testing.TB) *world {
	w := newWorld(t)
	w.Listed()
	w.Granted()
	<-w.Synced()
	return w
}

func TestChanges(t *testing.T) {
	w := ready(t)
	w.Service("web", "shop.example.com")
	w.Allocate("web", 1, "10.64.0.1")
	w.await("web.vip.internal", "NOERROR 10.64.0.1")
	w.check("shop.example.com", "NOERROR 10.64.0.1")
	expect.Equal(t, w.answer(t, "1.0.64.10.in-addr.arpa", dns.TypePTR), "NOERROR web.default.svc.vip.internal.", "PTR")
	for code, want := range map[string]string{vip.CodeWaiting: "SERVFAIL", vip.CodeStore: "SERVFAIL", vip.CodePoolFull: "NOERROR"} {
		w.Allocations.Set(vip.Allocation{Asked: &vip.Service{Key: key("web")}, Problems: []vip.Problem{{Code: code}}})
		w.await("web.vip.internal", want)
		w.Allocate("web", 1, "10.64.0.1")
		w.await("web.vip.internal", "NOERROR 10.64.0.1")
	}
	w.Allocations.Delete(key("web"))
	w.Services.Delete(key("web"))
	w.await("web.vip.internal", "NXDOMAIN")
	w.Allocate("web", 1, "10.64.0.1") // of a service that is gone
	w.Service("db")
	w.Allocate("db", 2, "10.64.0.2")
	w.await("db.vip.internal", "NOERROR 10.64.0.2")
	w.check("web.vip.internal", "NXDOMAIN")
	if names := slices.Collect(w.Names()); len(names) != 2 || names[0].Name != "db.default.svc.vip.internal" || names[1].Name != "db.vip.internal" {
		t.Errorf("names %v", names)
	}
	if w.Len() != 4 { // also of the port and the address
		t.Errorf("%d names", w.Len())
	}
	if e, err := w.Explain("db.vip.internal", dns.TypeA); err != nil || e.Service != key("db") || e.Why != zone.Found {
		t.Errorf("%+v, %v", e, err)
	}
}

// Two services claim one hostname. The table has the claim that lost, until it wins.
func TestConflicts(t *testing.T) {
	w := ready(t)
	w.Service("old", "shop.example.com")
	w.Service("young", "shop.example.com", "vip.internal")
	w.Allocate("young", 2, "10.64.0.2")
	w.await("young.vip.internal", "NOERROR 10.64.0.2")
	w.Allocate("old", 1, "10.64.0.1")
	w.await("shop.example.com", "NOERROR 10.64.0.1")
	lost := zone.ConflictKey{Name: "shop.example.com", Service: key("young")}
	wait.Until(t, "the conflict", func() bool {
		c, _, ok := w.Conflicts().Get(lost)
		return ok && c.Winner == key("old")
	})
	if c, _, ok := w.Conflicts().Get(zone.ConflictKey{Name: "vip.internal", Service: key("young")}); !ok || c.Winner != (vip.ServiceKey{}) {
		t.Errorf("reserved name: %+v, %v", c, ok)
	}
	w.Services.Delete(key("old"))
	w.await("shop.example.com", "NOERROR 10.64.0.2")
	wait.Until(t, "the end of the conflict", func() bool { return w.Conflicts().Row(lost) == nil })
}

// While nobody answers, no claim is a conflict, and no name is lost.
func TestNoConflictsWithoutServer(t *testing.T) {
	w := ready(t)
	w.Service("young", "vip.internal")
	wait.Until(t, "the conflict", func() bool { return w.Conflicts().Len() == 1 })
	lost := func(want int) {
		t.Helper()
		got := 0
		for n := range w.Names() {
			if n.Lost {
				got++
			}
		}
		expect.Equal(t, got, want, "names are lost")
	}
	lost(1)
	off := settings()
	off.Servers = nil
	must.Succeed(t, w.Reconfigure(off))
	w.Service("other", "svc.vip.internal")
	w.Allocate("other", 1, "10.64.0.2")
	w.await("other.vip.internal", "NOERROR 10.64.0.2")
	expect.Equal(t, w.Conflicts().Len(), 0, "conflicts without a server")
	lost(0)
	must.Succeed(t, w.Reconfigure(settings()))
	expect.Equal(t, w.Conflicts().Len(), 2, "conflicts with a server again")
	lost(2)
}

// A conflict that new settings bring is in the table only when the zone answers by them.
func TestReconfigureReportsWhatIsAnswered(t *testing.T) {
	tables := dnstest.NewTables()
	tables.Service("web", "vip.test")
	tables.Allocate("web", 1, "10.64.0.1")
	s := newStage(t, tables, nil, nil)
	reports := 0
	s.conflicts = table.New(tables.Clock, func(c *zone.Conflict) zone.ConflictKey {
		if reports++; s.answer(t, "web.vip.test", dns.TypeA) != "NOERROR 10.64.0.1" {
			t.Errorf("conflict %v before the zone", c)
		}
		return c.ConflictKey
	}, nil)
	changed := settings()
	changed.Domain = "vip.test"
	must.Succeed(t, s.Reconfigure(changed))
	if reports == 0 || s.Conflicts().Len() != 1 {
		t.Errorf("%d reports, %d conflicts", reports, s.Conflicts().Len())
	}
}

// When the sources have listed their services, the zone gets only those that are gone or have lost
// their addresses, not all of them again.
func TestCostOfTheStart(t *testing.T) {
	const known, gone, refused = 2000, 1100, 3
	tables := dnstest.NewTables()
	s := newStage(t, tables, nil, nil)
	touched := make(map[vip.ServiceKey]bool)
	for i := range known + gone {
		k := key(fmt.Sprint("s", i))
		addr := netip.AddrFrom4([4]byte{10, 64, byte(i >> 8), byte(i)})
		s.leased.set(&ipam.Lease{Resource: ipam.Resource{Addr: addr}, State: ipam.Held, Holders: []ipam.Holder{{Service: k}}}, false, touched)
		if i >= known {
			continue
		}
		tables.Service(k.Name)
		if i >= refused {
			tables.Allocate(k.Name, 0, addr.String())
		}
	}
	s.apply(s.changes(touched))
	for _, c := range []struct {
		complete bool
		want     int
	}{{false, gone}, {true, gone + refused}} {
		s.applied = 0
		if !s.finish(c.complete) || s.applied != c.want {
			t.Errorf("complete %v: %d changes, want %d", c.complete, s.applied, c.want)
		}
	}
	for name, want := range map[string]string{"s0": "SERVFAIL", "s3": "NOERROR 10.64.0.3", "s1999": "NOERROR 10.64.7.207", "s2000": "NXDOMAIN", "s3099": "NXDOMAIN"} {
		expect.Equal(t, s.answer(t, name+".vip.internal", dns.TypeA), want, "%s", name)
	}
}

// New settings take effect as a whole.
func TestReconfigure(t *testing.T) {
	w := newWorld(t)
	w.Lease("10.64.0.3", 3, ipam.Held, "leased")
	w.Service("web", "vip.internal", "db.vip.test", "shop.example.com")
	w.Service("other", "shop.example.com")
	w.Allocate("web", 1, "10.64.0.1")
	w.await("web.vip.internal", "NOERROR 10.64.0.1")
	w.await("leased.vip.internal", "NOERROR 10.64.0.3")
	changed := settings()
	changed.Domain, changed.TTL, changed.Reverse = "vip.test", 10*time.Second, false
	must.Succeed(t, w.Reconfigure(changed))
	w.check("web.vip.test", "NOERROR 10.64.0.1")
	w.check("leased.vip.test", "NOERROR 10.64.0.3")
	w.check("db.vip.test", "NOERROR 10.64.0.1")
	w.check("web.vip.internal", "SERVFAIL")
	var lost []string
	for k, c := range w.Conflicts().All() {
		lost = append(lost, fmt.Sprint(k.Name, " ", k.Service, " ", c.Winner.Name))
	}
	expect.SameList(t, lost, []string{"shop.example.com other web"}, "conflicts")
	w.Listed()
	w.Granted()
	<-w.Synced()
	w.check("db.vip.internal", "NXDOMAIN") // below a hostname
	w.check("web.example.com", "REFUSED")
	w.check("leased.vip.test", "NXDOMAIN")
	bad := settings()
	bad.Domain = ""
	expect.True(t, w.Reconfigure(bad) != nil, "an empty domain is accepted")
	must.Succeed(t, w.Reconfigure(settings()))
	w.check("web.vip.internal", "NOERROR 10.64.0.1")
	w.check("none.vip.internal", "NXDOMAIN")
	w.Service("later")
	w.await("later.vip.internal", "SERVFAIL")
}

// Services change all the time: the hostname moves between two of them, and each gets other
// addresses. Each answer is one that the name had at some time during the query, and never the
// address of another service.
func TestAnswersDuringRenames(t *testing.T) {
	const renames = 200
	w := ready(t)
	for i := range 200 { // other services, whose addresses must not appear
		name := fmt.Sprintf("other-%d", i)
		w.Service(name)
		w.Allocate(name, 1, fmt.Sprintf("10.64.1.%d", i))
	}
	w.Allocate("a", 1, "10.64.0.1")
	w.Allocate("b", 2, "10.64.0.2")
	w.Services.SetAll([]vip.Service{{Key: key("a"), Hostnames: vip.HostnamesOf("shop.example.com")}, {Key: key("b")}})
	w.await("shop.example.com", "NOERROR 10.64.0.1")
	w.await("other-199.vip.internal", "NOERROR 10.64.1.199")

	var stop atomic.Bool
	var asked atomic.Int64
	var seen atomic.Value // the last answer of a reader
	seen.Store("")
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for !stop.Load() {
				got := w.answer(t, "shop.example.com", dns.TypeA)
				if got != "NOERROR 10.64.0.1" && got != "NOERROR 10.64.0.2" {
					t.Errorf("shop.example.com: %s", got)
					return
				}
				seen.Store(got)
				if got := w.answer(t, "churn.vip.internal", dns.TypeA); got != "NXDOMAIN" && got != "SERVFAIL" && got != "NOERROR 10.64.0.3" && got != "NOERROR 10.64.0.4" {
					t.Errorf("churn.vip.internal: %s", got)
					return
				}
				asked.Add(1)
			}
		})
	}
	for i := range renames {
		holder, other, addr := "a", "b", "10.64.0.1"
		if i%2 == 0 {
			holder, other, addr = "b", "a", "10.64.0.2"
		}
		w.Services.SetAll([]vip.Service{{Key: key(other)}, {Key: key(holder), Hostnames: vip.HostnamesOf("shop.example.com")}})
		switch i % 4 {
		case 0:
			w.Service("churn")
		case 1:
			w.Allocate("churn", 3, "10.64.0.3")
		case 2:
			w.Allocate("churn", 3, "10.64.0.4")
		case 3:
			w.Services.Delete(key("churn"))
			w.Allocations.Delete(key("churn"))
		}
		if i%9 == 0 { // else the readers would see few of them on one core
			wait.Until(t, "the move", func() bool { return seen.Load() == "NOERROR "+addr || t.Failed() })
		}
	}
	w.await("shop.example.com", "NOERROR 10.64.0.1")
	stop.Store(true)
	readers.Wait()
	expect.AtLeast(t, asked.Load(), renames/9, "queries")
	expect.Equal(t, w.Conflicts().Len(), 0, "conflicts remain")
}

// When the stage is loaded, it answers the names of services whose leases were there at its start.
func TestLoaded(t *testing.T) {
	tables := dnstest.NewTables()
	for i := range 2000 { // more than a batch of a feed
		tables.Lease(fmt.Sprintf("10.64.%d.%d", i>>8, i&0xff), 1, ipam.Held, fmt.Sprint("s", i))
	}
	s := newStage(t, tables, nil, nil)
	expect.False(t, table.IsClosed(s.Loaded()), "loaded before Run")
	scope.Go(t, s.Run)
	<-s.Loaded()
	for _, i := range []int{0, 1999} {
		if got, want := s.answer(t, fmt.Sprintf("s%d.vip.internal", i), dns.TypeA), fmt.Sprintf("NOERROR 10.64.%d.%d", i>>8, i&0xff); got != want {
			t.Errorf("s%d: %s, want %s", i, got, want)
		}
	}
}
