// Package process runs the userspace proxy, for an agent that sends it frontends over a connection of package mirror. The
// agent may end, restart or hang: the proxy goes on with what it has. It keeps no file.
//
// Server answers what proxy/remote asks, which is a reconcile.Plane in the agent. It runs in the process of its own that
// Main is (`ironvip proxy`), or in the agent's. Protocol.go has the questions and answers, upgrade.go the replacement of a
// process by one of another version.
package process

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/mirror"
	"github.com/ironvip/ironvip/internal/openfiles"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy"
	"github.com/ironvip/ironvip/proxy/loop"
	"github.com/ironvip/ironvip/vip"
)

// Options are the settings of a Server.
type Options struct {
	Version string
	Sockets *sockets.Set // opens the listeners; nil: a set that has inherited none
	Log     *slog.Logger
}

// Server is a proxy that an agent controls.
type Server struct {
	o       Options
	conns   mirror.Server
	host    *table.Table[struct{}, hostnet.Snapshot]
	passive *table.Table[vip.PassiveKey, vip.PassiveHealth]
	events  *table.Table[uint64, event.Event]
	run     *table.Table[struct{}, Run]

	apply   chan struct{} // is taken while the frontends are changed or read; has room for one
	changes uint64        // of frontends, from 1 on; whoever has taken apply uses it

	mu       sync.Mutex
	settings Settings
	former   atomic.Bool                // the process that this one replaced has not ended
	onDemand bool                       // systemd has the socket, and starts the process again
	target   *proxy.Target              // nil until an agent has sent settings
	drains   map[*proxy.Target]struct{} // retired ones
	last     uint64                     // ID of the last event, above those of earlier processes
	draining sync.WaitGroup
	closed   context.Context // ends with the server
	close    context.CancelFunc
}

// New returns a Server without frontends.
func New(o Options) *Server {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Sockets = cmp.Or(o.Sockets, loop.NewSockets())
	clock := table.NewClock(time.Now())
	s := &Server{o: o,
		host:    table.New(clock, hostnet.KeyOf, hostnet.Same),
		passive: table.New(clock, vip.KeyOfPassiveHealth, func(a, b vip.PassiveHealth) bool { return a == b }),
		events:  table.New(clock, func(e *event.Event) uint64 { return e.ID }, nil),
		run:     table.New(clock, func(*Run) struct{} { return struct{}{} }, nil),
		drains:  make(map[*proxy.Target]struct{}),
		apply:   make(chan struct{}, 1), changes: 1,
	}
	began := time.Now()
	s.run.Set(Run{began.UnixNano()})
	s.last = uint64(began.UnixMicro())
	s.closed, s.close = context.WithCancel(context.Background())
	s.conns = mirror.Server{
		Version: o.Version, Log: o.Log,
		Mirror:  []mirror.Mirrored{mirror.Into(TableHost, s.host)},
		Publish: []mirror.Published{mirror.Publish(TableRun, s.run), mirror.Publish(TablePassive, s.passive), mirror.Publish(TableEvents, s.events)},
		Answer:  s.methods(),
	}
	return s
}

// Serve accepts the connections of agents until the context ends. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error { return s.conns.Serve(ctx, l) }

// Dial returns a connection of an agent in the same process.
func (s *Server) Dial(context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	go s.conns.ServeConn(s.closed, far) // until the agent or the server ends
	return near, nil
}

// Target returns the proxy, or nil before an agent has sent settings.
func (s *Server) Target() *proxy.Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.target
}

// LastTurn is that of the proxy: see proxy.Target.
func (s *Server) LastTurn() time.Time {
	if t := s.Target(); t != nil {
		return t.LastTurn()
	}
	return time.Time{}
}

// Idle reports whether there are no frontends, and no connections of earlier ones, also in a process that this one replaced.
func (s *Server) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.drains) == 0 && !s.former.Load() && (s.target == nil || s.target.Len() == 0)
}

// turnTime bounds the wait for another change: of a former connection, or while the process is replaced.
const turnTime = 3 * time.Second

var (
	errBusy   = errors.New("the proxy is being replaced, or busy with a former change")
	errClosed = errors.New("the proxy ends")
)

// turn waits until nothing else changes or reads the frontends. The caller calls done.
func (s *Server) turn(ctx context.Context) (done func(), err error) {
	late := time.NewTimer(turnTime)
	defer late.Stop()
	select {
	case s.apply <- struct{}{}:
	case <-late.C:
		return nil, errBusy
	}
	done = func() { <-s.apply }
	switch {
	case ctx.Err() != nil: // of a connection that was replaced meanwhile
		err = ctx.Err()
	case s.closed.Err() != nil:
		err = errClosed
	default:
		return done, nil
	}
	done()
	return nil, err
}

// configure makes the proxy, unless there is one. One with frontends keeps its settings.
func (s *Server) configure(ctx context.Context, settings Settings) (Configured, error) {
	done, err := s.turn(ctx)
	if err != nil {
		return Configured{}, err
	}
	defer done()
	s.changes++
	if t := s.Target(); t != nil && s.settings != settings && t.Len() == 0 {
		s.mu.Lock()
		s.target = nil
		s.mu.Unlock()
		_ = t.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.target == nil {
		s.settings = settings
		s.target = s.newTarget(false)
	}
	return Configured{Entrance: s.target.Entrance(), Settings: s.settings}, nil
}

// newTarget returns a proxy with the settings. The caller holds mu.
func (s *Server) newTarget(succeeds bool) *proxy.Target {
	return proxy.New(proxy.Options{
		SkLookup: s.settings.SkLookup, Own: hostnet.IsOwn(s.host), Sockets: s.o.Sockets, Succeeds: succeeds,
		Passive: s.passive, Report: s.report, Log: s.o.Log,
	})
}

// eventsKept bounds the events for an agent that is not connected.
const eventsKept = 1000

// report keeps an event for the agent.
func (s *Server) report(e event.Event) {
	s.mu.Lock()
	s.last++
	e.ID, e.Time = s.last, time.Now()
	s.mu.Unlock()
	s.events.Set(e)
	s.events.Delete(e.ID - eventsKept)
}

// methods returns what an agent can ask.
func (s *Server) methods() []mirror.Method {
	return []mirror.Method{
		mirror.Answer(AskConfigure, s.configure),
		mirror.Answer(AskApply, s.applyAll),
		mirror.Answer(AskActual, s.actual),
		mirror.Answer(AskRetire, func(ctx context.Context, within time.Duration) (bool, error) { return true, s.retire(ctx, within) }),
		mirror.Answer(AskReport, func(context.Context, bool) (Report, error) { return s.reportNow(), nil }),
		answer(s, AskKeys, func(_ context.Context, t *proxy.Target, _ bool) ([]vip.FrontendKey, error) { return t.Keys(), nil }),
		mirror.Answer(AskConnections, s.connections),
		answer(s, AskTotals, func(ctx context.Context, t *proxy.Target, _ bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
			return t.Totals(ctx, func(vip.FrontendKey) bool { return true })
		}),
		answer(s, AskBreakdown, func(ctx context.Context, t *proxy.Target, key vip.FrontendKey) (Breakdown, error) {
			b, found, err := t.Breakdown(ctx, key)
			return Breakdown{b, found}, err
		}),
		answer(s, AskList, func(ctx context.Context, t *proxy.Target, keys []vip.FrontendKey) (out []reconcile.Connection, err error) {
			for _, key := range keys {
				if _, err := t.ListFrontend(ctx, key, func(c reconcile.Connection) bool { out = append(out, c); return true }); err != nil {
					return nil, err
				}
			}
			return out, err
		}),
	}
}

// answer answers what needs a proxy. Without one, there is nothing.
func answer[Q, A any](s *Server, name string, f func(context.Context, *proxy.Target, Q) (A, error)) mirror.Method {
	return mirror.Answer(name, func(ctx context.Context, q Q) (A, error) {
		t := s.Target()
		if t == nil {
			var none A
			return none, nil
		}
		return f(ctx, t, q)
	})
}

// errUnconfigured is the error of a change before the settings.
var errUnconfigured = errors.New("the proxy has no settings yet")

// applyAll implements reconcile.Plane's Apply.
func (s *Server) applyAll(ctx context.Context, batch []Update) ([]Result, error) {
	done, err := s.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	t := s.Target()
	if t == nil {
		return nil, errUnconfigured
	}
	updates := make([]reconcile.Update[vip.FrontendKey, vip.Frontend], len(batch))
	for i, u := range batch {
		updates[i] = reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: u.Key, New: u.New}
	}
	s.changes += uint64(len(batch))
	if err := t.Apply(s.closed, updates); err != nil { // not with the connection: what was begun is done
		return nil, err
	}
	results := make([]Result, len(batch))
	for i := range updates {
		results[i] = resultOf(updates[i].Err)
	}
	return results, nil
}

// actual implements reconcile.Plane's Actual. It costs O(frontends), and the time to send all of them only if the agent does
// not know what they are.
func (s *Server) actual(ctx context.Context, known uint64) (out Actual, err error) {
	done, err := s.turn(ctx)
	if err != nil {
		return out, err
	}
	defer done()
	out.Changes, out.Damaged = s.changes, make(map[vip.FrontendKey][]string)
	t := s.Target()
	if t == nil {
		return out, nil
	}
	for o, err := range t.Actual(ctx) {
		if err != nil {
			return out, err
		}
		if known != s.changes {
			out.All = append(out.All, o.Value)
		}
		if len(o.Damage) > 0 {
			out.Damaged[o.Value.Key] = o.Damage
		}
	}
	return out, nil
}

// connections counts those of a frontend by backend, also the ones of a retired proxy.
func (s *Server) connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	targets := slices.Collect(maps.Keys(s.drains))
	if s.target != nil {
		targets = append(targets, s.target)
	}
	out := map[netip.AddrPort]int{}
	for _, t := range targets {
		open, err := t.Connections(ctx, key)
		if err != nil {
			return nil, err
		}
		for addr, n := range open {
			out[addr] += n
		}
	}
	return out, nil
}

// retire ends all listeners, and lets the open connections go on for some time.
func (s *Server) retire(ctx context.Context, within time.Duration) error {
	done, err := s.turn(ctx)
	if err != nil {
		return err
	}
	defer done()
	t := s.Target()
	if t == nil {
		return nil
	}
	s.changes++
	t.Leave() // before another one begins
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target = nil
	s.drains[t] = struct{}{}
	s.draining.Go(func() {
		ctx, cancel := context.WithTimeout(s.closed, within)
		defer cancel()
		t.Drain(ctx)
		_ = t.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.drains, t)
	})
	return nil
}

// reportNow returns what an agent reads from time to time.
func (s *Server) reportNow() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := Report{Limit: openfiles.Limit()}
	for t := range s.drains {
		r.Draining += t.Usage().Connections
	}
	if s.target != nil {
		r.Report, r.Frontends = s.target.Report(), int64(s.target.Len())
	}
	return r
}

// Drain accepts no more clients, and waits for the end of the open connections, or of ctx.
func (s *Server) Drain(ctx context.Context) {
	if t := s.Target(); t != nil {
		t.Drain(ctx)
	}
}

// Close ends all connections.
func (s *Server) Close() error {
	s.close()
	s.apply <- struct{}{} // the last change ends first, and none begins
	s.draining.Wait()
	s.mu.Lock()
	t := s.target
	s.target = nil
	s.mu.Unlock()
	if t == nil {
		return nil
	}
	return t.Close()
}
