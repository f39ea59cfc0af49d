package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/mirror"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/process"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/proxytest"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// newServer returns a proxy that ends with the test.
func newServer(t testing.TB) *process.Server {
	t.Helper()
	s := process.New(process.Options{Version: "v2"})
	t.Cleanup(func() { expect.Succeed(t, s.Close()) })
	return s
}

// listen makes a server answer at a socket, until end.
func listen(t testing.TB, s *process.Server, path string) (end func()) {
	t.Helper()
	l := must.Get(mirror.Listen(path, "proxy"))(t)
	return scope.Go(t, func(ctx context.Context) error { return s.Serve(ctx, l) })
}

// agent is a Client with the addresses of its frontends and its Reconciler, as an agent has them.
type agent struct {
	*Client
	plane   *vips.Plane
	r       *reconcile.Reconciler[vip.FrontendKey, vip.Frontend]
	desired *table.Table[vip.FrontendKey, vip.Frontend]
	applied *table.Table[vip.FrontendKey, reconcile.AppliedFrontend]
	passive *table.Table[vip.PassiveKey, vip.PassiveHealth]
	events  *event.Log
	end     func()
}

func start(t testing.TB, o ClientOptions, desired ...*vip.Frontend) *agent {
	t.Helper()
	return startWith(t, o, time.Millisecond, desired...)
}

// startWith is start with a time before a failed change is tried again.
func startWith(t testing.TB, o ClientOptions, backoff time.Duration, desired ...*vip.Frontend) *agent {
	t.Helper()
	clock := &table.Clock{}
	a := &agent{desired: table.New(clock, vip.KeyOfFrontend, nil), applied: table.New(clock, reconcile.KeyOfApplied, nil),
		passive: table.New(clock, vip.KeyOfPassiveHealth, nil), events: event.NewLog(1000, time.Now)}
	for _, f := range desired {
		a.desired.Set(*f)
	}
	host := table.New(clock, hostnet.KeyOf, hostnet.Same)
	host.Set(hostnet.Snapshot{})
	o.Name, o.Host, o.Passive, o.Events = "a", host, a.passive, a.events
	a.Client = NewClient(o)
	a.plane = must.Get(vips.New(vips.Options{Plane: a.Client, Sockets: true}))(t)
	a.r = reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{Desired: a.desired, Target: a.plane, Applied: a.applied,
		MinBackoff: backoff, MaxBackoff: 10 * backoff, Resync: -1, Events: a.events})
	stopClient, stopLoop := scope.Go(t, a.Run), scope.Go(t, a.r.Run)
	a.end = func() { stopLoop(); stopClient(); expect.Succeed(t, a.plane.Close()) }
	return a
}

// works waits until a frontend is applied without a problem.
func (a *agent) works(t testing.TB, key vip.FrontendKey) {
	t.Helper()
	wait.Until(t, fmt.Sprintf("%s is applied", key), func() bool {
		row, _, tried := a.applied.Get(key)
		return tried && row.Problem == nil
	}, func() any { row, _, _ := a.applied.Get(key); return row.Problem })
}

// A connection that is open when the agent ends goes on, also while there is no agent; new clients are served. The next
// agent finds what is there, and writes nothing.
func TestAgentRestarts(t *testing.T) {
	s := newServer(t)
	f := proxytest.OnVIP(proxytest.FreeKey(t, "127.96.0.1", vip.TCP), proxytest.Echo(t))
	first := start(t, ClientOptions{Dial: s.Dial}, f)
	first.works(t, f.Key)
	open := proxytest.Dial(t, f.Key)
	must.Succeed(t, open.Echoes())
	first.end()
	must.Succeed(t, open.Echoes(), "without an agent")
	proxytest.Served(t, f.Key)

	second := start(t, ClientOptions{Dial: s.Dial}, f)
	<-second.r.Synced()
	second.works(t, f.Key)
	expect.Equal(t, second.r.Stats().Writes, 0, "written by the second agent")
	must.Succeed(t, open.Echoes(), "with the second agent")
	wait.Until(t, "one connection is counted", func() bool {
		n, err := second.Connections(t.Context(), f.Key)
		return err == nil && n[f.Backends[0].Addr] == 1
	})
	second.desired.Delete(f.Key)
	wait.Until(t, "the frontend ends", func() bool { return open.Echoes() != nil })
	second.end()
}

// A process that starts again has no frontends, and gets them at once, without a resync. While there is none, that is an
// error of the dataplane, and what the agent wants then reaches the next one at once, however long its retry takes.
func TestProcessRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "proxy.sock")
	f := proxytest.OnVIP(proxytest.FreeKey(t, "127.96.0.1", vip.TCP), proxytest.Echo(t))
	s := process.New(process.Options{})
	end := listen(t, s, path)
	a := startWith(t, ClientOptions{Socket: path}, time.Hour, f)
	defer a.end()
	a.works(t, f.Key)
	proxytest.Served(t, f.Key)
	end()
	must.Succeed(t, s.Close())
	g := proxytest.OnVIP(proxytest.FreeKey(t, "127.96.0.2", vip.TCP), proxytest.Echo(t))
	a.desired.Set(*g)
	wait.Until(t, "the error is seen", func() bool { return a.r.Stats().TargetError != "" }) // there is no connection, or it has just ended
	defer listen(t, newServer(t), path)()
	a.works(t, g.Key)
	proxytest.Served(t, g.Key)
	wait.For(t, "the first frontend is served again", func() error {
		c, err := net.Dial("tcp", f.Key.AddrPort().String())
		if err == nil {
			c.Close()
		}
		return err
	})
	expect.Equal(t, a.r.Stats().TargetError, "")
}

// A proxy may end in the middle of a change.
func TestEndDuringAChange(t *testing.T) {
	keys := make([]vip.FrontendKey, 20)
	for i := range keys {
		keys[i] = proxytest.FreeKey(t, "127.96.0.1", vip.TCP)
	}
	for range 20 {
		s := process.New(process.Options{})
		var all []*vip.Frontend
		for _, key := range keys {
			all = append(all, proxytest.OnVIP(key))
		}
		a := start(t, ClientOptions{Dial: s.Dial}, all...)
		wait.Until(t, "the connection", func() bool { return a.State().Connected })
		must.Succeed(t, s.Close())
		a.end()
	}
}

// A frontend is the same on both sides, whatever it has.
func TestFrontendsTravelWhole(t *testing.T) {
	s := newServer(t)
	a := start(t, ClientOptions{Dial: s.Dial})
	defer a.end()
	f := proxytest.OnVIP(proxytest.FreeKey(t, "127.96.0.1", vip.TCP), netip.MustParseAddrPort("192.0.2.7:80"), netip.MustParseAddrPort("[2001:db8::7]:80"))
	f.Port, f.Scheduler, f.SchedulerPort, f.Affinity, f.DrainTimeout = "http", vip.SourceHash, true, time.Minute, time.Hour
	f.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	f.Relay = &vip.ProxySettings{MaxConnections: 5, ProxyProtocol: vip.ProxyV2, AcceptProxyFrom: []netip.Prefix{netip.MustParsePrefix("::/0")}}
	f.Backends[0].Weight, f.Backends[0].MaxConnections, f.Backends[0].Leaving = 0, 7, vip.InstantOf(time.Now())
	a.desired.Set(*f)
	a.works(t, f.Key)
	all := must.Get(readAll(s.Target()))(t)
	must.Len(t, all, 1)
	diff := cmp.Diff(*f, all[0].Value, cmpopts.EquateComparable(netip.AddrPort{}, netip.Addr{}, netip.Prefix{}))
	expect.NoDiff(t, diff)
	bad := proxytest.OnVIP(proxytest.FreeKey(t, "127.96.0.1", vip.TCP))
	bad.Forward = vip.ForwardDirect
	a.desired.Set(*bad)
	wait.Until(t, "it is refused", func() bool { _, _, tried := a.applied.Get(bad.Key); return tried })
	row, _, _ := a.applied.Get(bad.Key)
	if row.Problem == nil || row.Problem.Code != vip.CodeUnsupported || row.Problem.Hint == "" {
		t.Errorf("%+v", row.Problem)
	}
}

// The process sends its frontends only to an agent that does not know them: a later read costs the same for any number of
// frontends, also after changes. It sees what another agent has changed, and a refused frontend is no drift.
func TestAReadSendsOnlyWhatIsUnknown(t *testing.T) {
	s := newServer(t)
	var received atomic.Int64
	dial := func(ctx context.Context) (net.Conn, error) {
		c, err := s.Dial(ctx)
		return counted{c, &received}, err
	}
	a := start(t, ClientOptions{Dial: dial})
	defer a.end()
	cost := func() int64 {
		before := received.Load()
		all := must.Get(readAll(a.Client))(t)
		want := must.Get(readAll(s.Target()))(t)
		expect.Equal(t, len(all), len(want), "frontends")
		diff := cmp.Diff(want, all, cmpopts.EquateComparable(netip.AddrPort{}, netip.Addr{}, netip.Prefix{}),
			cmpopts.SortSlices(func(a, b reconcile.Observed[vip.Frontend]) bool {
				return vip.CompareFrontendKeys(a.Value.Key, b.Value.Key) < 0
			}))
		expect.NoDiff(t, diff)
		return received.Load() - before
	}
	put := func() *vip.Frontend {
		f := proxytest.OnVIP(proxytest.FreeKey(t, "127.96.0.1", vip.TCP), netip.MustParseAddrPort("192.0.2.7:80"))
		a.desired.Set(*f)
		a.works(t, f.Key)
		return f
	}
	first := put()
	few := cost()
	for range 50 {
		put()
	}
	last := put()
	a.desired.Delete(last.Key)
	wait.Until(t, "the frontend is removed", func() bool { return s.Target().Len() == 51 })
	bad := proxytest.OnVIP(proxytest.FreeKey(t, "127.96.0.1", vip.TCP))
	bad.Forward = vip.ForwardDirect
	a.desired.Set(*bad)
	wait.Until(t, "it is refused", func() bool { _, _, tried := a.applied.Get(bad.Key); return tried })
	worse := *first
	worse.Forward = vip.ForwardDirect
	a.desired.Set(worse)
	wait.Until(t, "the change is refused", func() bool { row, _, _ := a.applied.Get(first.Key); return row.Problem != nil })
	expect.AtMost(t, cost(), few+10, "bytes of a read")

	other := start(t, ClientOptions{Dial: s.Dial}, last)
	other.works(t, last.Key)
	other.end()
	wait.Until(t, "the other agent's frontend is removed", func() bool { return s.Target().Len() == 51 })
}

// counted is a connection that counts what it receives.
type counted struct {
	net.Conn
	received *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received.Add(int64(n))
	return n, err
}

func readAll(p reconcile.Plane) (out []reconcile.Observed[vip.Frontend], err error) {
	for o, err := range p.Actual(context.Background()) {
		if err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}

// Counters, connections and passive health are those of the proxy.
func TestReports(t *testing.T) {
	s := newServer(t)
	a := start(t, ClientOptions{Dial: s.Dial})
	defer a.end()
	backend := proxytest.Echo(t)
	silent := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	refuses := netip.MustParseAddrPort(silent.Addr().String())
	silent.Close()
	f := proxytest.OnVIP(proxytest.FreeKey(t, "127.96.0.1", vip.TCP), backend, refuses)
	a.desired.Set(*f)
	a.works(t, f.Key)
	for range 10 {
		proxytest.Served(t, f.Key)
	}
	open := proxytest.Dial(t, f.Key)
	must.Succeed(t, open.Echoes())
	ctx := t.Context()
	wait.For(t, "the counters", func() error { // bytes are counted after they were sent
		b, found, err := a.Breakdown(ctx, f.Key)
		if err != nil || !found || b.Connections != 11 || b.Active < 1 || b.In.Bytes != 55 || b.Endpoints[backend].Out.Bytes != 55 {
			return fmt.Errorf("%+v, %v, %w", b, found, err)
		}
		return nil
	})
	totals := must.Get(a.Totals(ctx, func(k vip.FrontendKey) bool { return k == f.Key }))(t)
	expect.Equal(t, totals[f.Key].Connections, 11)
	expect.Equal(t, len(must.Get(a.Totals(ctx, func(vip.FrontendKey) bool { return false }))(t)), 0, "totals of others")
	var listed []reconcile.Connection
	must.Succeed(t, a.ListConnections(ctx, func(vip.FrontendKey) bool { return true }, func(c reconcile.Connection) bool { listed = append(listed, c); return true }))
	if !slices.ContainsFunc(listed, func(c reconcile.Connection) bool { return c.Client.String() == open.LocalAddr().String() }) {
		t.Errorf("%+v", listed)
	}
	if _, found, err := a.Breakdown(ctx, vip.FrontendKey{Port: 1}); found || err != nil {
		t.Errorf("of a frontend that isn't there: %v, %v", found, err)
	}
	key := vip.PassiveKey{Service: f.Service, Protocol: vip.TCP, Addr: refuses}
	wait.Until(t, "the backend was ejected", func() bool { row, _, known := a.passive.Get(key); return known && row.Since != 0 })
	wait.Until(t, "the event arrives", func() bool {
		events, _ := a.events.Since(0)
		return slices.ContainsFunc(events, func(e event.Event) bool { return e.Kind == "backend_ejected" })
	})
	wait.Until(t, "the failures are reported", func() bool { return a.Report().Failures[key].Connects > 0 })
}

// A retired proxy refuses clients, and its connections go on for the given time.
func TestRetire(t *testing.T) {
	s := newServer(t)
	a := start(t, ClientOptions{Dial: s.Dial})
	f := proxytest.OnVIP(proxytest.FreeKey(t, "127.96.0.1", vip.TCP), proxytest.Echo(t))
	a.desired.Set(*f)
	a.works(t, f.Key)
	short, long := proxytest.Dial(t, f.Key), proxytest.Dial(t, f.Key)
	must.Succeed(t, errors.Join(short.Echoes(), long.Echoes()))
	a.end()

	c := NewClient(ClientOptions{Dial: s.Dial, Host: table.New(&table.Clock{}, hostnet.KeyOf, hostnet.Same), Events: a.events, Log: slog.New(slog.DiscardHandler)})
	stop := scope.Go(t, c.Run)
	defer stop()
	must.Succeed(t, c.Retire(t.Context(), time.Hour))
	wait.Until(t, "clients are refused", func() bool {
		c, err := net.Dial("tcp", f.Key.AddrPort().String())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	must.Succeed(t, errors.Join(short.Echoes(), long.Echoes()))
	expect.Equal(t, must.Get(c.Ask(t.Context()))(t).Draining, 2, "connections")
	expect.False(t, s.Idle())
	short.Close()
	wait.Until(t, "one is left", func() bool { r, err := c.Ask(t.Context()); return err == nil && r.Draining == 1 })
	long.Close()
	wait.Until(t, "it ends", s.Idle)
}
