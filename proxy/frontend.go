package proxy

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/proxy/passive"
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

	life  context.Context // until the frontend is closed
	end   context.CancelFunc
	tasks sync.WaitGroup // the goroutines of the frontend, and the tasks of its clients

	spec     *vip.Frontend // as applied
	listener listener
	turn     atomic.Uint64
	backends atomic.Pointer[backends]
	tally    tally
	passive  passive.Frontend
}

// backends is the set from which a frontend chooses. It is immutable; an update replaces it.
type backends struct {
	all      endpoints
	usable   endpoints // those with a weight; picker has their indexes
	picker   pick.Picker
	withPort bool
	affinity *affinity      // nil: none
	sources  []netip.Prefix // clients outside are refused; empty: none
	relay    *vip.ProxySettings
	service  *service // nil before the first spec
}

// newFrontend returns a frontend without a listener.
func newFrontend(t *Target, spec *vip.Frontend) *frontend {
	f := &frontend{target: t, key: spec.Key}
	f.life, f.end = context.WithCancel(context.Background())
	f.backends.Store(&noBackends)
	f.choose(spec)
	return f
}

// noBackends is the set of a frontend without a spec.
var noBackends backends

// defaultRelay is the settings of all frontends without others.
var defaultRelay = (*vip.ProxySettings)(nil).Get()

func relayOf(spec *vip.Frontend) *vip.ProxySettings {
	if spec.Relay == nil {
		return &defaultRelay
	}
	relay := spec.Relay.Get()
	return &relay
}

// choose sets spec's backends and closes the endpoints that spec no longer has.
func (f *frontend) choose(spec *vip.Frontend) {
	old := f.backends.Load()
	b := &backends{
		all:      make(endpoints, 0, len(spec.Backends)),
		usable:   make(endpoints, 0, len(spec.Backends)),
		withPort: spec.SchedulerPort,
		affinity: old.affinity,
		sources:  spec.SourceRanges,
		relay:    relayOf(spec),
	}
	if b.service = old.service; b.service == nil || b.service.key != spec.Service {
		b.service = f.target.join(spec.Service, b.relay)
	}
	b.service.relay.Store(b.relay)
	if b.relay.MaxConnections > 0 || b.relay.MaxQueue > 0 {
		f.target.services.report(b.service)
	}
	candidates := make([]pick.Backend, 0, len(spec.Backends))
	members := make([]*passive.Member, 0, len(spec.Backends))
	for _, e := range spec.Backends {
		end := old.all.of(e.Addr)
		switch {
		case end == nil:
			end = b.service.newEndpoint(e.Addr)
			f.target.passive.Join(&end.passive, vip.PassiveKey{Service: b.service.key, Protocol: f.key.Protocol, Addr: e.Addr}, &f.passive, b.service.passive)
			end.state.Avoid = end.passive.Avoid()
		case e.Weight > 0 && old.usable.of(e.Addr) == nil:
			end.passive.Readmit()
		}
		end.state.Most.Store(int64(e.MaxConnections))
		b.all = append(b.all, end)
		if e.Weight > 0 {
			b.usable = append(b.usable, end)
			members = append(members, &end.passive)
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
	f.spec = spec
	f.backends.Store(b)
	f.target.passive.Use(&f.passive, members)
	b.service.wake() // a limit may be higher

	if old.service != nil && old.service != b.service {
		f.target.part(old.service)
	}
	for _, end := range old.all {
		if b.all.of(end.addr) == nil {
			end.close()
		}
	}
}

// close ends the listener and every connection, and waits for all goroutines.
func (f *frontend) close() {
	if f.listener != nil {
		f.listener.close()
	}
	f.end()
	b := f.backends.Load()
	for _, e := range b.all {
		e.close()
	}
	f.tasks.Wait()
	f.target.busy.Delete(f)
	f.target.part(b.service)
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
