package balance

import (
	"cmp"
	"context"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/proxy/passive"
	"github.com/ironvip/ironvip/proxy/pick"
	"github.com/ironvip/ironvip/vip"
)

// Frontend has the backends of one key. One goroutine at a time may call Choose and Close. The other methods may be called
// concurrently.
type Frontend struct {
	Key   vip.FrontendKey
	Life  context.Context // until the frontend is closed
	Tasks sync.WaitGroup  // what Close waits for: tasks of clients

	balancer *Balancer
	end      context.CancelFunc
	turn     atomic.Uint64
	mu       sync.Mutex // held while backends is replaced
	backends atomic.Pointer[backends]
	tally    tally
	passive  passive.Frontend
	sources  sources
}

// backends is the set from which a frontend chooses. It is immutable; an update, or the first client, replaces it.
type backends struct {
	spec    *vip.Frontend
	count   int // of spec's backends with a weight
	relay   *vip.ProxySettings
	service *Service // nil before the first spec

	// The first client sets the following: a frontend without clients has no state of its backends.
	awake    bool
	all      endpoints
	usable   endpoints // those with a weight; picker has their indexes
	picker   pick.Picker
	affinity *affinity // nil: none
}

// NewFrontend returns a frontend with the backends of spec. The caller closes it.
func (b *Balancer) NewFrontend(spec *vip.Frontend) *Frontend {
	f := &Frontend{balancer: b, Key: spec.Key}
	f.Life, f.end = context.WithCancel(context.Background())
	f.backends.Store(&noBackends)
	f.Choose(spec)
	return f
}

// noBackends is the set of a frontend without a spec.
var noBackends = backends{spec: &vip.Frontend{}}

// defaultRelay is the settings of all frontends without others.
var defaultRelay = (*vip.ProxySettings)(nil).Get()

func relayOf(spec *vip.Frontend) *vip.ProxySettings {
	if spec.Relay == nil {
		return &defaultRelay
	}
	relay := spec.Relay.Get()
	return &relay
}

// Choose sets spec's backends and closes the endpoints that spec no longer has. Spec has a scheduler of package pick. The
// frontend keeps spec, which the caller doesn't change.
func (f *Frontend) Choose(spec *vip.Frontend) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.backends.Load()
	b := &backends{spec: spec, relay: relayOf(spec), awake: old.awake}
	for i := range spec.Backends {
		if spec.Backends[i].Weight > 0 {
			b.count++
		}
	}
	if b.service = old.service; b.service == nil || b.service.key != spec.Service {
		b.service = f.balancer.join(spec.Service, b.relay)
	}
	b.service.relay.Store(b.relay)
	if b.relay.MaxConnections > 0 || b.relay.MaxQueue > 0 {
		f.balancer.report(b.service)
	}
	f.replace(old, b)
	if old.service != nil && old.service != b.service {
		f.balancer.part(old.service)
	}
}

// wakened returns the set, with endpoints. The first client of a frontend creates them.
func (f *Frontend) wakened() *backends {
	b := f.backends.Load()
	if b.awake {
		return b
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.backends.Load()
	if old.awake {
		return old
	}
	next := *old
	next.awake = true
	f.replace(old, &next)
	return &next
}

// replace makes b the set in the place of old. Endpoints of old stay if b has them, too, and are closed otherwise. The
// caller holds mu.
func (f *Frontend) replace(old, b *backends) {
	if !b.awake {
		f.backends.Store(b)
		return
	}
	spec := b.spec
	b.all, b.usable = make(endpoints, 0, len(spec.Backends)), make(endpoints, 0, b.count)
	candidates, members := make([]pick.Backend, 0, b.count), make([]*passive.Member, 0, b.count)
	for _, e := range spec.Backends {
		end := old.all.of(e.Addr)
		switch {
		case end == nil:
			end = b.service.newEndpoint(e.Addr)
			f.balancer.Passive.Join(&end.Passive, vip.PassiveKey{Service: spec.Service, Protocol: f.Key.Protocol, Addr: e.Addr}, &f.passive, b.service.passive)
			end.State.Avoid = end.Passive.Avoid()
		case e.Weight > 0 && old.usable.of(e.Addr) == nil:
			end.Passive.Readmit()
		}
		end.State.Most.Store(int64(e.MaxConnections))
		b.all = append(b.all, end)
		if e.Weight > 0 {
			b.usable = append(b.usable, end)
			members = append(members, &end.Passive)
			candidates = append(candidates, pick.Backend{Addr: e.Addr, Weight: uint32(e.Weight), State: &end.State})
		}
	}
	picker, err := pick.New(cmp.Or(spec.Scheduler, vip.DefaultScheduler), candidates, &f.turn)
	if err != nil {
		panic(err)
	}
	b.picker = picker
	switch b.affinity = old.affinity; {
	case spec.Affinity <= 0:
		b.affinity = nil
	case b.affinity == nil:
		b.affinity = newAffinity(spec.Affinity, maxAffinity)
	default:
		b.affinity.setTimeout(spec.Affinity)
	}
	f.backends.Store(b)
	f.balancer.Passive.Use(&f.passive, members)
	b.service.wake() // a limit may be higher
	for _, end := range old.all {
		if b.all.of(end.Addr) == nil {
			end.close()
		}
	}
}

// Close ends every connection, and waits for all tasks.
func (f *Frontend) Close() {
	f.end()
	f.mu.Lock()
	b := f.backends.Load()
	if !b.awake { // a client that was accepted before finds no backend
		f.backends.Store(&backends{spec: noBackends.spec, relay: b.relay, service: b.service, awake: true})
	}
	f.mu.Unlock()
	for _, e := range b.all {
		e.close()
	}
	f.Tasks.Wait()
	f.balancer.part(b.service)
	f.balancer.busy.Delete(f)
}

// Settings returns the settings of the service. They don't change: an update replaces them.
func (f *Frontend) Settings() *vip.ProxySettings { return f.backends.Load().relay }

// Service returns the service.
func (f *Frontend) Service() *Service { return f.backends.Load().service }

// HasAffinity reports whether clients stay with their backends.
func (f *Frontend) HasAffinity() bool { return f.backends.Load().spec.Affinity > 0 }

// Usable returns how many backends clients are sent to.
func (f *Frontend) Usable() int { return f.backends.Load().count }

// Endpoints returns all endpoints, with any weight, in the order of their addresses; none before the first client. The
// caller doesn't change the slice.
func (f *Frontend) Endpoints() []*Endpoint { return f.backends.Load().all }

// Contain, deferred by the goroutine of a client, ends a panic there: a fault that one client meets
// must not end the clients of other services. The client counts as refused; end ends what is left
// of its connection (nil: nothing). A panic of end is contained, too.
func (f *Frontend) Contain(s *Service, end func()) {
	p := recover()
	if p == nil {
		return
	}
	f.balancer.Refuse(s, panicked)
	if f.balancer.errorLog.Pass(f.balancer.Now(), time.Second) {
		f.balancer.log.Error("a fault of this program ended the connection of a client; please report it", "frontend", f.Key.String(), "panic", p, "stack", string(debug.Stack()))
	}
	if end != nil {
		defer f.Contain(s, nil)
		end()
	}
}
