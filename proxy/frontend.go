package proxy

import (
	"context"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/proxy/pick"
	"github.com/ironvip/ironvip/vip"
)

// listener accepts the clients of a frontend.
type listener interface {
	// usable reports to the listener whether a backend accepts new connections. A UDP listener
	// opens or closes its socket accordingly.
	usable(bool) error
	// died returns the error that ended the listener, or nil.
	died() error
	// stop leaves new clients to other processes that have the listener's socket.
	stop()
	// close ends the listener, in all processes unless it was stopped. No client is accepted
	// afterwards.
	close()
}

// frontend has the listener and the backends of one key. One goroutine at a time may call update,
// repair and close. The other methods may be called concurrently.
type frontend struct {
	target *Target
	key    vip.FrontendKey

	ctx    context.Context // canceled when the frontend is closed
	cancel context.CancelFunc
	tasks  sync.WaitGroup // all goroutines of the frontend

	spec     *vip.Frontend // as applied
	listener listener
	turn     atomic.Uint64
	backends atomic.Pointer[backends]
	tally    tally
	ejected  int // usable backends; guarded by outliers.mu
}

// backends is the set from which a frontend chooses. It is immutable; an update replaces it.
type backends struct {
	all      map[netip.AddrPort]*endpoint
	usable   []*endpoint            // those with a weight, in the order of picker's indexes
	index    map[netip.AddrPort]int // of usable; only with affinity
	picker   pick.Picker
	withPort bool
	affinity *affinity      // nil: none
	sources  []netip.Prefix // clients outside are refused; empty: none
	relay    vip.Relay
	service  *service // nil before the first spec
}

// newFrontend returns a frontend without a listener.
func newFrontend(t *Target, spec *vip.Frontend) *frontend {
	f := &frontend{target: t, key: spec.Key}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.backends.Store(&backends{})
	f.choose(spec)
	return f
}

// choose sets spec's backends and closes the endpoints that spec no longer has.
func (f *frontend) choose(spec *vip.Frontend) {
	old := f.backends.Load()
	b := &backends{
		all:      make(map[netip.AddrPort]*endpoint, len(spec.Backends)),
		withPort: spec.SchedulerPort,
		affinity: old.affinity,
		sources:  spec.SourceRanges,
		relay:    spec.Relay.Get(),
	}
	if b.service = old.service; b.service == nil || b.service.key != spec.Service {
		b.service = f.target.join(spec.Service)
	}
	b.service.relay.Store(&b.relay)
	var candidates []pick.Backend
	for _, e := range spec.Backends {
		end := old.all[e.Addr]
		if end == nil {
			end = b.service.newEndpoint(e.Addr)
			f.target.outliers.join(end, f, b.service.key)
		}
		end.state.Most.Store(int64(e.MaxConnections))
		b.all[e.Addr] = end
		if e.Weight > 0 {
			b.usable = append(b.usable, end)
			candidates = append(candidates, pick.Backend{Addr: e.Addr, Weight: uint32(e.Weight), State: &end.state})
		}
	}
	picker, err := pick.New(scheduler(spec), candidates, &f.turn)
	if err != nil {
		panic(err) // Unsupported has accepted the scheduler
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
	f.target.outliers.follow(f, b)
	b.service.wake() // a limit may be higher

	if old.service != nil && old.service != b.service {
		f.target.part(old.service)
	}
	for addr, end := range old.all {
		if b.all[addr] == nil {
			end.close()
		}
	}
	if old.affinity != nil && b.affinity == nil {
		old.affinity.close()
	}
}

// close ends the listener and every connection, and waits for all goroutines.
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
	f.target.part(b.service)
	if b.affinity != nil {
		b.affinity.close()
	}
}

// log returns a logger with the frontend's key. It is created on demand, because most frontends
// never log.
func (f *frontend) log() *slog.Logger { return f.target.log.With("frontend", f.key.String()) }

// complain logs an error of this host, such as missing file descriptors, at most once a second for
// all frontends, because the error affects thousands at once.
func (f *frontend) complain(doing string, err error) {
	if f.target.errorLog.pass(f.target.now(), time.Second) {
		f.log().Warn(doing, "err", err)
	}
}

// maxAttempts bounds the number of backends tried for one client.
const maxAttempts = 8

// attempt connects one client: each call of next returns another backend.
type attempt struct {
	f      *frontend
	client netip.AddrPort
	to     netip.AddrPort // the address that the client connected to; only with TCP
	hash   uint64
	from   *backends // the set that the indexes in tried refer to
	tried  []int
	claim  *affine
	table  *affinity // of claim

	service  *service
	entered  bool        // counted in service
	mayWait  bool        // in the queue of service
	patience *time.Timer // once it has waited

	refused []*endpoint // by these before the attempt
	lost    *endpoint   // failed; nil once another one is tried
}

// attempt returns the attempt of a client that admit has counted in s. The caller ends it after the
// client's connection.
func (f *frontend) attempt(client netip.AddrPort, s *service) *attempt {
	return &attempt{f: f, client: client, service: s}
}

// refuse excludes backends that have refused what the client sent, before the first call of next.
func (a *attempt) refuse(by []*endpoint) {
	if a.refused = by; len(by) > 0 {
		a.lost = by[len(by)-1]
	}
}

// next returns a backend that was not tried yet and isn't full, or nil. Backends that failed
// recently are used only if no other is left. The connection counts in State.Open from here on.
func (a *attempt) next() *endpoint {
	b := a.f.backends.Load()
	if b != a.from {
		a.from, a.tried = b, a.tried[:0]
		for _, e := range a.refused {
			if i := slices.Index(b.usable, e); i >= 0 {
				a.tried = append(a.tried, i)
			}
		}
		a.hash = pick.Hash(a.client, b.withPort)
	}
	if len(b.usable) == 0 {
		return nil
	}
	if b.affinity == nil || a.claim != nil {
		i := a.pick(b)
		if i < 0 {
			return nil
		}
		return b.usable[i]
	}
	claim, addr := b.affinity.claim(a.client.Addr(), func(addr netip.AddrPort) bool {
		i, ok := b.index[addr]
		if !ok || slices.Contains(a.tried, i) || b.usable[i].state.Full() || !b.usable[i].outlier.admits(a.f.target.now(), b.relay.ConnectTimeout) {
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
	a.claim, a.table = claim, b.affinity
	return b.all[addr]
}

// connect calls try for backends with a place until try succeeds, up to maxAttempts. It returns the
// endpoint, or an error if none is left, which may be a reason. An error of try ends the search:
// other backends would fail, too.
func (a *attempt) connect(try func(*endpoint) (bool, error)) (*endpoint, error) {
	for range maxAttempts {
		e, err := a.place()
		if err != nil {
			return nil, err
		}
		if connected, err := a.attemptAt(e, try); connected {
			return e, nil
		} else if err != nil {
			return nil, err
		}
	}
	return nil, unreachable
}

// attemptAt calls try. Without success, also after a panic, it gives e's place to others.
func (a *attempt) attemptAt(e *endpoint, try func(*endpoint) (bool, error)) (connected bool, err error) {
	defer func() {
		if !connected {
			e.leave()
			a.service.wake()
		}
	}()
	return try(e)
}

// pick asks the scheduler, which counts the connection, and marks the result as tried.
func (a *attempt) pick(b *backends) int {
	now := a.f.target.now()
	i := b.picker.Pick(a.hash, now, a.tried)
	for i >= 0 && !b.usable[i].outlier.admits(now, b.relay.ConnectTimeout) { // another client tries it
		b.usable[i].state.Open.Add(-1)
		i = b.picker.Pick(a.hash, now, a.tried)
	}
	if i < 0 {
		i = b.picker.Pick(a.hash, math.MaxInt64, a.tried)
	}
	if i < 0 {
		return i
	}
	a.tried = append(a.tried, i)
	if a.lost != nil {
		a.lost.outlier.retries.Add(1)
		a.lost = nil
	}
	return i
}

// works records that the backend accepted the client. The client's affinity moves to it.
func (a *attempt) works(e *endpoint) {
	e.outlier.connected()
	if a.claim != nil {
		a.table.move(a.claim, e.addr)
	}
}

// failed records that the backend refused the client or did not answer.
func (a *attempt) failed(e *endpoint, err error) {
	a.f.target.stats.failures.Add(1)
	e.outlier.refused(err)
	a.lost = e
}

// end releases the client's affinity and its place in the service after its connection.
func (a *attempt) end() {
	a.exit()
	if a.patience != nil {
		a.patience.Stop()
	}
	if a.claim != nil {
		a.table.release(a.claim)
		a.claim = nil
	}
}
