package proxy

import (
	"context"
	"log/slog"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ironvip/ironvip/proxy/pick"
	"github.com/ironvip/ironvip/vip"
)

// listener is what a frontend takes clients in with.
type listener interface {
	// usable tells whether some backend takes new connections. A UDP listener
	// closes and opens its socket by it.
	usable(bool) error
	// died returns why the listener ended by itself, or nil.
	died() error
	// close ends it; no client is taken in afterwards.
	close()
}

// frontend is one key's listener and backends. One goroutine at a time calls
// update, repair and close; the others may be called by any.
type frontend struct {
	target *Target
	key    vip.FrontendKey

	ctx    context.Context // ends with the frontend
	cancel context.CancelFunc
	tasks  sync.WaitGroup // every goroutine of it

	spec     *vip.Frontend // as applied
	listener listener
	turn     atomic.Uint64
	backends atomic.Pointer[backends]
	tally    tally
}

// backends is what a frontend chooses from, and whom it does it for; immutable,
// replaced by an update.
type backends struct {
	all      map[netip.AddrPort]*endpoint
	usable   []*endpoint            // those with a weight; what picker counts by
	index    map[netip.AddrPort]int // of usable; only with affinity
	picker   pick.Picker
	withPort bool
	affinity *affinity // nil: none
	sources  sources
}

// newFrontend returns a frontend that doesn't listen yet.
func newFrontend(t *Target, spec *vip.Frontend) *frontend {
	f := &frontend{target: t, key: spec.Key}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.backends.Store(&backends{})
	f.choose(spec)
	return f
}

// choose makes spec's backends the ones to choose from, and closes what is
// left of those it no longer has.
func (f *frontend) choose(spec *vip.Frontend) {
	old := f.backends.Load()
	b := &backends{
		all:      make(map[netip.AddrPort]*endpoint, len(spec.Backends)),
		withPort: spec.SchedulerPort,
		affinity: old.affinity,
		sources:  newSources(spec, f.target.opts.Own),
	}
	var candidates []pick.Backend
	for _, e := range spec.Backends {
		end := old.all[e.Addr]
		if end == nil {
			end = newEndpoint(e.Addr)
		}
		b.all[e.Addr] = end
		if e.Weight > 0 {
			b.usable = append(b.usable, end)
			candidates = append(candidates, pick.Backend{Addr: e.Addr, Weight: e.Weight, State: &end.state})
		}
	}
	picker, err := pick.New(scheduler(spec), candidates, &f.turn)
	if err != nil {
		panic(err) // check has let it pass
	}
	b.picker = picker
	switch {
	case spec.Affinity <= 0:
		b.affinity = nil
	case b.affinity == nil:
		b.affinity = newAffinity(spec.Affinity, f.target.opts.MaxAffinity)
	default:
		b.affinity.setTimeout(spec.Affinity)
	}
	if b.affinity != nil {
		b.index = make(map[netip.AddrPort]int, len(b.usable))
		for i, e := range b.usable {
			b.index[e.addr] = i
		}
	}
	f.spec = spec
	f.backends.Store(b)

	for addr, end := range old.all {
		if b.all[addr] == nil {
			end.close()
		}
	}
	if old.affinity != nil && b.affinity == nil {
		old.affinity.close()
	}
}

// close ends the listener, then every connection, and waits for all of it.
func (f *frontend) close() {
	if f.listener != nil {
		f.listener.close()
	}
	f.cancel()
	b := f.backends.Load()
	for _, e := range b.all {
		e.close()
	}
	f.tasks.Wait()
	if b.affinity != nil {
		b.affinity.close()
	}
}

// log names the frontend. It is made when there is something to say: most of
// thousands never have anything.
func (f *frontend) log() *slog.Logger { return f.target.log.With("frontend", f.key.String()) }

// complain logs a fault of this host's, such as no descriptor left, at most once
// a second over all frontends: it concerns thousands of them at once.
func (f *frontend) complain(doing string, err error) {
	if f.target.errorLog.pass(f.target.now()) {
		f.log().Warn(doing, "err", err)
	}
}

// attempt is one client's way to a backend: each next is another backend.
type attempt struct {
	f      *frontend
	client netip.AddrPort
	hash   uint64
	from   *backends // what tried counts by
	tried  []int
	claim  *affine
	keeper *affinity // of claim
}

func (f *frontend) attempt(client netip.AddrPort) *attempt {
	return &attempt{f: f, client: client}
}

// next returns a backend not tried yet, or nil when there is none. Those that
// lately failed are taken only when no other is left. The backend counts the
// connection from here on, until its endpoint.leave.
func (a *attempt) next() *endpoint {
	b := a.f.backends.Load()
	if b != a.from {
		a.from, a.tried = b, a.tried[:0]
		a.hash = pick.Hash(a.client, b.withPort)
	}
	if len(b.usable) == 0 {
		return nil
	}
	if b.affinity == nil || len(a.tried) > 0 || a.claim != nil {
		i := a.pick(b)
		if i < 0 {
			return nil
		}
		return b.usable[i]
	}
	claim, addr := b.affinity.claim(a.client.Addr(), func(addr netip.AddrPort) bool {
		i, ok := b.index[addr]
		if !ok || b.usable[i].state.Avoid.Load() > a.f.target.now() {
			return false
		}
		a.tried = append(a.tried, i)
		b.usable[i].state.Open.Add(1)
		return true
	}, func() (netip.AddrPort, bool) {
		i := a.pick(b)
		if i < 0 {
			return netip.AddrPort{}, false
		}
		return b.usable[i].addr, true
	})
	a.claim, a.keeper = claim, b.affinity
	return b.all[addr]
}

// pick asks the scheduler, which counts the connection, and notes the answer as
// tried.
func (a *attempt) pick(b *backends) int {
	i := b.picker.Pick(a.hash, a.f.target.now(), a.tried)
	if i < 0 {
		i = b.picker.Pick(a.hash, math.MaxInt64, a.tried)
	}
	if i >= 0 {
		a.tried = append(a.tried, i)
	}
	return i
}

// works tells that the backend answered: the client's affinity moves to it.
func (a *attempt) works(e *endpoint) {
	e.works()
	if a.claim != nil {
		a.keeper.move(a.claim, e.addr)
	}
}

// failed tells that the backend did not, and why.
func (a *attempt) failed(e *endpoint, err error) {
	avoid, first := e.failed(a.f.target.now())
	a.f.target.stats.failures.Add(1)
	if first {
		a.f.log().Warn("backend passed over", "backend", e.addr, "for", avoid, "err", err)
	}
}

// end gives the client's affinity back, after its connection.
func (a *attempt) end() {
	if a.claim != nil {
		a.keeper.release(a.claim)
		a.claim = nil
	}
}
