package reconciletest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// Harness is what a dataplane's package gives the conformance suite.
type Harness struct {
	// New returns a Target as a freshly started process would make it. Called
	// again, it stands for a restart: a durable plane finds what it programmed.
	New func(t *testing.T) reconcile.Plane
	// VIPs are addresses that may be used: at least two of IPv4, one of IPv6.
	VIPs []netip.Addr
	// Backends starts n servers that answer each request with their own
	// address and port as text, and returns where they listen.
	Backends func(t *testing.T, p vip.Protocol, f vip.Family, n int) []netip.AddrPort
	// Ask sends one request to a frontend over a new connection (for UDP, from a
	// new port) and returns the answer. A refusal is syscall.ECONNREFUSED or
	// ECONNRESET.
	Ask func(t *testing.T, k vip.FrontendKey) (string, error)
	// Schedulers are those that the dataplane has, of the suite's; nil: all of them.
	Schedulers []vip.Scheduler
	// Durable says that what was programmed outlives the Target's process.
	Durable bool
	// Writes counts the changes made to the dataplane so far, in its own unit
	// (netlink messages); nil where it is unknown.
	Writes func() uint64
	// Witness checks by other means than the Target that the dataplane has
	// exactly these frontends of ours; may be nil. The suite calls it after each
	// step of the lifecycle, and at the end of each other case.
	Witness func(t *testing.T, want []vip.Frontend)
}

// plane is a Target under test with what it is expected to have.
type plane struct {
	Harness
	reconcile.Plane
	t        *testing.T
	want     map[vip.FrontendKey]vip.Frontend
	eachStep bool // Witness checks each step
}

// RunPlane runs the conformance suite. Each case gets a New Target and leaves
// nothing behind.
func RunPlane(t *testing.T, h Harness) {
	cases := []struct {
		name string
		run  func(p *plane)
	}{
		{"empty", (*plane).empty},
		{"add, change and remove", (*plane).lifecycle},
		{"removing what is not there", (*plane).removeAbsent},
		{"repair is idempotent", (*plane).repairTwice},
		{"frontends share an address", (*plane).sharedAddress},
		{"unsupported is typed and alone", (*plane).unsupported},
		{"an unsupported update leaves what is in effect", (*plane).unsupportedUpdate},
		{"every protocol and family carries traffic", (*plane).traffic},
		{"weight 0 takes nothing new", (*plane).weightZero},
		{"no usable backend refuses", (*plane).refuses},
		{"cancelled", (*plane).cancelled},
		{"adopt after a restart", (*plane).adopts},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := &plane{Harness: h, Plane: h.New(t), t: t, want: map[vip.FrontendKey]vip.Frontend{}}
			defer p.clear()
			c.run(p)
			p.witness()
		})
	}
}

// schedulers returns the schedulers of the suite that the dataplane has.
func (p *plane) schedulers() []vip.Scheduler {
	all := []vip.Scheduler{vip.RoundRobin, vip.WeightedRoundRobin, vip.LeastConnection,
		vip.WeightedLeastConnection, vip.SourceHash, vip.MaglevHash}
	return slices.DeleteFunc(all, func(s vip.Scheduler) bool { return p.Schedulers != nil && !slices.Contains(p.Schedulers, s) })
}

// anotherScheduler returns one that the suite's frontends don't have at first.
func (p *plane) anotherScheduler() vip.Scheduler { return p.schedulers()[2] }

func (p *plane) empty() { p.check() }

func (p *plane) lifecycle() {
	p.eachStep = true
	backends := p.servers(vip.TCP, vip.IPv4, 3)
	f := p.frontend(p.v4(0), 8080, vip.TCP, backends[:2]...)
	p.set(f)
	f.Backends = p.endpoints(backends...)
	p.set(f)
	f.Backends = slices.Clone(f.Backends)
	f.Backends[0].Weight = 7
	p.set(f)
	f.Scheduler = p.anotherScheduler()
	p.set(f)
	f.Affinity = time.Hour
	p.set(f)
	f.Affinity = 0
	f.Backends = p.endpoints(backends[2])
	p.set(f)
	p.remove(f.Key)
}

func (p *plane) removeAbsent() {
	f := p.frontend(p.v4(0), 8080, vip.TCP, p.servers(vip.TCP, vip.IPv4, 1)...)
	p.apply(reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: f.Key, Old: &f, Repair: true})
	p.check()
}

func (p *plane) repairTwice() {
	f := p.frontend(p.v4(0), 8080, vip.TCP, p.servers(vip.TCP, vip.IPv4, 2)...)
	p.set(f)
	for range 2 {
		p.apply(reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: f.Key, Old: &f, New: &f, Repair: true})
		p.check()
		p.apply(reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: f.Key, New: &f, Repair: true})
		p.check()
	}
}

func (p *plane) sharedAddress() {
	backends := p.servers(vip.TCP, vip.IPv4, 1)
	a := p.frontend(p.v4(0), 8080, vip.TCP, backends...)
	b := p.frontend(p.v4(0), 8081, vip.TCP, backends...)
	p.set(a)
	p.set(b)
	p.remove(a.Key)
	p.answers(b.Key, backends...)
	p.remove(b.Key)
}

func (p *plane) unsupported() {
	backends := p.servers(vip.TCP, vip.IPv4, 1)
	good := p.frontend(p.v4(0), 8080, vip.TCP, backends...)
	bad := p.frontend(p.v4(1), 8080, vip.TCP, backends...)
	bad.Scheduler = vip.OtherScheduler
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: bad.Key, New: &bad}, {Key: good.Key, New: &good}}
	if err := p.Apply(p.t.Context(), batch); err != nil {
		p.t.Fatalf("the whole batch: %v", err)
	}
	var problem vip.Problem
	if !errors.As(batch[0].Err, &problem) || problem.Code != vip.CodeUnsupported {
		p.t.Errorf("an unknown scheduler gives %v, want a Problem with code %q", batch[0].Err, vip.CodeUnsupported)
	}
	if batch[1].Err != nil {
		p.t.Errorf("its neighbour in the batch: %v", batch[1].Err)
	}
	p.want[good.Key] = good
	p.check()
}

// A frontend in effect that is asked for something unsupported is not the same
// any more, says so, and stays as it was.
func (p *plane) unsupportedUpdate() {
	backends := p.servers(vip.TCP, vip.IPv4, 1)
	good := p.frontend(p.v4(0), 8080, vip.TCP, backends...)
	p.set(good)
	for _, c := range []struct {
		name   string
		change func(*vip.Frontend)
	}{
		{"forward", func(f *vip.Frontend) { f.Forward = vip.Forward(200) }},
		{"scheduler", func(f *vip.Frontend) { f.Scheduler = vip.OtherScheduler }},
	} {
		bad := good
		bad.Backends = p.endpoints(backends...)
		c.change(&bad)
		if p.Same(&good, &bad) || p.Same(&bad, &good) {
			p.t.Errorf("%s: unsupported, and taken for the same as what is in effect", c.name)
		}
		// The second time it comes as it does after a restart.
		for _, repair := range []bool{false, true} {
			batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: good.Key, Old: &good, New: &bad, Repair: repair}}
			if err := p.Apply(p.t.Context(), batch); err != nil {
				p.t.Fatalf("%s: the whole batch: %v", c.name, err)
			}
			var problem vip.Problem
			if !errors.As(batch[0].Err, &problem) || problem.Code != vip.CodeUnsupported || problem.Field != c.name {
				p.t.Errorf("%s: %#v, want a Problem with code %q and this field", c.name, batch[0].Err, vip.CodeUnsupported)
			}
			p.check()
			p.answers(good.Key, backends...)
		}
	}
	good.Scheduler = p.anotherScheduler()
	p.set(good) // and it can be changed as before
}

func (p *plane) traffic() {
	for _, proto := range []vip.Protocol{vip.TCP, vip.UDP} {
		for _, addr := range []netip.Addr{p.v4(0), p.v6()} {
			backends := p.servers(proto, vip.FamilyOf(addr), 3)
			for _, s := range p.schedulers() {
				f := p.frontend(addr, 8080, proto, backends...)
				f.Scheduler = s
				p.set(f)
				if s == vip.RoundRobin || s == vip.WeightedRoundRobin {
					p.answers(f.Key, backends...)
				} else if who := p.ask(f.Key); !slices.Contains(backends, who) {
					p.t.Errorf("%s by %s: answered by %s, no backend", f.Key, s, who)
				}
			}
			p.remove(vip.FrontendKey{Addr: addr, Port: 8080, Protocol: proto})
		}
	}
}

func (p *plane) weightZero() {
	backends := p.servers(vip.TCP, vip.IPv4, 3)
	f := p.frontend(p.v4(0), 8080, vip.TCP, backends...)
	p.set(f)
	f.Backends = p.endpoints(backends...)
	f.Backends[1].Weight = 0
	p.set(f)
	p.answers(f.Key, backends[0], backends[2])
	p.remove(f.Key)
	// Where the client decides, those of a backend that takes none go elsewhere.
	for _, s := range []vip.Scheduler{vip.SourceHash, vip.MaglevHash} {
		f.Scheduler, f.Backends = s, p.endpoints(backends...)
		p.set(f)
		chosen := slices.Index(backends, p.ask(f.Key))
		f.Backends = p.endpoints(backends...)
		f.Backends[chosen].Weight = 0
		p.set(f)
		if who := p.ask(f.Key); who == backends[chosen] || !slices.Contains(backends, who) {
			p.t.Errorf("%s: a client of a backend that has weight 0 now is answered by %s", s, who)
		}
		p.remove(f.Key)
	}
}

func (p *plane) refuses() {
	for _, addr := range []netip.Addr{p.v4(0), p.v6()} {
		for _, proto := range []vip.Protocol{vip.TCP, vip.UDP} {
			backends := p.servers(proto, vip.FamilyOf(addr), 1)
			f := p.frontend(addr, 8080, proto)
			p.set(f)
			p.refused(f.Key, "without a backend")
			f.Backends = p.endpoints(backends...)
			p.set(f)
			p.answers(f.Key, backends...)
			f.Backends = p.endpoints(backends...)
			f.Backends[0].Weight = 0
			p.set(f)
			p.refused(f.Key, "with its only backend at weight 0")
			p.remove(f.Key)
		}
	}
}

func (p *plane) cancelled() {
	ctx, cancel := context.WithCancel(p.t.Context())
	cancel()
	f := p.frontend(p.v4(0), 8080, vip.TCP, p.servers(vip.TCP, vip.IPv4, 1)...)
	if err := p.Apply(ctx, []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: f.Key, New: &f}}); err == nil {
		p.t.Error("Apply with an ended context reports success")
	}
	for _, err := range p.Actual(ctx) {
		if err == nil {
			p.t.Error("Actual with an ended context yields")
		}
	}
	p.set(f) // and it works afterwards, whatever the cancelled call left
}

func (p *plane) adopts() {
	if !p.Durable {
		return
	}
	backends := p.servers(vip.TCP, vip.IPv4, 3)
	for port := range uint16(5) {
		p.set(p.frontend(p.v4(int(port)%2), 8080+port, vip.TCP, backends...))
	}
	p.Plane = p.New(p.t)
	before := p.Writes()
	p.check()
	if n := p.Writes() - before; n != 0 {
		p.t.Errorf("reading cost %d writes", n)
	}
	// The restarted Target changes one thing with at most one write.
	old := p.want[vip.FrontendKey{Addr: p.v4(0), Port: 8080, Protocol: vip.TCP}]
	f := old
	f.Backends = p.endpoints(backends...)
	f.Backends[2].Weight = 9
	before = p.Writes()
	p.set(f)
	if n := p.Writes() - before; n > 1 { // a dataplane where round robin has no weights needs none
		p.t.Errorf("one weight cost %d writes", n)
	}
}

// set brings a frontend to the Target and checks the outcome.
func (p *plane) set(f vip.Frontend) {
	p.t.Helper()
	u := reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: f.Key, New: &f}
	if old, ok := p.want[f.Key]; ok {
		u.Old = &old
	}
	p.apply(u)
	p.want[f.Key] = f
	p.check()
}

func (p *plane) remove(k vip.FrontendKey) {
	p.t.Helper()
	old := p.want[k]
	p.apply(reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: k, Old: &old})
	delete(p.want, k)
	p.check()
}

func (p *plane) apply(u reconcile.Update[vip.FrontendKey, vip.Frontend]) {
	p.t.Helper()
	// As the reconciler does, it tries again after an error that may pass: a busy kernel can take seconds for the
	// route of an address.
	wait.For(p.t, fmt.Sprintf("apply %s", u.Key), func() error {
		batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{u}
		if err := p.Apply(p.t.Context(), batch); err != nil {
			return err
		}
		if errors.As(batch[0].Err, new(vip.Problem)) {
			p.t.Fatalf("apply %s: %v", u.Key, batch[0].Err)
		}
		u.Repair = true
		return batch[0].Err
	})
	// As the reconciler does after a change. Otherwise a client that has the port of an earlier client
	// gets its backend.
	if err := p.Clean(p.t.Context()); err != nil {
		p.t.Fatalf("clean after %s: %v", u.Key, err)
	}
}

// check compares what the Target has with what it should have.
func (p *plane) check() {
	p.t.Helper()
	seen := map[vip.FrontendKey]bool{}
	for o, err := range p.Actual(p.t.Context()) {
		if err != nil {
			p.t.Fatalf("read: %v", err)
		}
		if seen[o.Value.Key] {
			p.t.Errorf("%s is yielded twice", o.Value.Key)
		}
		seen[o.Value.Key] = true
		want, ok := p.want[o.Value.Key]
		switch {
		case !ok:
			p.t.Errorf("%s is there and should not be", o.Value.Key)
		case len(o.Damage) > 0:
			p.t.Errorf("%s is damaged: %v", o.Value.Key, o.Damage)
		case !p.Same(&o.Value, &want):
			p.t.Errorf("%s is\n%+v, want\n%+v", o.Value.Key, o.Value, want)
		}
	}
	for k := range p.want {
		if !seen[k] {
			p.t.Errorf("%s is missing", k)
		}
	}
	if p.eachStep {
		p.witness()
	}
}

func (p *plane) witness() {
	p.t.Helper()
	if p.Witness != nil {
		p.Witness(p.t, slices.Collect(maps.Values(p.want)))
	}
}

// clear removes what a case left, so that the next one starts empty.
func (p *plane) clear() {
	ctx := context.WithoutCancel(p.t.Context())
	for k, f := range p.want {
		batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: k, Old: &f, Repair: true}}
		if err := p.Apply(ctx, batch); err != nil || batch[0].Err != nil {
			p.t.Errorf("clear %s: %v %v", k, err, batch[0].Err)
		}
	}
}

// answers checks that exactly these backends answer. A dataplane that chooses at random may take long to choose each: with
// three of them, one is still missing after all tries once in 10^20 times.
func (p *plane) answers(k vip.FrontendKey, want ...netip.AddrPort) {
	p.t.Helper()
	got := map[netip.AddrPort]int{}
	for i := 0; i < 4*len(want) || i < 40*len(want) && len(got) < len(want); i++ {
		got[p.ask(k)]++
	}
	for _, w := range want {
		if got[w] == 0 {
			p.t.Errorf("%s: %s never answered: %v", k, w, got)
		}
		delete(got, w)
	}
	if len(got) > 0 {
		p.t.Errorf("%s: strangers answered: %v", k, got)
	}
}

func (p *plane) ask(k vip.FrontendKey) netip.AddrPort {
	p.t.Helper()
	text, err := p.Ask(p.t, k)
	if err != nil {
		p.t.Fatalf("ask %s: %v", k, err)
	}
	who, err := netip.ParseAddrPort(text)
	if err != nil {
		p.t.Fatalf("ask %s: %v", k, err)
	}
	return who
}

// refused wants a refusal at once: a busy machine may be late with one, not with
// three in a row.
func (p *plane) refused(k vip.FrontendKey, when string) {
	p.t.Helper()
	for try := 1; ; try++ {
		start := time.Now()
		text, err := p.Ask(p.t, k)
		took := time.Since(start)
		switch {
		case err == nil:
			p.t.Errorf("%s %s: answered %q", k, when, text)
		case !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ECONNRESET):
			p.t.Errorf("%s %s: %v, want a refusal", k, when, err)
		case took > time.Second && try < 3:
			continue
		case took > time.Second:
			p.t.Errorf("%s %s: refused only after %s", k, when, took)
		}
		return
	}
}

func (p *plane) servers(proto vip.Protocol, f vip.Family, n int) []netip.AddrPort {
	p.t.Helper()
	all := p.Backends(p.t, proto, f, n)
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all
}

func (p *plane) endpoints(addrs ...netip.AddrPort) []vip.Endpoint {
	out := make([]vip.Endpoint, len(addrs))
	for i, a := range addrs {
		out[i] = vip.Endpoint{Addr: a, Weight: 1}
	}
	return out
}

func (p *plane) frontend(a netip.Addr, port uint16, proto vip.Protocol, backends ...netip.AddrPort) vip.Frontend {
	return vip.Frontend{
		Key:        vip.FrontendKey{Addr: a, Port: port, Protocol: proto},
		Kind:       vip.OnVIP,
		Service:    vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: "conformance"},
		Port:       "main",
		Scheduler:  vip.RoundRobin,
		Forward:    vip.ForwardNAT,
		Masquerade: vip.MasqueradeAuto,
		Backends:   p.endpoints(backends...),
	}
}

func (p *plane) v4(i int) netip.Addr {
	for _, a := range p.VIPs {
		if a.Is4() {
			if i == 0 {
				return a
			}
			i--
		}
	}
	p.t.Fatal("the harness has too few IPv4 addresses")
	return netip.Addr{}
}

func (p *plane) v6() netip.Addr {
	i := slices.IndexFunc(p.VIPs, netip.Addr.Is6)
	if i < 0 {
		p.t.Fatal("the harness has no IPv6 address")
	}
	return p.VIPs[i]
}
