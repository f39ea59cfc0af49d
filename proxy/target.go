package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/openfiles"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/proxy/loop"
	"github.com/ironvip/ironvip/proxy/passive"
	"github.com/ironvip/ironvip/proxy/steer"
	"github.com/ironvip/ironvip/vip"
)

// Options are the settings of a Target. The zero value is usable.
type Options struct {
	// Own reports whether addr is one of the host's own addresses. Source ranges
	// always allow their connections. Nil: loopback addresses.
	Own func(addr netip.Addr) bool

	// ConnectBudget bounds all attempts for one client, if it is above the service's connect
	// timeout; default 10 s.
	ConnectBudget time.Duration
	// HeaderTimeout bounds the wait for the whole PROXY header of a connection; default 5 s. The
	// protocol's specification recommends at least 3 s, for a repeated TCP segment.
	HeaderTimeout time.Duration
	// UDPIdle ends a UDP session that neither side has used for this time; default
	// 60 s.
	UDPIdle time.Duration

	// Files bounds the descriptors for traffic: of listeners, of TCP connections (two each) and of
	// UDP sessions. Clients beyond it are refused. Default: see openfiles.Divide.
	Files int

	// Sockets opens the listeners. It must bind to addresses that the host hasn't got yet. Nil: a set that has inherited none.
	Sockets *sockets.Set
	// SkLookup lets one socket for each protocol and family listen for all VIPs, if the kernel and
	// the process's rights allow it; see Entrance.
	SkLookup bool
	// Succeeds means that the process that had the inherited sockets accepts clients until Settle, and this Target none.
	Succeeds bool

	// Passive is the table of what the connections of clients show of their backends; the Target is
	// its only writer. Report gets the events of ejections. Nil: not reported.
	Passive *table.Table[vip.PassiveKey, vip.PassiveHealth]
	Report  func(event.Event)

	// Log defaults to discarding.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	o.ConnectBudget = cmp.Or(o.ConnectBudget, 10*time.Second)
	o.HeaderTimeout = cmp.Or(o.HeaderTimeout, 5*time.Second)
	o.UDPIdle = cmp.Or(o.UDPIdle, 60*time.Second)
	o.Files = cmp.Or(o.Files, openfiles.Divide(openfiles.Limit()).Traffic)
	if o.Own == nil {
		o.Own = netip.Addr.IsLoopback
	}
	if o.Sockets == nil {
		o.Sockets = loop.NewSockets()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Target is the userspace dataplane. It listens at the addresses of frontends, whether or not they are the host's yet: its
// user adds those of VIPs. One goroutine at a time may call Apply, Actual and Close. The other methods may be called
// concurrently.
type Target struct {
	reconcile.Quiet[vip.FrontendKey, vip.Frontend]

	opts        Options
	log         *slog.Logger
	pipes       *pipes
	loops       loop.Loops
	timeouts    *loop.Deadlines // of connections
	dials       *loop.Deadlines // of connects
	balance     *balance.Balancer
	headerLog   balance.Throttle
	steering    *steer.Steering // nil: each frontend has a socket of its own
	about       Entrance
	unreachable error          // why no client can reach this process; see enter
	background  sync.WaitGroup // tasks of Drain
	reporter    sync.WaitGroup // of passive health
	stop        func()         // ends it

	mu        sync.RWMutex // writers: Apply, Close
	frontends map[vip.FrontendKey]*frontend
	closed    bool
}

var _ reconcile.Plane = (*Target)(nil)

// Ignored implements reconcile.Plane.
func (*Target) Ignored(*vip.Service) []vip.Problem { return nil }

// The grains of the deadlines.
const (
	timeoutGrain = 250 * time.Millisecond
	dialGrain    = 10 * time.Millisecond
)

// errClosed is the error of Apply after Close.
var errClosed = errors.New("the userspace proxy is closed")

// New returns a Target without listeners.
func New(opts Options) *Target {
	opts = opts.withDefaults()
	t := &Target{
		opts:      opts,
		log:       opts.Log,
		pipes:     &pipes{most: openfiles.Divide(openfiles.Limit()).Pipes / 2},
		balance:   balance.New(balance.Options{Own: opts.Own, ConnectBudget: opts.ConnectBudget, Files: opts.Files, Log: opts.Log}),
		frontends: make(map[vip.FrontendKey]*frontend),
	}
	ctx, stop := context.WithCancel(context.Background())
	t.stop = stop
	t.timeouts, t.dials = loop.NewDeadlines(t.balance.Now, timeoutGrain), loop.NewDeadlines(t.balance.Now, dialGrain)
	if opts.Succeeds {
		t.loops.Hold()
	}
	t.enter()
	backends := t.balance.Passive
	t.reporter.Go(func() { backends.Run(ctx, passive.Sink{Rows: opts.Passive, Event: opts.Report, Log: t.log}) })
	return t
}

// Apply implements reconcile.Target. An update of a listening frontend replaces only its set of
// backends: the listener and the connections of remaining backends are not affected. A failed
// update leaves the frontend unchanged.
func (t *Target) Apply(ctx context.Context, batch []reconcile.Update[vip.FrontendKey, vip.Frontend]) error {
	if t.unreachable != nil {
		return t.unreachable
	}
	for i := range batch {
		if err := ctx.Err(); err != nil {
			return err
		}
		if t.isShut() {
			return errClosed
		}
		u := &batch[i]
		if u.New == nil {
			t.remove(u.Key)
			u.Err = nil
		} else {
			u.Err = t.put(u.New)
		}
	}
	return nil
}

// LastTurn returns when the loop that is furthest behind has last shown that it runs. Each does so every second, with
// and without work. The time is zero before the first listener.
func (t *Target) LastTurn() time.Time { return t.loops.LastTurn() }

// now returns the monotonic time for all expirations, in nanoseconds.
func (t *Target) isShut() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.closed
}

func (t *Target) frontend(key vip.FrontendKey) *frontend {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.frontends[key]
}

// put applies spec. It checks the sockets themselves, so Repair makes no difference.
func (t *Target) put(spec *vip.Frontend) error {
	if err := Unsupported(spec); err != nil {
		return err
	}
	f := t.frontend(spec.Key)
	if f == nil {
		return t.open(spec)
	}
	if spec.Kind != vip.OnVIP && f.spec.Kind == vip.OnVIP && !host.CanBind(spec.Key.Addr) {
		return listenProblem(spec, unix.EADDRNOTAVAIL)
	}
	f.choose(spec)
	err := f.listener.died()
	if err == nil {
		err = f.listener.usable(spec.Usable())
	} else {
		f.listener.close()
		err = f.listen()
	}
	if err != nil {
		return listenProblem(spec, err)
	}
	return nil
}

// open starts a frontend: its backends first, then the listener.
func (t *Target) open(spec *vip.Frontend) error {
	f := &frontend{Frontend: t.balance.NewFrontend(spec), target: t, spec: spec}
	if err := f.listen(); err != nil {
		f.close()
		return listenProblem(spec, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frontends[spec.Key] = f
	return nil
}

// remove ends a frontend, if it exists.
func (t *Target) remove(key vip.FrontendKey) {
	f := t.frontend(key)
	if f == nil {
		return
	}
	t.mu.Lock()
	delete(t.frontends, key)
	t.mu.Unlock()
	f.close()
}

// Actual implements reconcile.Target. After a start it yields no frontends.
func (t *Target) Actual(ctx context.Context) iter.Seq2[reconcile.Observed[vip.Frontend], error] {
	type observed = reconcile.Observed[vip.Frontend]
	return func(yield func(observed, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(observed{}, err)
			return
		}
		if t.steering != nil {
			if err := t.steering.Refresh(); err != nil {
				yield(observed{}, fmt.Errorf("read the program of sk_lookup: %w", err))
				return
			}
		}
		t.mu.RLock()
		frontends := slices.Collect(maps.Values(t.frontends))
		t.mu.RUnlock()
		for _, f := range frontends {
			if err := ctx.Err(); err != nil {
				yield(observed{}, err)
				return
			}
			o := observed{Value: *f.spec}
			if err := f.listener.died(); err != nil {
				o.Damage = append(o.Damage, fmt.Sprintf("listener %s died: %v", f.Key, err))
			}
			if !yield(o, nil) {
				return
			}
		}
	}
}

// Settle begins to accept clients after an earlier process. Clients of frontends that only that one had are refused from now
// on. Call it once every frontend has been applied and the earlier process accepts no more clients.
func (t *Target) Settle() {
	if t.steering != nil {
		t.steering.Settle()
	}
	t.loops.Release()
}

// Connections implements reconcile.Connections: TCP connections, including those being established,
// and UDP sessions.
func (t *Target) Connections(_ context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	f := t.frontend(key)
	if f == nil {
		return nil, nil
	}
	open := make(map[netip.AddrPort]int)
	for _, e := range f.Endpoints() {
		if n := e.State.Open.Load(); n > 0 {
			open[e.Addr] = int(n)
		}
	}
	return open, nil
}

// Close ends every connection and waits for all goroutines. The listening sockets stay open in other processes that
// have them.
func (t *Target) Close() error {
	frontends := t.leave()
	t.mu.Lock()
	t.frontends = nil
	t.mu.Unlock()
	onEach(frontends, (*frontend).close)
	if t.steering != nil {
		t.steering.Close()
	}
	t.loops.Close()
	t.timeouts.Close()
	t.dials.Close()
	t.pipes.close()
	t.background.Wait()
	return nil
}

// Report returns the state of the proxy, for people and metrics.
func (t *Target) Report() balance.Report { return t.balance.Report() }

// Usage returns the state of the descriptors for traffic.
func (t *Target) Usage() balance.Usage { return t.balance.Usage() }

// Len returns the number of frontends.
func (t *Target) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.frontends)
}

// Keys returns the frontends.
func (t *Target) Keys() []vip.FrontendKey {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Keys(t.frontends))
}
