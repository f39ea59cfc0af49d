package allocator_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// model is a world and what a user may rely on in it.
type model struct {
	*world
	t     *rapid.T
	pods  []netip.Prefix
	wants map[string]vip.Service    // as last assigned
	has   map[string]vip.Allocation // as last answered
	fault bool
	// The state before the last answers.
	freed  <-chan struct{}
	leases map[ipam.Resource]*ipam.Lease
}

// Under random services, configurations, store failures and restarts, no resource has two holders, no
// service is moved, nothing is visible that is not stored, and the pools' numbers are right.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		configs := []ipam.Config{
			pools(pool("p", "10.0.0.0/29", "2001:db8::/125"), pool("q", "10.0.1.0/30")),
			pools(pool("q", "10.0.1.0/30"), pool("p", "10.0.0.0/28")),
			pools(ipam.Pool{Name: "p", CIDRs: prefixes("10.0.0.0/29", "10.0.0.8/29"), Exclude: prefixes("10.0.0.2/31"), AutoAssign: true}),
			pools(pool("r", "10.0.0.0/28")),
		}
		for i := range configs {
			configs[i].NodePorts = ipam.PortRange{First: 30000, Last: 30005}
		}
		configs[3].ReuseDelay = 0
		m := &model{t: rt, world: newWorld(t, configs[0]), wants: map[string]vip.Service{}, has: map[string]vip.Allocation{}}
		m.world.t = t
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			before := maps.Collect(m.a.Leases().All())
			switch op := rapid.IntRange(0, 11).Draw(rt, "op"); op {
			case 0, 1, 2, 3, 4:
				m.assignSome()
			case 5:
				name := m.name()
				names := []string{name}
				if other := m.name(); other != name {
					names = append(names, other)
				}
				var gone []ipam.Released
				for _, name := range names {
					cooldown := time.Duration(rapid.IntRange(0, 10).Draw(rt, "drain")) * time.Minute
					gone = append(gone, ipam.Released{Service: key(name), Cooldown: cooldown})
				}
				for i, err := range m.a.Release(t.Context(), gone) {
					if err != nil && !m.fault {
						rt.Fatal(err)
					} else if err == nil {
						delete(m.wants, names[i])
						delete(m.has, names[i])
					}
				}
			case 6:
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 400).Draw(rt, "seconds")) * time.Second)
				if err := m.a.Cool(t.Context()); err != nil && !m.fault {
					rt.Fatal(err)
				}
			case 7:
				m.fault = !m.fault
				if m.store.Fail(nil); m.fault {
					m.store.Fail(errFull)
				}
			case 8:
				m.configure(configs[rapid.IntRange(0, len(configs)-1).Draw(rt, "config")])
				m.pods = rapid.SampledFrom([][]netip.Prefix{nil, prefixes("10.0.0.0/30"), prefixes("2001:db8::/126")}).Draw(rt, "pods")
				m.a.SetPodCIDRs("kubernetes", m.pods)
			case 9:
				m.restart()
				m.a.SetPodCIDRs("kubernetes", m.pods)
			case 10, 11:
				m.reserve()
			}
			m.check(before)
		}
	})
}

func (m *model) name() string {
	return rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(m.t, "name")
}

// some draws a service.
func (m *model) some() vip.Service {
	s := service(m.name(), source(rapid.SampledFrom([]string{"static", "rest"}).Draw(m.t, "source")))
	s.Pool = rapid.SampledFrom([]string{"", "", "p", "q"}).Draw(m.t, "pool")
	s.ShareKey = rapid.SampledFrom([]string{"", "", "k", "j"}).Draw(m.t, "share")
	if s.VIPs = nil; rapid.IntRange(0, 2).Draw(m.t, "requests") == 0 {
		s.VIPs = []netip.Addr{addr(fmt.Sprintf("10.0.%d.%d", rapid.IntRange(0, 1).Draw(m.t, "net"), rapid.IntRange(0, 9).Draw(m.t, "host")))}
	}
	s.Families = rapid.SampledFrom([]vip.Families{0, 0, 0, vip.FamiliesOf(vip.IPv4), vip.FamiliesOf(vip.IPv4, vip.IPv6)}).Draw(m.t, "families")
	s.Ports = nil
	for _, n := range []uint16{80, 443} {
		if rapid.Bool().Draw(m.t, "port") {
			s.Ports = append(s.Ports, tcp(n))
			switch rapid.IntRange(0, 4).Draw(m.t, "node port") {
			case 4:
				s.Ports[len(s.Ports)-1] = tcps(n, n+uint16(rapid.IntRange(1, 400).Draw(m.t, "more")))
			case 0:
				s.Ports[len(s.Ports)-1] = on(tcp(n), 0)
			case 1:
				s.Ports[len(s.Ports)-1] = on(tcp(n), uint16(30000+rapid.IntRange(0, 6).Draw(m.t, "number")))
			}
		}
	}
	if len(s.Ports) == 2 && s.Ports[0].Key().Overlaps(s.Ports[1].Key()) {
		s.Ports = s.Ports[:1] // no service is both
	}
	s.HealthPort = rapid.SampledFrom([]vip.NodePort{{}, {}, {Auto: true}, {Number: 30001}}).Draw(m.t, "health port")
	s.Assigned = rapid.IntRange(0, 3).Draw(m.t, "assigned") == 0
	return s
}

func (m *model) assignSome() {
	var batch []vip.Service
	for range rapid.IntRange(1, 4).Draw(m.t, "batch") {
		s := m.some()
		if former, ok := m.wants[s.Key.Name]; ok && rapid.Bool().Draw(m.t, "again") {
			s = former
		}
		if !slices.ContainsFunc(batch, func(o vip.Service) bool { return o.Key == s.Key }) {
			batch = append(batch, s)
		}
	}
	preview := m.a.Preview(batch)
	m.freed, m.leases = m.a.Freed(), maps.Collect(m.a.Leases().All())
	answers := m.assign(batch...)
	for i, got := range answers {
		s := &batch[i]
		if !m.fault {
			// An address that is left for another shows as left in the preview too.
			diff := cmp.Diff(preview[i], got, cmpopts.EquateComparable(netip.Addr{}))
			must.NoDiff(m.t, diff, "%s: preview and answer differ", s.Key)
		}
		m.checkAnswer(s, got)
		m.wants[s.Key.Name], m.has[s.Key.Name] = *s, got
	}
}

// reserve reserves an address or releases a reservation.
func (m *model) reserve() {
	a := addr(fmt.Sprintf("10.0.%d.%d", rapid.IntRange(0, 1).Draw(m.t, "net"), rapid.IntRange(0, 9).Draw(m.t, "host")))
	was, _, leased := m.a.Leases().Get(ipam.Resource{Addr: a})
	if rapid.Bool().Draw(m.t, "unreserve") {
		_, err := m.a.Unreserve(m.t.Context(), a)
		if marked := leased && was.Reservation != nil; (err == nil) != marked && !m.fault {
			m.t.Fatalf("%s is released: %v, with lease %+v", a, err, was)
		}
		return
	}
	what := ipam.Reserving{Addr: a}
	if rapid.Bool().Draw(m.t, "for") {
		what.For = key(m.name())
	}
	if rapid.IntRange(0, 3).Draw(m.t, "any") == 0 {
		what.Addr, what.Pool = netip.Addr{}, rapid.SampledFrom([]string{"p", "q"}).Draw(m.t, "pool")
	}
	got, err := m.a.Reserve(m.t.Context(), what)
	switch {
	case err != nil && what.Addr.IsValid() && !leased && m.mayGive(a) && !m.fault:
		m.t.Fatalf("%s is free and can't be reserved: %v", a, err)
	case err == nil && what.Addr.IsValid() && leased && (was.Reservation != nil || was.HeldBy(what.For) < 0 && !was.KeptFor(what.For)):
		m.t.Fatalf("%s is reserved for %s although it has the lease %+v", a, what.For, was)
	case err == nil && (got.Reservation == nil || got.Reservation.For != what.For):
		m.t.Fatalf("%+v is reserved as %+v", what, got)
	}
}

// checkReserved checks that a step other than Unreserve keeps a reservation, and that only its
// service gets the address.
func (m *model) checkReserved(was, now *ipam.Lease) {
	if was.Reservation == nil || now == nil || now.Reservation == nil {
		return
	}
	if was.State == ipam.Reserved && now.State == ipam.Held && was.Reservation.For != (vip.ServiceKey{}) && now.HeldBy(was.Reservation.For) < 0 {
		m.t.Fatalf("%s was reserved for %s and is held by %v", now.Resource, was.Reservation.For, now.Holders)
	}
}

// checkAnswer checks one answer against what the service had before.
func (m *model) checkAnswer(s *vip.Service, got vip.Allocation) {
	had, former := m.has[s.Key.Name], m.wants[s.Key.Name]
	for _, a := range got.VIPs {
		l, _, ok := m.a.Leases().Get(ipam.Resource{Addr: a})
		if !ok || l.HeldBy(s.Key) < 0 {
			m.t.Fatalf("%s has %s, with lease %+v", s.Key, a, l)
		}
		asked := slices.IndexFunc(s.VIPs, func(v netip.Addr) bool { return v.Is4() == a.Is4() })
		if asked >= 0 && s.VIPs[asked] != a && !slices.Contains(had.VIPs, a) {
			m.t.Fatalf("%s asks for %s and is given %s", s.Key, s.VIPs[asked], a)
		}
		if asked >= 0 && s.VIPs[asked] != a && len(got.Problems) == 0 {
			m.t.Fatalf("%s has %s, not %s, and no problem says why", s.Key, a, s.VIPs[asked])
		}
	}
	for k, n := range got.NodePorts {
		l, _, ok := m.a.Leases().Get(ipam.Resource{NodePort: n, Protocol: k.Protocol})
		if !ok || l.HeldBy(s.Key) != 0 || l.Holders[0].Port != k {
			m.t.Fatalf("%s has node port %d for %s, with lease %+v", s.Key, n, k, l)
		}
	}
	m.checkAssigned(s, got)
	if s.Families == 0 && len(got.VIPs) == 0 && len(got.Problems) == 0 {
		m.t.Fatalf("%s has nothing and no problem says why", s.Key)
	}
	settled := len(had.Problems) == 0 // else it waited for something that it may have now
	same := settled && s.Assigned == former.Assigned && slices.Equal(s.VIPs, former.VIPs) && s.Pool == former.Pool && s.Families == former.Families
	for _, a := range had.VIPs {
		if same && !slices.Contains(got.VIPs, a) {
			m.t.Fatalf("%s was moved off %s to %v, its problems %v", s.Key, a, got.VIPs, got.Problems)
		}
	}
}

// checkAssigned checks that a service whose addresses and node ports were
// assigned has these, or what it had, and waits for holders alone.
func (m *model) checkAssigned(s *vip.Service, got vip.Allocation) {
	if !s.Assigned || m.fault { // then the answer has all that it holds
		return
	}
	had := func(r ipam.Resource) bool { return m.leases[r].HeldBy(s.Key) >= 0 }
	for _, a := range got.VIPs {
		if !slices.Contains(s.VIPs, a) && !had(ipam.Resource{Addr: a}) {
			m.t.Fatalf("%s was assigned %v, and %s was chosen for it", s.Key, s.VIPs, a)
		}
	}
	for k, n := range got.NodePorts {
		asked := k == vip.HealthPortKey && s.HealthPort.Number == n || slices.ContainsFunc(s.Ports, func(p vip.Port) bool { return p.Key() == k && p.NodePort.Number == n })
		if !asked && !had(ipam.Resource{NodePort: n, Protocol: k.Protocol}) {
			m.t.Fatalf("%s: node port %d was chosen for %s", s.Key, n, k)
		}
	}
	pool := slices.IndexFunc(m.cfg.Pools, func(p ipam.Pool) bool { return p.Name == s.Pool })
	for _, a := range s.VIPs {
		l, _, leased := m.a.Leases().Get(ipam.Resource{Addr: a})
		inPool := s.Pool == "" || pool >= 0 && slices.ContainsFunc(m.cfg.Pools[pool].CIDRs, func(c netip.Prefix) bool { return c.Contains(a) })
		kept := leased && l.Reservation != nil && !l.KeptFor(s.Key) && len(l.Holders) > 0 // for another service
		if inPool && !kept && m.mayGive(a) && (!leased || l.State != ipam.Held) && !freed(m.freed) {
			m.t.Fatalf("%s was assigned %s and waits, nobody holds it, and nothing recalls it: %+v, %v", s.Key, a, l, got.Problems)
		}
	}
}

// check checks everything else that can be relied on after any step.
func (m *model) check(before map[ipam.Resource]*ipam.Lease) {
	m.durable()
	var held, cooling, reserved = map[string]uint64{}, map[string]uint64{}, map[string]uint64{}
	for r, was := range before {
		now, _, _ := m.a.Leases().Get(r)
		m.checkReserved(was, now)
	}
	for r, l := range m.a.Leases().All() {
		taken := map[vip.PortKey]vip.ServiceKey{}
		for _, h := range l.Holders {
			for _, p := range h.Ports {
				for q, other := range taken {
					must.False(m.t, p.Overlaps(q), "%s: %s has %s and %s has %s", r, other, q, h.Service, p)
				}
				taken[p] = h.Service
			}
		}
		nobody := l.State == ipam.Reserved && l.Reservation.For == (vip.ServiceKey{})
		if len(l.Holders) != 1 && !nobody && (l.ShareKey == "" || l.State != ipam.Held) || (len(l.Holders) == 0) != nobody {
			m.t.Fatalf("%s has the holders %v", r, l.Holders)
		}
		if r.NodePort != 0 {
			continue
		}
		switch l.State {
		case ipam.Held:
			held[l.Pool]++
		case ipam.Cooling:
			cooling[l.Pool]++
		default:
			reserved[l.Pool]++
		}
		if _, old := before[r]; !old && !m.mayGive(r.Addr) {
			m.t.Fatalf("%s was given to %v", r, l.Holders)
		}
	}
	for _, s := range m.a.Pools() {
		free := uint64(0)
		for _, c := range s.CIDRs {
			for a := c.Addr(); c.Contains(a); a = a.Next() {
				if _, _, leased := m.a.Leases().Get(ipam.Resource{Addr: a}); !leased && m.mayGive(a) {
					free++
				}
			}
		}
		if s.Used != held[s.Name] || s.Cooling != cooling[s.Name] || s.Reserved != reserved[s.Name] || s.Free != free {
			m.t.Fatalf("pool %+v, counted %d used, %d cooling, %d reserved, %d free", s, held[s.Name], cooling[s.Name], reserved[s.Name], free)
		}
	}
}

// mayGive is the naive form of what may be allocated.
func (m *model) mayGive(a netip.Addr) bool {
	in := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	if in(m.pods) {
		return false
	}
	for _, p := range m.cfg.Pools {
		for _, c := range p.CIDRs {
			if c.Contains(a) && !in(p.Exclude) {
				return true
			}
		}
	}
	return false
}
