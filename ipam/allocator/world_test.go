package allocator_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/storetest"
	"github.com/ironvip/ironvip/vip"
)

// world is an allocator on a store in memory, with a clock to set.
type world struct {
	t      testing.TB
	a      *allocator.Allocator
	store  *memstore.Store
	cfg    ipam.Config
	now    time.Time
	events *event.Log
}

func newWorld(t testing.TB, cfg ipam.Config) *world {
	w := &world{t: t, store: memstore.New(), cfg: cfg, now: time.Date(2026, 11, 8, 12, 0, 0, 0, time.UTC)}
	w.restart()
	return w
}

// restart makes a new allocator on what the store has.
func (w *world) restart() {
	w.t.Helper()
	w.events = event.NewLog(1_000, w.clock)
	a, err := allocator.New(context.Background(), w.store, w.cfg, allocator.Options{Clock: &table.Clock{}, Now: w.clock, Events: w.events})
	if err != nil {
		w.t.Fatal(err)
	}
	w.a = a
}

// with makes an allocator on another store, with other options.
func (w *world) with(s ipam.Store, o allocator.Options) {
	w.t.Helper()
	o.Clock = newClock()
	a := must.Get(allocator.New(context.Background(), s, w.cfg, o))(w.t)
	w.a = a
}

func (w *world) clock() time.Time { return w.now }

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// pool returns a pool that excludes the first and the last address of each IPv4 range, and the first one of each
// IPv6 range, as that of a whole subnet should.
func pool(name string, cidrs ...string) ipam.Pool {
	p := ipam.Pool{Name: name, CIDRs: prefixes(cidrs...), AutoAssign: true}
	for _, c := range p.CIDRs {
		r := netipx.RangeOfPrefix(c)
		if c.Addr().BitLen()-c.Bits() < 2 {
			continue
		}
		if p.Exclude = append(p.Exclude, netip.PrefixFrom(r.From(), r.From().BitLen())); c.Addr().Is4() {
			p.Exclude = append(p.Exclude, netip.PrefixFrom(r.To(), 32))
		}
	}
	return p
}

func pools(p ...ipam.Pool) ipam.Config { return ipam.Config{Pools: p, ReuseDelay: 5 * time.Minute} }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func key(name string) vip.ServiceKey {
	return vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: name}
}

type change func(*vip.Service)

func requests(addrs ...string) change {
	return func(s *vip.Service) {
		for _, a := range addrs {
			s.VIPs = append(s.VIPs, addr(a))
		}
	}
}
func from(pool string) change { return func(s *vip.Service) { s.Pool = pool } }
func families(f ...vip.Family) change {
	return func(s *vip.Service) { s.Families = vip.FamiliesOf(f...) }
}
func assigned(s *vip.Service)       { s.Assigned = true }
func source(name string) change     { return func(s *vip.Service) { s.Source = name } }
func drains(d time.Duration) change { return func(s *vip.Service) { s.DrainTimeout = d } }
func share(key string, p ...vip.Port) change {
	return func(s *vip.Service) { s.ShareKey, s.Ports = key, p }
}
func ports(p ...vip.Port) change { return func(s *vip.Service) { s.Ports = p } }

func tcp(n uint16) vip.Port { return vip.Port{Protocol: vip.TCP, Port: n, TargetPort: n} }
func udp(n uint16) vip.Port { return vip.Port{Protocol: vip.UDP, Port: n, TargetPort: n} }

func tcps(first, last uint16) vip.Port {
	return vip.Port{Protocol: vip.TCP, Port: first, LastPort: last}
}

// checked gives a service a health port; 0 is automatic.
func checked(number uint16) change {
	return func(s *vip.Service) {
		s.ExternalTraffic, s.HealthPort = vip.Local, vip.NodePort{Auto: number == 0, Number: number}
	}
}

// on gives a port a node port; 0 is automatic.
func on(p vip.Port, number uint16) vip.Port {
	p.NodePort = vip.NodePort{Auto: number == 0, Number: number}
	return p
}

func service(name string, changes ...change) vip.Service {
	s := vip.Service{Key: key(name), Source: "static", Ports: []vip.Port{tcp(80)}, Settings: vip.Settings{DrainTimeout: time.Minute}}
	for _, c := range changes {
		c(&s)
	}
	return s
}

func (w *world) assign(services ...vip.Service) []vip.Allocation {
	w.t.Helper()
	asked := make([]*vip.Service, len(services))
	for i := range services {
		asked[i] = &services[i]
	}
	out := w.a.Assign(context.Background(), asked)
	must.Equal(w.t, len(out), len(services), "%d answers for %d services", len(out), len(services))
	for i, got := range out {
		must.Equal(w.t, got.Asked.Key, services[i].Key, "answer %d is for", i)
	}
	return out
}

// get assigns one service, which is to be granted everything, and returns its
// addresses.
func (w *world) get(name string, changes ...change) string {
	w.t.Helper()
	got := w.assign(service(name, changes...))[0]
	must.Empty(w.t, got.Problems, name)
	return vips(got)
}

func vips(a vip.Allocation) string {
	var out []string
	for _, v := range a.VIPs {
		out = append(out, v.String())
	}
	return strings.Join(out, " ")
}

// refused assigns one service that is to have one problem, of that code and
// with those words, and returns the addresses it has all the same.
func (w *world) refused(code, words, name string, changes ...change) string {
	w.t.Helper()
	got := w.assign(service(name, changes...))[0]
	if len(got.Problems) != 1 {
		w.t.Fatalf("%s has %s and the problems %v, want one", name, vips(got), got.Problems)
	}
	p := got.Problems[0]
	if p.Code != code || !strings.Contains(p.Message, words) || p.Hint == "" || path.Base(p.Service) != name {
		w.t.Errorf("%s: problem %+v, want code %s and %q", name, p, code, words)
	}
	return vips(got)
}

func (w *world) release(names ...string) {
	w.t.Helper()
	var gone []ipam.Released
	for _, name := range names {
		gone = append(gone, ipam.Released{Service: key(name)})
	}
	must.Succeed(w.t, errors.Join(w.a.Release(context.Background(), gone)...))
}

func (w *world) configure(cfg ipam.Config) {
	w.t.Helper()
	w.cfg = cfg
	must.Empty(w.t, w.a.Configure(cfg))
}

func (w *world) status(name string) ipam.PoolStatus {
	w.t.Helper()
	for _, s := range w.a.Pools() {
		if s.Name == name {
			return s
		}
	}
	w.t.Fatalf("no pool %q", name)
	return ipam.PoolStatus{}
}

func (w *world) lease(a string) (ipam.Lease, bool) {
	l, _, ok := w.a.Leases().Get(ipam.Resource{Addr: addr(a)})
	if !ok {
		return ipam.Lease{}, false
	}
	return *l, true
}

// durable checks that what is shown is what the store has.
func (w *world) durable() {
	w.t.Helper()
	changes := storetest.Leases(w.t, w.store)
	shown := maps.Collect(w.a.Leases().All())
	for _, c := range changes {
		if l, ok := shown[c.Resource]; !ok || !l.Equal(*c.Lease) {
			w.t.Fatalf("%s is stored as %+v and shown as %+v", c.Resource, *c.Lease, l)
		}
		delete(shown, c.Resource)
	}
	for r := range shown {
		w.t.Fatalf("%s is shown and not stored", r)
	}
}

func freed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (w *world) kinds() []string {
	events, _ := w.events.Since(0)
	var out []string
	for _, e := range events {
		if !slices.Contains(out, e.Kind) {
			out = append(out, e.Kind)
		}
	}
	return out
}

func same[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
