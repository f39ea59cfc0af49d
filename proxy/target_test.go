package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// A backend of weight 0 keeps its connections and gets no new ones. The other backends and the
// listener are not affected.
func TestDrainKeepsOldConnectionsAndMovesNew(t *testing.T) {
	a, b := tcpBackend(t, "127.0.0.1", named("a")), tcpBackend(t, "127.0.0.1", named("b"))
	p, key := target(t)
	f := onVIP(key, vip.RoundRobin, a, b)
	p.must(f)
	old := map[string]*client{}
	for range 2 {
		c := dial(t, key)
		old[c.line(t)] = c
	}
	socket := p.frontend(key).listener

	p.must(weigh(f, a, 0))
	for range 10 {
		must.Equal(t, who(t, key), "b", "new connection on")
	}
	old["a"].echo(t, "still here")
	old["b"].echo(t, "me too")
	expect.Equal(t, p.open(key, a), 1, "connections on the drained backend")

	// It returns and still has its connection.
	p.must(f)
	old["a"].echo(t, "and still")
	got := map[string]int{}
	for range 10 {
		got[who(t, key)]++
	}
	expect.Equal(t, got["a"], 5, "after the return: %v", got)

	// It is removed: its connection is closed immediately, the other's isn't.
	p.must(without(f, a))
	old["a"].wantReset(t)
	old["b"].echo(t, "alone")
	old["b"].Close()
	wait.Until(t, "idle", func() bool { return p.open(key, b) == 0 && p.Stats().Connections == 0 })
	expect.Equal(t, p.frontend(key).listener, socket, "the listener was opened again")
}

func TestRemovalClosesListenerAndConnections(t *testing.T) {
	a := tcpBackend(t, "127.0.0.1", named("a"))
	p := newTarget(t, Options{})
	key, other := freeKey(t, "127.96.0.1", vip.TCP), freeKey(t, "127.96.0.2", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, a))
	p.must(onVIP(other, vip.RoundRobin, a))
	c, d := dial(t, key), dial(t, other)
	c.line(t)
	d.line(t)
	p.remove(key)
	c.wantReset(t)
	_, err := net.Dial("tcp", key.AddrPort().String())
	expect.True(t, isRefused(err), "connect after removal: %v", err)
	d.echo(t, "untouched")
	p.remove(key) // again: no error
	expect.Equal(t, len(must.Get(p.Connections(context.Background(), key))(t)), 0)
}

// A backend is removed while a connect to it is in progress.
func TestRemovalDuringConnectTriesAnother(t *testing.T) {
	good, silent := tcpBackend(t, "127.0.0.1", named("good")), fullBacklog(t)
	p, key := target(t)
	f := onVIP(key, vip.RoundRobin, silent)
	f.Relay = &vip.ProxySettings{ConnectTimeout: testTimeout}
	p.must(f)
	c := dial(t, key)
	wait.Until(t, "connecting", func() bool { return p.open(key, silent) == 1 })
	p.must(onVIP(key, vip.RoundRobin, good))
	expect.Equal(t, c.line(t), "good")
}

func TestAffinity(t *testing.T) {
	a, b := tcpBackend(t, "127.0.0.1", named("a")), tcpBackend(t, "127.0.0.1", named("b"))
	p, key := target(t)
	f := onVIP(key, vip.RoundRobin, a, b)
	f.Affinity = time.Hour
	p.must(f)
	from := func(source string) string {
		c := dialFrom(t, source, key)
		defer c.Close()
		return c.line(t)
	}
	first, second := from("127.1.0.1"), from("127.1.0.2")
	must.True(t, first != second, "both clients on %s", first)
	for range 5 {
		if from("127.1.0.1") != first || from("127.1.0.2") != second {
			t.Fatal("a client was moved")
		}
	}

	// Its backend drains: the client moves, and then keeps the new backend.
	backend := map[string]netip.AddrPort{"a": a, "b": b}[first]
	p.must(weigh(f, backend, 0))
	must.Equal(t, from("127.1.0.1"), second, "still on the drained backend")
	p.must(f)
	expect.Equal(t, from("127.1.0.1"), second, "moved back")

	// Its backend refuses: the same.
	gone := onVIP(key, vip.RoundRobin, closedPort(t, "127.0.0.1"), a)
	gone.Affinity = time.Hour
	p.must(gone)
	for i := range 6 {
		expect.Equal(t, from(fmt.Sprintf("127.2.0.%d", i+1)), "a")
	}

	// Without affinity, clients aren't stored.
	off := *f
	off.Affinity = 0
	p.must(&off)
	got := map[string]int{}
	for range 4 {
		got[from("127.1.0.1")]++
	}
	expect.Equal(t, got["a"], 2, "without affinity: %v", got)
}

func TestActual(t *testing.T) {
	a := tcpBackend(t, "127.0.0.1", named("a"))
	p := newTarget(t, Options{})
	must.Empty(t, p.actual(), "at the start")
	tcp, udp := freeKey(t, "127.96.0.1", vip.TCP), freeKey(t, "127.96.0.2", vip.UDP)
	want := []*vip.Frontend{onVIP(tcp, vip.RoundRobin, a), onVIP(udp, vip.MaglevHash, a)}
	for _, f := range want {
		p.must(f)
	}
	got := p.actual()
	must.Equal(t, len(got), 2, "%v", got)
	for i, o := range got {
		if diff := cmp.Diff(*want[i], o.Value, cmpopts.EquateComparable(netip.AddrPort{}, netip.Addr{})); diff != "" || o.Value.Key != want[i].Key || len(o.Damage) > 0 || !p.Same(want[i], &o.Value) {
			t.Errorf("%s %v", diff, o)
		}
	}
}

// A node port is on one of the host's own addresses, or it doesn't listen.
func TestNodePort(t *testing.T) {
	a := tcpBackend(t, "127.0.0.1", named("a"))
	p := newTarget(t, Options{})
	key := freeKey(t, "127.0.0.1", vip.TCP)
	f := onVIP(key, vip.RoundRobin, a)
	f.Kind = vip.OnHost
	p.must(f)
	c := dial(t, key)
	c.line(t)
	p.must(onVIP(key, vip.RoundRobin, a))
	p.must(f)
	c.echo(t, "still here")
	if got := p.actual(); len(got) != 1 || got[0].Value.Kind != vip.OnHost || len(got[0].Damage) != 0 {
		t.Error(got)
	}
	p.remove(key)
	away := onVIP(vip.FrontendKey{Addr: netip.MustParseAddr("203.0.113.10"), Port: 8080, Protocol: vip.TCP}, vip.RoundRobin, a)
	away.Kind = vip.OnHost
	if err := p.apply(away); err == nil || err.Error() != "203.0.113.10 is not an address of this host" {
		t.Errorf("%v", err)
	}
}

// A listener that another process shuts down is reported as damage. A repair opens it again, and its
// connections survive both.
func TestDeadListenerIsDamageAndRepaired(t *testing.T) {
	a := tcpBackend(t, "127.0.0.1", named("a"))
	p, key := target(t)
	f := onVIP(key, vip.RoundRobin, a)
	p.must(f)
	c := dial(t, key)
	c.line(t)

	control(p.frontend(key).listener.(*tcpListener).l, func(fd int) { _ = unix.Shutdown(fd, unix.SHUT_RDWR) })
	wait.Until(t, "death noticed", func() bool { return p.frontend(key).listener.died() != nil })
	got := p.actual()
	if len(got) != 1 || len(got[0].Damage) != 1 || !strings.Contains(got[0].Damage[0], "listener "+key.String()+" died") {
		t.Fatalf("%v", got)
	}
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: key, Old: &got[0].Value, New: f, Repair: true}}
	must.Succeed(t, errors.Join(p.Apply(context.Background(), batch), batch[0].Err))
	if got := p.actual(); len(got[0].Damage) != 0 {
		t.Errorf("%v", got)
	}
	who(t, key)
	c.echo(t, "still here")
}

func TestApplyIsIdempotentAndGoesOnPastAFailure(t *testing.T) {
	a := tcpBackend(t, "127.0.0.1", named("a"))
	p := newTarget(t, Options{})
	good, bad := freeKey(t, "127.96.0.1", vip.TCP), vip.FrontendKey{Addr: netip.MustParseAddr("203.0.113.1"), Port: 80, Protocol: vip.TCP}
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{
		{Key: bad, New: onVIP(bad, vip.RoundRobin, a)},
		{Key: good, New: onVIP(good, vip.RoundRobin, a)},
	}
	batch[0].New.Kind = vip.OnHost // which listens only at addresses that the host has
	for range 2 {
		must.Succeed(t, p.Apply(context.Background(), batch))
		if batch[0].Err == nil || batch[1].Err != nil {
			t.Fatal(batch[0].Err, batch[1].Err)
		}
		who(t, good)
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	expect.Is(t, p.Apply(cancelled, batch), context.Canceled)
}

func TestUnsupportedIsRefusedByName(t *testing.T) {
	p, key := target(t)
	a := tcpBackend(t, "127.0.0.1", named("a"))
	plain := onVIP(key, vip.RoundRobin, a)
	for _, c := range []struct {
		change func(*vip.Frontend)
		field  string
		says   string
	}{
		{func(f *vip.Frontend) { f.Forward = vip.ForwardDirect }, "forward", `forward "dr"`},
		{func(f *vip.Frontend) { f.Forward = vip.ForwardTunnel }, "forward", `forward "tunnel"`},
		{func(f *vip.Frontend) { f.Scheduler = vip.ShortestExpectedDelay }, "scheduler", `scheduler "sed"`},
		{func(f *vip.Frontend) { f.Scheduler = vip.NeverQueue }, "scheduler", `scheduler "nq"`},
		{func(f *vip.Frontend) { f.Scheduler = vip.WeightedFailover }, "scheduler", `scheduler "fo"`},
		{func(f *vip.Frontend) { f.Scheduler = vip.DestinationHash }, "scheduler", `scheduler "dh"`},
		{func(f *vip.Frontend) { f.Masquerade = vip.MasqueradeNever }, "masquerade", `masquerade "never"`},
		{func(f *vip.Frontend) { f.Forward, f.Masquerade = vip.ForwardDirect, vip.MasqueradeNever }, "forward", `so only "nat"`},
		{func(f *vip.Frontend) { f.OnePacket = true }, "scheduler_flags", "one-packet"},
		{func(f *vip.Frontend) { f.Kind = vip.OnRealServer }, "forward", "the part of a real server"},
		{func(f *vip.Frontend) { f.Key.Protocol = vip.SCTP }, "ports.protocol", "protocol sctp"},
		{func(f *vip.Frontend) { f.Backends = []vip.Endpoint{{Addr: key.AddrPort(), Weight: 1}} }, "backends", "which is the frontend itself"},
		{func(f *vip.Frontend) { f.Backends = []vip.Endpoint{{Addr: netip.MustParseAddrPort("127.0.0.1:0")}} }, "backends", "without address or port"},
		{func(f *vip.Frontend) { f.Backends = make([]vip.Endpoint, 1<<16) }, "backends", "more than 65535"},
		{func(f *vip.Frontend) { f.Forward, f.Scheduler = vip.ForwardDirect, vip.NeverQueue }, "forward", `nor scheduler "nq"`},
	} {
		f := *plain
		c.change(&f)
		var problem vip.Problem
		if err := p.apply(&f); !errors.As(err, &problem) || problem.Code != vip.CodeUnsupported || problem.Field != c.field ||
			!strings.Contains(problem.Message, c.says) || !strings.HasPrefix(problem.Message, "the userspace proxy does not support") {
			t.Errorf("%s: %v", c.says, err)
		}
		expect.Equal(t, strings.Contains(problem.Message, "masquerade"), (c.field == "masquerade"), "%s: names what nobody asked for, or doesn't what somebody did: %v", c.says, problem)
		if (problem.Hint == "") != (c.field == "backends") { // no field of a service fixes these
			t.Errorf("%s: hint %q", c.says, problem.Hint)
		}
		expect.False(t, p.Same(plain, &f), "%s: counts as the same, so nobody would notice", c.says)
	}
	for says, change := range map[string]func(*vip.FrontendKey){
		"port range": func(k *vip.FrontendKey) { k.LastPort = k.Port + 1 },
		"an internal_traffic other than external_traffic": func(k *vip.FrontendKey) { k.Audience = vip.InternalClients },
	} {
		f := *plain
		change(&f.Key)
		var problem vip.Problem
		if err := p.apply(&f); !errors.As(err, &problem) || problem.Code != vip.CodeUnsupported || !strings.Contains(problem.Message, says) || problem.Hint == "" {
			t.Errorf("%s: %v, hint %q", says, err, problem.Hint)
		}
	}
	expect.Equal(t, p.Stats().Listeners, 0, "listeners")

	// A frontend that serves remains unchanged.
	p.must(plain)
	f := *plain
	f.Forward = vip.ForwardDirect
	expect.True(t, p.apply(&f) != nil, "accepted")
	who(t, key)
}

func TestSame(t *testing.T) {
	key := vip.FrontendKey{Addr: netip.MustParseAddr("127.96.0.1"), Port: 80, Protocol: vip.TCP}
	base := onVIP(key, vip.WeightedRoundRobin, netip.MustParseAddrPort("10.0.0.1:80"))
	p := New(Options{})
	for _, c := range []struct {
		name   string
		change func(*vip.Frontend)
		same   bool
	}{
		{"nothing", func(f *vip.Frontend) {}, true},
		{"service", func(f *vip.Frontend) { f.Service.Name, f.Port = "other", "http" }, true},
		{"drain timeout", func(f *vip.Frontend) { f.DrainTimeout = time.Second }, true},
		{"default timeouts", func(f *vip.Frontend) { f.Relay = &vip.ProxySettings{IdleTimeout: time.Hour} }, true},
		{"idle timeout", func(f *vip.Frontend) { f.Relay = &vip.ProxySettings{IdleTimeout: time.Second} }, false},
		{"a header for backends", func(f *vip.Frontend) { f.Relay = &vip.ProxySettings{ProxyProtocol: vip.ProxyV2} }, false},
		{"leaving", func(f *vip.Frontend) { f.Backends[0].Leaving = vip.InstantOf(time.Now()) }, true},
		{"default scheduler", func(f *vip.Frontend) { f.Scheduler = 0 }, true},
		{"default forward", func(f *vip.Frontend) { f.Forward = 0 }, true},
		{"masquerade own", func(f *vip.Frontend) { f.Masquerade = vip.MasqueradeOwn }, true}, // backends always see this host
		{"masquerade always", func(f *vip.Frontend) { f.Masquerade = vip.MasqueradeAlways }, true},
		{"fallback", func(f *vip.Frontend) { f.SchedulerFallback = true }, true},
		{"kind", func(f *vip.Frontend) { f.Kind = vip.OnHost }, false},
		{"scheduler", func(f *vip.Frontend) { f.Scheduler = vip.RoundRobin }, false},
		{"scheduler port", func(f *vip.Frontend) { f.SchedulerPort = true }, false},
		{"affinity", func(f *vip.Frontend) { f.Affinity = time.Hour }, false},
		{"source ranges", func(f *vip.Frontend) { f.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }, false},
		{"weight", func(f *vip.Frontend) { f.Backends[0].Weight = 2 }, false},
		{"backend", func(f *vip.Frontend) { f.Backends[0].Addr = netip.MustParseAddrPort("10.0.0.2:80") }, false},
		{"no backend", func(f *vip.Frontend) { f.Backends = nil }, false},
	} {
		f := weigh(base, netip.AddrPort{}, 0) // a copy
		c.change(f)
		if p.Same(base, f) != c.same || p.Same(f, base) != c.same {
			t.Errorf("%s: same is %v, want %v", c.name, !c.same, c.same)
		}
	}
}

func TestPortInUseNamesTheClash(t *testing.T) {
	for _, c := range []struct{ listen, holder string }{
		{"127.96.0.1", ""}, // the key itself
		{"0.0.0.0", "0.0.0.0:"},
	} {
		l := must.Get(net.Listen("tcp4", c.listen+":0"))(t)
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).AddrPort().Port()
		p := newTarget(t, Options{})
		key := vip.FrontendKey{Addr: netip.MustParseAddr("127.96.0.1"), Port: port, Protocol: vip.TCP}
		f := onVIP(key, vip.RoundRobin)
		holder := c.holder
		if holder == "" {
			holder = "127.96.0.1:"
		}
		var problem vip.Problem
		if err := p.apply(f); !errors.As(err, &problem) || problem.Code != vip.CodeDataplane ||
			!strings.Contains(problem.Message, fmt.Sprintf("another process holds %s%d/tcp", holder, port)) || !strings.Contains(problem.Hint, "ss -ltnp") {
			t.Errorf("%v, hint %q", problem, problem.Hint)
		}
		expect.Empty(t, p.actual())
		l.Close()
		p.must(f) // a retry fixes it
	}
}

func isRefused(err error) bool {
	return err != nil && strings.Contains(err.Error(), "connection refused")
}
