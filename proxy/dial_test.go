package proxy

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// patient returns a copy of f with a connect timeout that no test reaches.
func patient(f *vip.Frontend) *vip.Frontend {
	g := *f
	g.Relay = &vip.Relay{ConnectTimeout: testTimeout}
	return &g
}

// doubted reports whether connects to a backend are awaited and it is skipped meanwhile.
func (b *bench) doubted(key vip.FrontendKey, addr netip.AddrPort) bool {
	b.outliers.mu.Lock()
	defer b.outliers.mu.Unlock()
	return b.outliers.m[passiveKey(key, addr)].doubted
}

// A client of a backend that doesn't answer is connected to another one after a short delay, long
// before the connect timeout. The others skip the backend from then on. Nothing is reported yet.
func TestASilentBackendCostsAClientTheDelay(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w := newWatched(t)
			key := freeKey(t, f.vip, vip.TCP)
			good, silent := tcpBackend(t, f.backend, named("good")), newSilent(t, f.backend)
			w.must(patient(onVIP(key, vip.RoundRobin, good, silent.addr)))
			client := func() {
				if got := who(t, key); got != "good" {
					t.Fatal(got)
				}
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
			if row := w.row(key, silent.addr); row.Health == vip.Ejected {
				t.Errorf("%+v", row)
			}
			w.remove(key)
		})
	}
}

// A backend that was only slow is no longer skipped when it answers, and nothing is counted. The
// connect that came too late ends without a byte, also without a PROXY header.
func TestASlowBackendIsNotEjected(t *testing.T) {
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			w := newWatched(t)
			key := freeKey(t, family.vip, vip.TCP)
			good, slow := tcpBackend(t, family.backend, headed("good")), newSilent(t, family.backend)
			f := patient(onVIP(key, vip.RoundRobin, good, slow.addr))
			f.Relay.ProxyProtocol = vip.ProxyV1
			w.must(f)
			for range 2 {
				c := dial(t, key)
				if got, want := c.line(t), fmt.Sprintf("good %s %s", c.LocalAddr(), key.AddrPort()); got != want {
					t.Errorf("%q, want %q", got, want)
				}
				c.Close()
			}
			got := make(chan string, 100)
			slow.wake(func(c *net.TCPConn) {
				all, err := io.ReadAll(c)
				got <- fmt.Sprint(string(all), isReset(err))
			})
			if late := <-got; late != "true" {
				t.Errorf("the late connect: %q, want a reset", late)
			}
			wait.Until(t, "it is used again", func() bool { return !w.doubted(key, slow.addr) })
			if n := w.Failures(passiveKey(key, slow.addr)); n.Connects != 0 || n.Ejections != 0 {
				t.Errorf("%+v", n)
			}
			if kinds, _ := w.kinds(); len(kinds) != 0 {
				t.Errorf("events: %v", kinds)
			}
		})
	}
}

// The client is served by the backend that answers first, be it the first or the second.
func TestTheFirstAnswerServesTheClient(t *testing.T) {
	for i := range 2 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			p := newTarget(t, Options{})
			key := freeKey(t, "127.96.0.1", vip.TCP)
			both := []*silent{newSilent(t, "127.0.0.1"), newSilent(t, "127.0.0.1")}
			p.must(patient(onVIP(key, vip.RoundRobin, both[0].addr, both[1].addr)))
			c := dial(t, key)
			wait.Until(t, "both are tried", func() bool { return p.open(key, both[0].addr) == 1 && p.open(key, both[1].addr) == 1 })
			both[i].wake(named("awake"))
			if got := c.line(t); got != "awake" {
				t.Error(got)
			}
			c.echo(t, "x")
		})
	}
}

// If all are silent, the client is refused once, and everything is given back.
func TestSilentBackendsAreAllTriedAtOnce(t *testing.T) {
	p := newTarget(t, Options{ConnectBudget: time.Second})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	f := onVIP(key, vip.RoundRobin, fullBacklog(t), fullBacklog(t), fullBacklog(t))
	f.Relay = &vip.Relay{ConnectTimeout: 900 * time.Millisecond}
	p.must(f)
	wantRefused(t, key)
	wait.Until(t, "all connects ended", func() bool { return p.capacity.used.Load() == 0 })
	if n := p.refused.count(unreachable); n != 1 {
		t.Errorf("refused %d times", n)
	}
	wantNoneOpen(t, p, key)
}

// The second connect needs a place at its backend, and a descriptor. Without them, the client waits
// for the first one.
func TestTheSecondConnectRespectsLimits(t *testing.T) {
	for name, queue := range map[string]uint32{"no queue": 0, "queue": 10} {
		t.Run("max_connections, "+name, func(t *testing.T) {
			p := newTarget(t, Options{})
			key := freeKey(t, "127.96.0.1", vip.TCP)
			slow, full := newSilent(t, "127.0.0.1"), tcpBackend(t, "127.0.0.1", named("full"))
			f := patient(onVIP(key, vip.RoundRobin, slow.addr, full))
			p.must(limited(weigh(f, slow.addr, 0), 100, queue, 1))
			first := dial(t, key)
			first.line(t)
			p.must(limited(f, 100, queue, 1))
			second := dial(t, key)
			wait.Until(t, "the delay has passed", func() bool { return p.doubted(key, slow.addr) })
			slow.wake(named("slow"))
			if got := second.line(t); got != "slow" {
				t.Error(got)
			}
			if n := p.open(key, full); n != 1 {
				t.Errorf("%d connections at a backend that may have one", n)
			}
		})
	}
	t.Run("descriptors", func(t *testing.T) {
		p := newTarget(t, Options{Files: 1 + connectionFiles})
		key := freeKey(t, "127.96.0.1", vip.TCP)
		both := []*silent{newSilent(t, "127.0.0.1"), newSilent(t, "127.0.0.1")}
		p.must(patient(onVIP(key, vip.RoundRobin, both[0].addr, both[1].addr)))
		c := dial(t, key)
		wait.Until(t, "the delay has passed", func() bool { return p.doubted(key, both[0].addr) || p.doubted(key, both[1].addr) })
		tried := slices.IndexFunc(both, func(s *silent) bool { return p.open(key, s.addr) == 1 })
		if n := p.open(key, both[1-tried].addr); n != 0 || p.capacity.used.Load() != connectionFiles {
			t.Errorf("%d connects to the other, %d descriptors", n, p.capacity.used.Load())
		}
		both[tried].wake(named("slow"))
		if got := c.line(t); got != "slow" {
			t.Error(got)
		}
	})
}

// With affinity, the client's backend has time for a repeated SYN. If it doesn't answer that either,
// the client moves.
func TestAffinityWaitsForARepeatedSYN(t *testing.T) {
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	good, slow := tcpBackend(t, "127.0.0.1", named("good")), newSilent(t, "127.0.0.1")
	f := patient(onVIP(key, vip.RoundRobin, slow.addr, good))
	f.Affinity = time.Hour
	p.must(weigh(f, good, 0))
	slow.wake(named("slow"))
	if got := who(t, key); got != "slow" {
		t.Fatal(got)
	}
	p.must(f)
	if got := who(t, key); got != "slow" {
		t.Error("not remembered:", got)
	}

	other := newSilent(t, "127.0.0.1")
	g := patient(onVIP(key, vip.LeastConnection, other.addr, good))
	g.Affinity = time.Hour
	p.must(g)
	const busy = 5 // so that the other one is the client's backend
	open := &p.frontend(key).backends.Load().all.of(good).state.Open
	open.Add(busy)
	defer open.Add(-busy)
	began := time.Now()
	c := dialFrom(t, "127.0.0.5", key)
	if got := c.line(t); got != "good" {
		t.Fatal(got)
	}
	if took := time.Since(began); took < resendTime {
		t.Errorf("moved after %v", took)
	}
	d := dialFrom(t, "127.0.0.5", key)
	if got := d.line(t); got != "good" {
		t.Error(got)
	}
	if n := p.open(key, good); n != busy+2 {
		t.Errorf("%d connections where the client has moved", n)
	}
}

// A client counts once as sent away from a backend that was late and then fails.
func TestALateBackendThatFailsCountsOnce(t *testing.T) {
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	var backends []netip.AddrPort
	for i := range 4 {
		backends = append(backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 80))
	}
	f := onVIP(key, vip.RoundRobin, backends...)
	p.must(f)
	front := p.frontend(key)
	s := front.backends.Load().service
	c := &connection{f: front, owner: s, attempt: front.attempt(netip.MustParseAddrPort("198.51.100.1:40000"), s)}
	next := func() *dialing {
		t.Helper()
		e, err := c.attempt.start(true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.leave)
		return &dialing{c: c, e: e, began: p.now(), done: true, rest: time.Hour}
	}
	late := next()
	if !late.overdue() {
		t.Fatal("no other backend is tried")
	}
	defer c.f.tasks.Done()
	defer p.capacity.give(s, backendFiles)
	quick := next()
	late.failed(os.ErrDeadlineExceeded)
	next()
	quick.failed(unix.ECONNREFUSED)
	next()
	for i, d := range []*dialing{late, quick} {
		if n := d.e.outlier.retries.Load(); n != 1 {
			t.Errorf("the client counts %d times for backend %d", n, i)
		}
	}
	c.attempt.end()
}

// A frontend that is removed while two backends are tried leaves nothing; newTarget checks that.
func TestConnectsEndWithTheirFrontend(t *testing.T) {
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
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
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, backlog(t, 200)))
	front := p.frontend(key)
	goroutines := 0
	connect := func() {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		n := front.tally.connections.Load()
		front.welcome(newSocket(ends[0]), netip.MustParseAddrPort("127.0.0.1:1"))
		for front.tally.connections.Load() == n {
			runtime.Gosched()
		}
		goroutines = min(goroutines, runtime.NumGoroutine()) // a timer that fires has one for a moment
		unix.Close(ends[1])
		p.frontend(key).backends.Load().usable[0].abort()
		for p.Stats().Connections > 0 {
			runtime.Gosched()
		}
	}
	connect() // starts the loops
	before := runtime.NumGoroutine()
	goroutines = math.MaxInt
	if n := testing.AllocsPerRun(100, connect); n > 12 {
		t.Errorf("%v allocations", n)
	}
	if goroutines > before {
		t.Errorf("%d goroutines, %d without the connection", goroutines, before)
	}
}

func TestDoubt(t *testing.T) {
	const rest = 2 * time.Second
	inSketch(t, func(t *testing.T, s *sketch, w *watched) {
		x := s.of("a")
		began := s.now()
		time.Sleep(leastDelay)
		if !x.doubt(began, rest) {
			t.Fatal("no witness")
		}
		if x.doubt(began, rest) {
			t.Error("two witnesses")
		}
		if x.admits(s.now(), rest) {
			t.Error("not skipped")
		}
		s.expect(t, "")
		time.Sleep(time.Second)
		x.settle()
		if !x.admits(s.now(), rest) {
			t.Error("still skipped")
		}
		if kinds, _ := w.kinds(); len(kinds) != 0 || w.rows.Len() != 0 {
			t.Errorf("reported: %v, %d rows", kinds, w.rows.Len())
		}

		x.doubt(s.now(), rest)
		time.Sleep(rest)
		x.refused(refusedErr)
		x.settle()
		s.expect(t, "a")
		if n := s.fronts[0].skipped; n != 1 {
			t.Errorf("%d skipped", n)
		}
		x.connected()
		s.expect(t, "")

		began = s.now()
		time.Sleep(time.Millisecond)
		x.accepted(began)
		if x.doubt(began, rest) {
			t.Error("doubted, although it answers")
		}
	}, []string{"a", "b"})
}

// At most half of the backends are skipped, whatever happens in whatever order.
func TestDoubtsAndEjectionsAreCounted(t *testing.T) {
	for seed := range uint64(50) {
		inSketch(t, func(t *testing.T, s *sketch, _ *watched) {
			r := rand.New(rand.NewPCG(seed, 1))
			names := []string{"a", "b", "c", "d", "e"}
			for step := range 300 {
				x := s.of(names[r.IntN(len(names))])
				switch r.IntN(9) {
				case 0:
					x.doubt(s.now(), time.Second)
				case 1:
					x.settle()
				case 2:
					x.refused(refusedErr)
				case 3:
					x.reset()
				case 4:
					x.accepted(s.now())
				case 5:
					x.answered()
				case 6:
					x.admits(s.now(), time.Second)
				case 7:
					time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
				case 8:
					f := frontendOf(0, names...)
					for _, name := range names {
						if r.IntN(4) == 0 {
							f = weigh(f, at(name), 0)
						}
					}
					s.fronts[0].choose(f)
				}
				synctest.Wait()
				b, n := s.fronts[0].backends.Load(), 0
				for _, e := range b.all {
					o := e.outlier
					if skipped := o.ejected || o.doubted; skipped != (o.avoid.Load() != 0) || o.ejected && o.doubted {
						t.Fatalf("seed %d, step %d: ejected %v, doubted %v, avoid %d", seed, step, o.ejected, o.doubted, o.avoid.Load())
					} else if skipped && e.usable {
						n++
					}
				}
				if n != s.fronts[0].skipped || 2*n > len(b.usable) {
					t.Fatalf("seed %d, step %d: %d of %d are skipped, %d counted", seed, step, n, len(b.usable), s.fronts[0].skipped)
				}
			}
		}, names5)
	}
}

var names5 = []string{"a", "b", "c", "d", "e"}
