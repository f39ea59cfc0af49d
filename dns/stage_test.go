package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/ironvip/ironvip/dns/message"
	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
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
	services    *table.Table[vip.ServiceKey, vip.Service]
	allocations *table.Table[vip.ServiceKey, vip.Allocation]
	leases      *table.Table[ipam.Resource, *ipam.Lease]
	listed      func() // marks services as complete
	granted     func() // marks allocations as complete
	end         func() // ends Run
}

func newWorld(t testing.TB) *world { return newWorldWith(t, nil) }

// newWorldWith creates a world whose contested names survive in a store.
func newWorldWith(t testing.TB, store ContestedStore) *world {
	clock := &table.Clock{}
	w := &world{TB: t,
		services:    table.New(clock, vip.KeyOfService, nil),
		allocations: table.New(clock, vip.KeyOfAllocation, nil),
		leases:      table.New(clock, func(l **ipam.Lease) ipam.Resource { return (*l).Resource }, nil),
	}
	w.listed, w.granted = w.services.Initializer(), w.allocations.Initializer()
	var err error
	if w.Stage, err = New(Options{Settings: settings(), Clock: clock, Services: w.services, Allocations: w.allocations, Leases: w.leases, Store: store}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	w.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(w.end)
	return w
}

func key(s string) vip.ServiceKey {
	k, err := vip.ParseServiceKey(s)
	if err != nil {
		panic(err)
	}
	return k
}

func (w *world) service(name string, hostnames ...string) {
	w.services.Set(vip.Service{Key: key(name), Hostnames: vip.HostnamesOf(hostnames...), Ports: []vip.Port{{Name: "http", Protocol: vip.TCP, Port: 80}}})
}

// allocate grants addresses to a service.
func (w *world) allocate(name string, since int, vips ...string) {
	a := vip.Allocation{Asked: &vip.Service{Key: key(name)}, Since: vip.Instant(since)}
	for _, v := range vips {
		a.VIPs = append(a.VIPs, netip.MustParseAddr(v))
	}
	w.allocations.Set(a)
}

// lease stores a lease.
func (w *world) lease(addr string, since int, state ipam.LeaseState, holders ...string) {
	l := &ipam.Lease{Resource: ipam.Resource{Addr: netip.MustParseAddr(addr)}, State: state, Since: vip.Instant(since)}
	for _, h := range holders {
		l.Holders = append(l.Holders, ipam.Holder{Service: key(h)})
	}
	w.leases.Set(l)
}

// answer returns the code and the addresses of a name.
func (s *Stage) answer(t testing.TB, name string, qtype uint16) string {
	wire, err := message.PackName(nil, name)
	if err != nil {
		t.Fatal(err)
	}
	reply, _ := s.Answer(nil, message.NewQuery(1, wire, message.Type(qtype)), false)
	var m dns.Msg
	if err := m.Unpack(reply); err != nil {
		t.Fatal(err)
	}
	text := dns.RcodeToString[m.Rcode]
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			text += " " + rr.A.String()
		case *dns.AAAA:
			text += " " + rr.AAAA.String()
		case *dns.PTR:
			text += " " + rr.Ptr
		case *dns.SRV:
			text += " " + rr.Target
		}
	}
	return text
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
	if got := w.answer(w, name, dns.TypeA); got != want {
		w.Errorf("%s: %s, want %s", name, got, want)
	}
}

// From the start of the process, a name of the last run is answered with the addresses of its leases,
// then with its allocation. What is unknown doesn't exist only when every source has listed its
// services.
func TestStart(t *testing.T) {
	w := newWorld(t)
	w.check("web.vip.internal", "SERVFAIL")
	w.lease("10.64.0.2", 2, ipam.Held, "web", "prod/gone")
	w.lease("2001:db8::1", 1, ipam.Held, "web")
	w.lease("10.64.0.9", 1, ipam.Cooling, "cold")
	w.lease("10.64.0.8", 1, ipam.Blocked, "odd")
	w.leases.Set(&ipam.Lease{Resource: ipam.Resource{NodePort: 30080, Protocol: vip.TCP}, State: ipam.Held, Holders: []ipam.Holder{{Service: key("port")}}})
	w.lease("10.64.0.3", 3, ipam.Held, "moved")
	w.await("moved.vip.internal", "NOERROR 10.64.0.3")
	w.check("web.vip.internal", "NOERROR 10.64.0.2")
	w.check("gone.prod.svc.vip.internal", "NOERROR 10.64.0.2")
	for _, unknown := range []string{"cold.vip.internal", "odd.vip.internal", "port.vip.internal", "shop.example.com"} {
		w.check(unknown, "SERVFAIL")
	}
	if got := w.answer(t, "web.vip.internal", dns.TypeAAAA); got != "NOERROR 2001:db8::1" {
		t.Errorf("AAAA: %s", got)
	}

	// A lease that changes while the sources are still silent.
	w.lease("10.64.0.3", 3, ipam.Cooling, "moved")
	w.await("moved.vip.internal", "SERVFAIL")
	w.lease("10.64.0.4", 4, ipam.Held, "moved")
	w.await("moved.vip.internal", "NOERROR 10.64.0.4")

	// Its source lists a service, whose allocation comes later.
	w.service("web", "shop.example.com")
	w.await("shop.example.com", "NOERROR 10.64.0.2")
	w.service("fresh")
	w.await("fresh.vip.internal", "NOERROR")
	w.allocate("fresh", 9, "10.64.0.20")
	w.await("fresh.vip.internal", "NOERROR 10.64.0.20")

	// Every source has listed its services: the others are gone. The allocation of web still comes.
	select {
	case <-w.Synced():
		t.Error("synced before the sources")
	default:
	}
	w.listed()
	<-w.Synced()
	w.check("gone.prod.svc.vip.internal", "NXDOMAIN")
	w.check("moved.vip.internal", "NXDOMAIN")
	w.check("www.example.com", "REFUSED")
	w.check("web.vip.internal", "NOERROR 10.64.0.2")

	w.service("second")
	w.granted()
	w.await("web.vip.internal", "NOERROR") // complete, and none for it
	w.allocate("web", 1, "10.64.0.2")
	w.await("web.vip.internal", "NOERROR 10.64.0.2")
	w.lease("10.64.0.5", 1, ipam.Held, "second")
	w.allocate("web", 1, "10.64.0.6")
	w.await("web.vip.internal", "NOERROR 10.64.0.6")
	w.check("second.vip.internal", "NOERROR") // leases have no effect any more
}

// ready is a world in which every source has listed its services.
func ready(t testing.TB) *world {
	w := newWorld(t)
	w.listed()
	w.granted()
	<-w.Synced()
	return w
}

func TestChanges(t *testing.T) {
	w := ready(t)
	w.service("web", "shop.example.com")
	w.allocate("web", 1, "10.64.0.1")
	w.await("web.vip.internal", "NOERROR 10.64.0.1")
	w.check("shop.example.com", "NOERROR 10.64.0.1")
	if got := w.answer(t, "1.0.64.10.in-addr.arpa", dns.TypePTR); got != "NOERROR web.default.svc.vip.internal." {
		t.Errorf("PTR: %s", got)
	}
	w.allocations.Delete(key("web"))
	w.await("web.vip.internal", "NOERROR")
	w.services.Delete(key("web"))
	w.await("web.vip.internal", "NXDOMAIN")
	w.allocate("web", 1, "10.64.0.1") // of a service that is gone
	w.service("db")
	w.allocate("db", 2, "10.64.0.2")
	w.await("db.vip.internal", "NOERROR 10.64.0.2")
	w.check("web.vip.internal", "NXDOMAIN")
	if names := slices.Collect(w.Names()); len(names) != 2 || names[0].Name != "db.default.svc.vip.internal" || names[1].Name != "db.vip.internal" {
		t.Errorf("names %v", names)
	}
	if w.Len() != 4 { // also of the port and the address
		t.Errorf("%d names", w.Len())
	}
	if e, err := w.Explain("db.vip.internal", message.A); err != nil || e.Service != key("db") || e.Why != zone.Found {
		t.Errorf("%+v, %v", e, err)
	}
}

// Two services claim one hostname. The table has the claim that lost, until it wins.
func TestConflicts(t *testing.T) {
	w := ready(t)
	w.service("old", "shop.example.com")
	w.service("young", "shop.example.com", "vip.internal")
	w.allocate("young", 2, "10.64.0.2")
	w.await("young.vip.internal", "NOERROR 10.64.0.2")
	w.allocate("old", 1, "10.64.0.1")
	w.await("shop.example.com", "NOERROR 10.64.0.1")
	lost := zone.ConflictKey{Name: "shop.example.com", Service: key("young")}
	wait.Until(t, "the conflict", func() bool {
		c, _, ok := w.Conflicts().Get(lost)
		return ok && c.Winner == key("old")
	})
	if c, _, ok := w.Conflicts().Get(zone.ConflictKey{Name: "vip.internal", Service: key("young")}); !ok || c.Winner != (vip.ServiceKey{}) {
		t.Errorf("reserved name: %+v, %v", c, ok)
	}
	began := w.ConflictsRevision(key("young"))
	if _, rev, _ := w.Conflicts().Get(lost); began < rev {
		t.Errorf("revision %d of the service, %d of its conflict", began, rev)
	}
	w.services.Delete(key("old"))
	w.await("shop.example.com", "NOERROR 10.64.0.2")
	wait.Until(t, "the end of the conflict", func() bool { return w.Conflicts().Row(lost) == nil })
	if ended := w.ConflictsRevision(key("young")); ended <= began {
		t.Errorf("revision %d of the end, %d of the beginning", ended, began)
	}
	w.services.Delete(key("young"))
	wait.Until(t, "the service is forgotten", func() bool { return w.ConflictsRevision(key("young")) == 0 })
}

// While nobody answers, no claim is a conflict, and no name is lost.
func TestNoConflictsWithoutServer(t *testing.T) {
	w := ready(t)
	w.service("young", "vip.internal")
	wait.Until(t, "the conflict", func() bool { return w.Conflicts().Len() == 1 })
	lost := func(want int) {
		t.Helper()
		got := 0
		for n := range w.Names() {
			if n.Lost {
				got++
			}
		}
		if got != want {
			t.Errorf("%d names are lost, want %d", got, want)
		}
	}
	lost(1)
	off := settings()
	off.Servers = nil
	if err := w.Reconfigure(off); err != nil {
		t.Fatal(err)
	}
	w.service("other", "svc.vip.internal")
	w.allocate("other", 1, "10.64.0.2")
	w.await("other.vip.internal", "NOERROR 10.64.0.2")
	if n := w.Conflicts().Len(); n != 0 {
		t.Errorf("%d conflicts without a server", n)
	}
	lost(0)
	if err := w.Reconfigure(settings()); err != nil {
		t.Fatal(err)
	}
	if n := w.Conflicts().Len(); n != 2 {
		t.Errorf("%d conflicts with a server again", n)
	}
	lost(2)
}

// A conflict that new settings bring is in the table only when the zone answers by them.
func TestReconfigureReportsWhatIsAnswered(t *testing.T) {
	clock := &table.Clock{}
	services := table.New(clock, vip.KeyOfService, nil)
	web := vip.Service{Key: key("web"), Hostnames: vip.HostnamesOf("vip.test")}
	services.Set(web)
	s, err := New(Options{Settings: settings(), Clock: clock, Services: services, Allocations: table.New(clock, vip.KeyOfAllocation, nil),
		Leases: table.New(clock, func(l **ipam.Lease) ipam.Resource { return (*l).Resource }, nil)})
	if err != nil {
		t.Fatal(err)
	}
	reports := 0
	s.conflicts = table.New(clock, func(c *zone.Conflict) zone.ConflictKey {
		if reports++; s.answer(t, "web.vip.test", dns.TypeA) != "NOERROR" {
			t.Errorf("conflict %v before the zone", c)
		}
		return c.ConflictKey
	}, nil)
	changed := settings()
	changed.Domain = "vip.test"
	if err := s.Reconfigure(changed); err != nil {
		t.Fatal(err)
	}
	if reports == 0 || s.Conflicts().Len() != 1 {
		t.Errorf("%d reports, %d conflicts", reports, s.Conflicts().Len())
	}
}

// When the sources have listed their services, the zone gets only those that are gone or have lost
// their addresses, not all of them again.
func TestCostOfTheStart(t *testing.T) {
	const known, gone, refused = 2000, 1100, 3
	clock := &table.Clock{}
	services, allocations := table.New(clock, vip.KeyOfService, nil), table.New(clock, vip.KeyOfAllocation, nil)
	s, err := New(Options{Settings: settings(), Clock: clock, Services: services, Allocations: allocations,
		Leases: table.New(clock, func(l **ipam.Lease) ipam.Resource { return (*l).Resource }, nil)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range known + gone {
		k := key(fmt.Sprint("s", i))
		addr := netip.AddrFrom4([4]byte{10, 64, byte(i >> 8), byte(i)})
		s.leased.set(&ipam.Lease{Resource: ipam.Resource{Addr: addr}, State: ipam.Held, Holders: []ipam.Holder{{Service: k}}}, false, s.touched)
		if i >= known {
			continue
		}
		service := vip.Service{Key: k}
		services.Set(service)
		if i >= refused {
			allocations.Set(vip.Allocation{Asked: &service, VIPs: []netip.Addr{addr}})
		}
	}
	s.apply(s.changes())
	for _, c := range []struct {
		complete bool
		want     int
	}{{false, gone}, {true, gone + refused}} {
		s.applied = 0
		if !s.finish(c.complete) || s.applied != c.want {
			t.Errorf("complete %v: %d changes, want %d", c.complete, s.applied, c.want)
		}
	}
	for name, want := range map[string]string{"s0": "NOERROR", "s3": "NOERROR 10.64.0.3", "s1999": "NOERROR 10.64.7.207", "s2000": "NXDOMAIN", "s3099": "NXDOMAIN"} {
		if got := s.answer(t, name+".vip.internal", dns.TypeA); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// New settings take effect as a whole.
func TestReconfigure(t *testing.T) {
	w := newWorld(t)
	w.lease("10.64.0.3", 3, ipam.Held, "leased")
	w.service("web", "vip.internal", "db.vip.test", "shop.example.com")
	w.service("other", "shop.example.com")
	w.allocate("web", 1, "10.64.0.1")
	w.await("web.vip.internal", "NOERROR 10.64.0.1")
	w.await("leased.vip.internal", "NOERROR 10.64.0.3")
	changed := settings()
	changed.Domain, changed.TTL, changed.Reverse = "vip.test", 10*time.Second, false
	if err := w.Reconfigure(changed); err != nil {
		t.Fatal(err)
	}
	w.check("web.vip.test", "NOERROR 10.64.0.1")
	w.check("leased.vip.test", "NOERROR 10.64.0.3")
	w.check("db.vip.test", "NOERROR 10.64.0.1")
	w.check("web.vip.internal", "SERVFAIL")
	var lost []string
	for k, c := range w.Conflicts().All() {
		lost = append(lost, fmt.Sprint(k.Name, " ", k.Service, " ", c.Winner.Name))
	}
	if !slices.Equal(lost, []string{"shop.example.com other web"}) {
		t.Errorf("conflicts %q", lost)
	}
	w.listed()
	w.granted()
	<-w.Synced()
	w.check("db.vip.internal", "NXDOMAIN") // below a hostname
	w.check("web.example.com", "REFUSED")
	w.check("leased.vip.test", "NXDOMAIN")
	bad := settings()
	bad.Domain = ""
	if err := w.Reconfigure(bad); err == nil {
		t.Error("an empty domain is accepted")
	}
	if err := w.Reconfigure(settings()); err != nil {
		t.Fatal(err)
	}
	w.check("web.vip.internal", "NOERROR 10.64.0.1")
	w.check("none.vip.internal", "NXDOMAIN")
	w.service("later")
	w.await("later.vip.internal", "NOERROR")
}

// Services change all the time: the hostname moves between two of them, and each gets other
// addresses. Each answer is one that the name had at some time during the query, and never the
// address of another service.
func TestAnswersDuringRenames(t *testing.T) {
	const renames = 1000
	w := ready(t)
	for i := range 200 { // other services, whose addresses must not appear
		name := fmt.Sprintf("other-%d", i)
		w.service(name)
		w.allocate(name, 1, fmt.Sprintf("10.64.1.%d", i))
	}
	w.allocate("a", 1, "10.64.0.1")
	w.allocate("b", 2, "10.64.0.2")
	w.services.SetAll([]vip.Service{{Key: key("a"), Hostnames: vip.HostnamesOf("shop.example.com")}, {Key: key("b")}})
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
				if got := w.answer(t, "churn.vip.internal", dns.TypeA); got != "NXDOMAIN" && got != "NOERROR" && got != "NOERROR 10.64.0.3" && got != "NOERROR 10.64.0.4" {
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
		w.services.SetAll([]vip.Service{{Key: key(other)}, {Key: key(holder), Hostnames: vip.HostnamesOf("shop.example.com")}})
		switch i % 4 {
		case 0:
			w.service("churn")
		case 1:
			w.allocate("churn", 3, "10.64.0.3")
		case 2:
			w.allocate("churn", 3, "10.64.0.4")
		case 3:
			w.services.Delete(key("churn"))
			w.allocations.Delete(key("churn"))
		}
		if i%9 == 0 { // else the readers would see few of them on one core
			wait.Until(t, "the move", func() bool { return seen.Load() == "NOERROR "+addr || t.Failed() })
		}
	}
	w.await("shop.example.com", "NOERROR 10.64.0.1")
	stop.Store(true)
	readers.Wait()
	if asked.Load() < renames/9 {
		t.Errorf("%d queries", asked.Load())
	}
	if c := w.Conflicts().Len(); c != 0 {
		t.Errorf("%d conflicts remain", c)
	}
}

// BenchmarkChange measures from a changed allocation to its answer.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := ready(b)
			for i := range n {
				name := fmt.Sprintf("other-%d", i)
				w.service(name)
				w.allocate(name, 1, netip.AddrFrom4([4]byte{10, 65, byte(i >> 8), byte(i)}).String())
			}
			w.service("web")
			w.allocate("web", 1, "10.64.0.1")
			w.await("web.vip.internal", "NOERROR 10.64.0.1")
			query := message.NewQuery(1, []byte("\x03web\x03vip\x08internal\x00"), message.A)
			out := make([]byte, 0, message.MaxUDP)
			for i := 0; b.Loop(); i++ {
				last := byte(2 + i%2)
				w.allocate("web", 1, netip.AddrFrom4([4]byte{10, 64, 0, last}).String())
				for {
					reply, _ := w.Answer(out, query, false)
					if len(reply) > 50 && reply[len(reply)-12] == last { // before OPT
						break
					}
				}
			}
		})
	}
}

// When the stage is loaded, it answers the names of services whose leases were there at its start.
func TestLoaded(t *testing.T) {
	clock := &table.Clock{}
	services := table.New(clock, vip.KeyOfService, nil)
	services.Initializer() // no source has listed its services
	leases := table.New(clock, func(l **ipam.Lease) ipam.Resource { return (*l).Resource }, nil)
	for i := range 2000 { // more than a batch of a feed
		leases.Set(&ipam.Lease{Resource: ipam.Resource{Addr: netip.AddrFrom4([4]byte{10, 64, byte(i >> 8), byte(i)})}, State: ipam.Held,
			Holders: []ipam.Holder{{Service: key(fmt.Sprint("s", i))}}})
	}
	s, err := New(Options{Settings: settings(), Clock: clock, Services: services, Allocations: table.New(clock, vip.KeyOfAllocation, nil), Leases: leases})
	if err != nil {
		t.Fatal(err)
	}
	if table.IsClosed(s.Loaded()) {
		t.Error("loaded before Run")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Loaded()
	for _, i := range []int{0, 1999} {
		if got, want := s.answer(t, fmt.Sprintf("s%d.vip.internal", i), dns.TypeA), fmt.Sprintf("NOERROR 10.64.%d.%d", i>>8, i&0xff); got != want {
			t.Errorf("s%d: %s, want %s", i, got, want)
		}
	}
	cancel()
	<-done
}
