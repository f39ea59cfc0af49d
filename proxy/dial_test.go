package proxy

import (
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/proxy/loop"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// patient returns a copy of f with a connect timeout that no test reaches.
func patient(f *vip.Frontend) *vip.Frontend {
	g := *f
	g.Relay = &vip.ProxySettings{ConnectTimeout: testTimeout}
	return &g
}

// doubted reports whether a backend whose connects have no answer yet is skipped.
func (b *bench) doubted(key vip.FrontendKey, addr netip.AddrPort) bool {
	return b.avoid(key, addr) != 0
}

// A client of a backend that doesn't answer is connected to another one after a short delay, long
// before the connect timeout. The others skip the backend from then on. Nothing is reported yet.
func TestASilentBackendCostsAClientTheDelay(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		w := newWatched(t)
		key := freeKey(t, f.vip, vip.TCP)
		good, silent := tcpBackend(t, f.backend, named("good")), newSilent(t, f.backend)
		w.must(patient(onVIP(key, vip.RoundRobin, good, silent.addr)))
		client := func() {
			must.Equal(t, who(t, key), "good")
		}
		for !w.doubted(key, silent.addr) {
			client()
		}
		first := w.Failures(passiveKey(key, silent.addr))
		for range 10 {
			client()
		}
		if n := w.Failures(passiveKey(key, silent.addr)); n != first || n.Retries == 0 || n.Connects != 0 {
			t.Errorf("%+v, and %+v after the others", first, n)
		}
		row := w.row(key, silent.addr)
		expect.True(t, row.Health != vip.Ejected, "%+v", row)
		w.remove(key)
	})
}

// A backend that was only slow is no longer skipped when it answers, and nothing is counted. The
// connect that came too late ends without a byte, also without a PROXY header.
// Slow: the kernel repeats the SYN of a silent backend after a second.
func TestASlowBackendIsNotEjected(t *testing.T) {
	inFamilies(t, func(t *testing.T, family family) {
		w := newWatched(t)
		key := freeKey(t, family.vip, vip.TCP)
		good, slow := tcpBackend(t, family.backend, headed("good")), newSilent(t, family.backend)
		f := patient(onVIP(key, vip.RoundRobin, good, slow.addr))
		f.Relay.ProxyProtocol = vip.ProxyV1
		w.must(f)
		for range 2 {
			c := dial(t, key)
			expect.Equal(t, c.line(t), fmt.Sprintf("good %s %s", c.LocalAddr(), key.AddrPort()))
			c.Close()
		}
		got := make(chan string, 100)
		slow.wake(func(c *net.TCPConn) {
			all, err := io.ReadAll(c)
			got <- fmt.Sprint(string(all), loop.IsReset(err))
		})
		expect.Equal(t, <-got, "true", "the late connect")
		wait.Until(t, "it is used again", func() bool { return !w.doubted(key, slow.addr) })
		if n := w.Failures(passiveKey(key, slow.addr)); n.Connects != 0 || n.Ejections != 0 {
			t.Errorf("%+v", n)
		}
		kinds, _ := w.kinds()
		expect.Empty(t, kinds, "events")
	})
}

// The client is served by the backend that answers first, be it the first or the second.
// Slow: the kernel repeats the SYN of a silent backend after a second.
func TestTheFirstAnswerServesTheClient(t *testing.T) {
	for i := range 2 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			p, key := target(t)
			both := []*silent{newSilent(t, "127.0.0.1"), newSilent(t, "127.0.0.1")}
			p.must(patient(onVIP(key, vip.RoundRobin, both[0].addr, both[1].addr)))
			c := dial(t, key)
			wait.Until(t, "both are tried", func() bool { return p.open(key, both[0].addr) == 1 && p.open(key, both[1].addr) == 1 })
			both[i].wake(named("awake"))
			expect.Equal(t, c.line(t), "awake")
			c.echo(t, "x")
		})
	}
}

// If all are silent, the client is refused once, and everything is given back.
func TestSilentBackendsAreAllTriedAtOnce(t *testing.T) {
	p := newTarget(t, Options{ConnectBudget: time.Second})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	f := onVIP(key, vip.RoundRobin, fullBacklog(t), fullBacklog(t), fullBacklog(t))
	f.Relay = &vip.ProxySettings{ConnectTimeout: 900 * time.Millisecond}
	p.must(f)
	wantRefused(t, key)
	wait.Until(t, "all connects ended", func() bool { return p.Usage().Used == 0 })
	expect.Equal(t, p.refusedFor("unreachable"), 1, "refused")
	expect.Empty(t, must.Get(p.Connections(t.Context(), key))(t), "connections counted")
}

// The second connect needs a place at its backend, and a descriptor. Without them, the client waits
// for the first one.
// Slow: the kernel repeats the SYN of a silent backend after a second.
func TestTheSecondConnectRespectsLimits(t *testing.T) {
	for name, queue := range map[string]uint32{"no queue": 0, "queue": 10} {
		t.Run("max_connections, "+name, func(t *testing.T) {
			p, key := target(t)
			slow, full := newSilent(t, "127.0.0.1"), tcpBackend(t, "127.0.0.1", named("full"))
			f := patient(onVIP(key, vip.RoundRobin, slow.addr, full))
			p.must(limited(weigh(f, slow.addr, 0), 100, queue, 1))
			first := dial(t, key)
			first.line(t)
			p.must(limited(f, 100, queue, 1))
			second := dial(t, key)
			wait.Until(t, "the delay has passed", func() bool { return p.doubted(key, slow.addr) })
			slow.wake(named("slow"))
			expect.Equal(t, second.line(t), "slow")
			expect.Equal(t, p.open(key, full), 1, "connections at a backend that may have one")
		})
	}
	t.Run("descriptors", func(t *testing.T) {
		p := newTarget(t, Options{Files: 1 + balance.ConnectionFiles})
		key := freeKey(t, "127.96.0.1", vip.TCP)
		both := []*silent{newSilent(t, "127.0.0.1"), newSilent(t, "127.0.0.1")}
		p.must(patient(onVIP(key, vip.RoundRobin, both[0].addr, both[1].addr)))
		c := dial(t, key)
		wait.Until(t, "the delay has passed", func() bool { return p.doubted(key, both[0].addr) || p.doubted(key, both[1].addr) })
		tried := slices.IndexFunc(both, func(s *silent) bool { return p.open(key, s.addr) == 1 })
		if n := p.open(key, both[1-tried].addr); n != 0 || p.Usage().Used != balance.ConnectionFiles {
			t.Errorf("%d connects to the other, %d descriptors", n, p.Usage().Used)
		}
		both[tried].wake(named("slow"))
		expect.Equal(t, c.line(t), "slow")
	})
}

// With affinity, the client's backend has time for a repeated SYN. If it doesn't answer that either,
// the client moves.
func TestAffinityWaitsForARepeatedSYN(t *testing.T) {
	p, key := target(t)
	good, slow := tcpBackend(t, "127.0.0.1", named("good")), newSilent(t, "127.0.0.1")
	f := patient(onVIP(key, vip.RoundRobin, slow.addr, good))
	f.Affinity = time.Hour
	p.must(weigh(f, good, 0))
	slow.wake(named("slow"))
	must.Equal(t, who(t, key), "slow")
	p.must(f)
	expect.Equal(t, who(t, key), "slow", "not remembered")

	other := newSilent(t, "127.0.0.1")
	g := patient(onVIP(key, vip.LeastConnection, other.addr, good))
	g.Affinity = time.Hour
	p.must(g)
	const busy = 5 // so that the other one is the client's backend
	open := &p.endpoint(key, good).State.Open
	open.Add(busy)
	defer open.Add(-busy)
	began := time.Now()
	c := dialFrom(t, "127.0.0.5", key)
	must.Equal(t, c.line(t), "good")
	expect.AtLeast(t, time.Since(began), resendTime, "moved")
	d := dialFrom(t, "127.0.0.5", key)
	expect.Equal(t, d.line(t), "good")
	expect.Equal(t, p.open(key, good), busy+2, "connections where the client has moved")
}

// A client counts once as sent away from a backend that was late and then fails.
func TestALateBackendThatFailsCountsOnce(t *testing.T) {
	p, key := target(t)
	var backends []netip.AddrPort
	for i := range 4 {
		backends = append(backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 80))
	}
	f := onVIP(key, vip.RoundRobin, backends...)
	p.must(f)
	front := p.frontend(key)
	s := front.Service()
	c := &connection{f: front, owner: s, attempt: front.Attempt(netip.MustParseAddrPort("198.51.100.1:40000"), s, false)}
	next := func() *dialing {
		t.Helper()
		e := must.Get(c.attempt.Start(true))(t)
		t.Cleanup(e.Leave)
		return &dialing{c: c, e: e, began: p.balance.Now(), done: true, rest: time.Hour}
	}
	late := next()
	must.True(t, late.overdue(), "no other backend is tried")
	defer c.f.Tasks.Done()
	defer p.balance.Capacity.Give(s, balance.BackendFiles)
	quick := next()
	late.failed(os.ErrDeadlineExceeded)
	next()
	quick.failed(unix.ECONNREFUSED)
	next()
	for i, d := range []*dialing{late, quick} {
		expect.Equal(t, p.Failures(passiveKey(key, d.e.Addr)).Retries, 1, "how often the client counts for backend %d", i)
	}
	c.attempt.End()
}

// A frontend that is removed while two backends are tried leaves nothing; newTarget checks that.
func TestConnectsEndWithTheirFrontend(t *testing.T) {
	p, key := target(t)
	a, b := fullBacklog(t), fullBacklog(t)
	p.must(patient(onVIP(key, vip.RoundRobin, a, b)))
	c := dial(t, key)
	wait.Until(t, "both are tried", func() bool { return p.open(key, a) == 1 && p.open(key, b) == 1 })
	p.remove(key)
	c.wantReset(t)
}

// A connection whose connect is answered within the delay needs no goroutine, and few allocations: the
// connection, its attempt and connect, two sockets, and what the standard library needs for addresses.
func TestCostOfAConnection(t *testing.T) {
	p, key := serve(t, backlog(t, 200))
	front := p.frontend(key)
	goroutines := 0
	connect := func() {
		ends := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0))(t)
		n := front.Traffic().Connections
		front.welcome(loop.NewSocket(ends[0]), netip.MustParseAddrPort("127.0.0.1:1"), p.loops.Least())
		for front.Traffic().Connections == n {
			runtime.Gosched()
		}
		goroutines = min(goroutines, runtime.NumGoroutine()) // a timer that fires has one for a moment
		unix.Close(ends[1])
		for _, l := range front.Endpoints()[0].Links() {
			l.Abort()
		}
		for p.Usage().Connections > 0 {
			runtime.Gosched()
		}
	}
	connect() // starts the loops
	before := runtime.NumGoroutine()
	goroutines = math.MaxInt
	expect.AtMost(t, testing.AllocsPerRun(100, connect), 12, "allocations")
	expect.AtMost(t, goroutines, before, "goroutines")
}
