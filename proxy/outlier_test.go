package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// watched is a Target with a passive table and an event log.
type watched struct {
	*bench
	rows   *table.Table[vip.PassiveKey, vip.PassiveHealth]
	events *event.Log
}

func newWatched(t testing.TB) *watched {
	t.Helper()
	w := &watched{rows: table.New(&table.Clock{}, vip.KeyOfPassiveHealth, func(a, b vip.PassiveHealth) bool { return a == b }),
		events: event.NewLog(100, time.Now)}
	w.bench = newTarget(t, Options{Passive: w.rows, Report: w.events.Add})
	return w
}

func (w *watched) row(key vip.FrontendKey, addr netip.AddrPort) vip.PassiveHealth {
	row, _, _ := w.rows.Get(passiveKey(key, addr))
	return row
}

func passiveKey(key vip.FrontendKey, addr netip.AddrPort) vip.PassiveKey {
	return vip.PassiveKey{Service: vip.ServiceKey{Namespace: "default", Name: "web"}, Protocol: key.Protocol, Addr: addr}
}

func (w *watched) waitFor(key vip.FrontendKey, addr netip.AddrPort, health vip.Health) vip.PassiveHealth {
	w.Helper()
	wait.Until(w, fmt.Sprintf("%s %s", addr, health), func() bool { return w.row(key, addr).Health == health }, func() any { return w.row(key, addr) })
	return w.row(key, addr)
}

// kinds returns the kinds of all events so far, and the messages.
func (w *watched) kinds() (kinds, messages []string) {
	list, _ := w.events.Since(0)
	for _, e := range list {
		kinds, messages = append(kinds, e.Kind), append(messages, e.Service+" "+e.Object+" "+e.Message)
	}
	return kinds, messages
}

// One of three backends refuses: it is ejected with its error, and no client notices.
func TestARefusingBackendIsEjectedAndNoClientFails(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		w := newWatched(t)
		key := freeKey(t, f.vip, vip.TCP)
		a, b, bad := tcpBackend(t, f.backend, named("a")), tcpBackend(t, f.backend, named("b")), closedPort(t, f.backend)
		w.must(onVIP(key, vip.RoundRobin, a, b, bad))
		for range 50 {
			if got := who(t, key); got != "a" && got != "b" {
				t.Fatal(got)
			}
		}
		row := w.waitFor(key, bad, vip.Ejected)
		if !strings.HasPrefix(row.Reason, "connect: connection refused") || row.Since == 0 || !row.Until.After(row.Since) {
			t.Errorf("%+v", row)
		}
		w.waitFor(key, a, vip.Healthy)
		w.waitFor(key, b, vip.Healthy)
		n := w.Failures(passiveKey(key, bad))
		if n.Last == 0 || n.Reason != "connect: connection refused" {
			t.Errorf("the last failure is %q at %v", n.Reason, n.Last)
		}
		if n.Connects == 0 || n.Retries != n.Connects || n.Ejections != 1 || n.Resets != 0 {
			t.Errorf("%+v", n)
		}
		expect.Equal(t, w.Failures(passiveKey(key, a)), (reconcile.Failures{}), "of a backend that works")
		wait.Until(t, "an event", func() bool { k, _ := w.kinds(); return len(k) > 0 })
		kinds, messages := w.kinds()
		if !slices.Equal(kinds, []string{"backend_ejected"}) ||
			!strings.HasPrefix(messages[0], "web "+bad.String()+" connections of clients failed: "+bad.String()+": connect: connection refused") {
			t.Errorf("%v %q", kinds, messages)
		}
		w.remove(key)
		wait.Until(t, "no rows are left", func() bool { return w.rows.Len() == 0 }, func() any { return w.rows.Len() })
	})
}

// The connections of a Target that drains change nothing of what the next one reports.
func TestOnlyTheLiveTargetReports(t *testing.T) {
	w := newWatched(t)
	key, next := freeKey(t, "127.96.0.1", vip.TCP), freeKey(t, "127.96.0.2", vip.TCP)
	a, bad := tcpBackend(t, "127.0.0.1", named("a")), closedPort(t, "127.0.0.1")
	w.must(onVIP(key, vip.RoundRobin, a, bad))
	who(t, key)
	who(t, key)
	w.waitFor(key, bad, vip.Ejected)
	w.Leave()
	expect.Equal(t, w.rows.Len(), 0, "rows after Leave")
	live := &watched{newTarget(t, Options{Passive: w.rows}), w.rows, w.events}
	live.must(onVIP(next, vip.RoundRobin, a, bad))
	who(t, next)
	who(t, next)
	live.waitFor(next, bad, vip.Ejected)
	expect.Succeed(t, w.Close())
	expect.Equal(t, live.row(next, bad).Health, vip.Ejected, "the health after the end of the former Target")
}

// An ejected backend that works again is tried by a client, and readmitted.
func TestAnEjectedBackendIsTriedAgain(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		w := newWatched(t)
		key := freeKey(t, f.vip, vip.TCP)
		a, bad := tcpBackend(t, f.backend, named("a")), closedPort(t, f.backend)
		w.must(onVIP(key, vip.RoundRobin, a, bad))
		for range 4 {
			who(t, key)
		}
		w.waitFor(key, bad, vip.Ejected)
		l := must.Get(net.Listen("tcp", bad.String()))(t)
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintln(c, "b")
				c.Close()
			}
		}()
		wait.Until(t, "a client reaches it", func() bool { return who(t, key) == "b" })
		w.waitFor(key, bad, vip.Healthy)
	})
}

// A backend that accepts and resets before its first byte is ejected after three connections in a
// row, each one of a client that can't be sent elsewhere any more.
func TestABackendThatResetsIsEjected(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		w := newWatched(t)
		key := freeKey(t, f.vip, vip.TCP)
		good := tcpBackend(t, f.backend, named("good"))
		bad := tcpBackend(t, f.backend, func(c *net.TCPConn) { io.ReadFull(c, make([]byte, 1)); c.SetLinger(0) })
		w.must(onVIP(key, vip.RoundRobin, good, bad))
		served := 0
		for failed := 0; w.row(key, bad).Health != vip.Ejected; {
			c := dial(t, key)
			fmt.Fprintln(c, "request")
			switch line, err := c.r.ReadString('\n'); {
			case err == nil && line == "good\n":
				served++
			case errors.Is(err, unix.ECONNRESET):
				failed++
			default:
				t.Fatalf("%q, %v", line, err)
			}
			c.Close()
			must.AtMost(t, failed, 100, "not ejected after 100 resets")
		}
		if row := w.row(key, bad); !strings.HasPrefix(row.Reason, "reset before the first byte") {
			t.Errorf("%+v", row)
		}
		if n := w.Failures(passiveKey(key, bad)); n.Resets < resetsToEject || n.Connects != 0 || n.Ejections != 1 {
			t.Errorf("%+v", n)
		}
		expect.True(t, served != 0, "nobody was served")
	})
}

// A client that ends its direction or resets is no evidence against the backend.
func TestClientsAreNoEvidence(t *testing.T) {
	w := newWatched(t)
	key := freeKey(t, "127.96.0.1", vip.TCP)
	reset := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) { io.Copy(io.Discard, c); c.SetLinger(0) })
	quiet := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) { io.Copy(io.Discard, c) })
	w.must(onVIP(key, vip.RoundRobin, reset, quiet))
	for i := range 20 {
		c := dial(t, key)
		if i%4 < 2 {
			_ = c.CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		} else {
			_ = c.SetLinger(0)
		}
		c.Close()
	}
	wait.Until(t, "all connections ended", func() bool { return w.capacity.connections.Load() == 0 })
	for _, addr := range []netip.AddrPort{reset, quiet} {
		expect.Equal(t, w.Failures(passiveKey(key, addr)), (reconcile.Failures{}), "%s", addr)
	}
}

// A backend that doesn't answer is ejected after the connect timeout. Then one client at a time tries
// it.
// Slow: a connection attempt times out after 0.2 s, and the backoff grows, three times.
func TestASilentBackendIsTriedByOneClientAtATime(t *testing.T) {
	w := newWatched(t)
	key := freeKey(t, "127.96.0.1", vip.TCP)
	good, silent := tcpBackend(t, "127.0.0.1", named("good")), fullBacklog(t)
	f := onVIP(key, vip.RoundRobin, good, silent)
	f.Relay = &vip.ProxySettings{ConnectTimeout: 200 * time.Millisecond}
	w.must(f)
	for range 2 {
		who(t, key)
	}
	row := w.waitFor(key, silent, vip.Ejected)
	expect.Equal(t, row.Reason, "connect: timeout", "%+v", row)
	for n := w.Failures(passiveKey(key, silent)).Connects; n < 3; n = w.Failures(passiveKey(key, silent)).Connects {
		wait.Until(t, "its backoff ended", func() bool {
			x := w.outliers.m[passiveKey(key, silent)]
			return x.avoid.Load() <= w.now()
		})
		var clients []*client
		for range 20 {
			clients = append(clients, dial(t, key))
		}
		for _, c := range clients {
			must.Equal(t, c.line(t), "good")
			c.Close()
		}
		if now := w.Failures(passiveKey(key, silent)).Connects; now > n+1 {
			t.Errorf("%d of 20 clients tried it at the same time", now-n)
		}
	}
	if n := w.Failures(passiveKey(key, silent)); n.Ejections != 1 || n.Retries != n.Connects {
		t.Errorf("%+v", n)
	}
}

// UDP: a refusal (ICMP) ejects, and the datagram reaches another backend.
func TestUDPRefusalEjects(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		w := newWatched(t)
		key := freeKey(t, f.vip, vip.UDP)
		good, bad := udpBackend(t, f.backend, "good"), closedUDP(t, f.backend)
		w.must(onVIP(key, vip.RoundRobin, good, bad))
		for range 4 {
			must.Equal(t, mustAsk(t, udpClient(t, key), "x"), "good")
		}
		row := w.waitFor(key, bad, vip.Ejected)
		expect.Contains(t, row.Reason, "refused", "%+v", row)
		w.waitFor(key, good, vip.Healthy)
	})
}

// sketch is outliers with frontends that have no listeners.
type sketch struct {
	*Target
	fronts []*frontend
}

var refusedErr = &net.OpError{Op: "dial", Err: unix.ECONNREFUSED}

// inSketch runs a test on fake time, with frontends on consecutive ports that have these backends.
func inSketch(t *testing.T, test func(t *testing.T, s *sketch, w *watched), frontends ...[]string) {
	bubble.Test(t, func(t *testing.T) {
		w := &watched{rows: table.New(&table.Clock{}, vip.KeyOfPassiveHealth, func(a, b vip.PassiveHealth) bool { return a == b }), events: event.NewLog(100, time.Now)}
		s := &sketch{Target: New(Options{Passive: w.rows, Report: w.events.Add, Files: 100})}
		defer s.Close()
		synctest.Wait() // the reporter waits for news
		for i, backends := range frontends {
			f := newFrontend(s.Target, frontendOf(uint16(i), backends...))
			f.listener = noListener{}
			defer f.close()
			s.fronts = append(s.fronts, f)
		}
		test(t, s, w)
	})
}

type noListener struct{ listener }

func (noListener) close() {}

func frontendOf(port uint16, backends ...string) *vip.Frontend {
	var addrs []netip.AddrPort
	for _, b := range backends {
		addrs = append(addrs, at(b))
	}
	return onVIP(vip.FrontendKey{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80 + port, Protocol: vip.TCP}, vip.RoundRobin, addrs...)
}

// at returns the address of a backend by its name, one letter.
func at(name string) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, name[0]}), 80)
}

func (s *sketch) of(name string) *outlier {
	return s.fronts[0].backends.Load().all.of(at(name)).outlier
}

// ejected lists the ejected backends of all frontends.
func (s *sketch) ejected() (out string) {
	synctest.Wait() // what is due now has happened
	s.outliers.mu.Lock()
	defer s.outliers.mu.Unlock()
	for _, name := range "abcdef" {
		if x := s.outliers.m[passiveKey(vip.FrontendKey{Protocol: vip.TCP}, at(string(name)))]; x != nil && x.ejected {
			out += string(name)
		}
	}
	return out
}

func (s *sketch) expect(t *testing.T, want string) {
	t.Helper()
	expect.Equal(t, s.ejected(), want, "ejected")
}

func TestAtMostHalfIsEjected(t *testing.T) {
	for _, tc := range []struct {
		frontends [][]string
		fail      string
		want      string
	}{
		{[][]string{{"a"}}, "a", ""},
		{[][]string{{"a", "b"}}, "ab", "a"},
		{[][]string{{"a", "b", "c"}}, "abc", "a"},
		{[][]string{{"a", "b", "c", "d", "e"}}, "edcba", "de"},
		{[][]string{{"a", "b", "c", "d"}, {"a", "b"}}, "abc", "ac"}, // both frontends keep half
		{[][]string{{"a", "b"}, {"a"}}, "ab", "b"},
	} {
		inSketch(t, func(t *testing.T, s *sketch, _ *watched) {
			for _, name := range tc.fail {
				s.of(string(name)).refused(refusedErr)
			}
			s.expect(t, tc.want)
		}, tc.frontends...)
	}
}

// If other backends become unusable, ejections end rather than that most are ejected.
func TestFewerBackendsEndEjections(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch, _ *watched) {
		s.of("a").refused(refusedErr)
		s.of("b").refused(refusedErr)
		s.expect(t, "ab")
		f := frontendOf(0, "a", "b", "c", "d")
		f = weigh(weigh(f, at("c"), 0), at("d"), 0)
		s.fronts[0].choose(f)
		expect.Equal(t, len(s.ejected()), 1, "of 2 usable backends are ejected")
		s.fronts[0].choose(frontendOf(0, "c"))
		s.expect(t, "")
	}, []string{"a", "b", "c", "d"})
}

// A backend that becomes usable again, because its health check passes, is tried at once.
func TestAPassingHealthCheckEndsAnEjection(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch, _ *watched) {
		s.of("a").refused(refusedErr)
		s.fronts[0].choose(weigh(frontendOf(0, "a", "b", "c"), at("b"), 0)) // another backend
		s.expect(t, "a")
		s.fronts[0].choose(weigh(frontendOf(0, "a", "b", "c"), at("a"), 0))
		s.fronts[0].choose(frontendOf(0, "a", "b", "c"))
		s.expect(t, "")
		expect.True(t, s.of("a").admits(s.now(), 0), "still skipped")
	}, []string{"a", "b", "c"})
}

// The backoff doubles with each failed try up to its bound. One client tries at a time, and failures
// of connections that began earlier don't count. After a calm time, it begins anew.
func TestTheBackoffGrows(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch, _ *watched) {
		x := s.of("a")
		x.refused(refusedErr)
		for _, want := range []time.Duration{500, 1000, 2000, 4000, 5000, 5000} {
			for range 10 { // late failures
				x.refused(refusedErr)
			}
			expect.Equal(t, time.Duration(x.avoid.Load()-s.now()), want*time.Millisecond, "skipped for")
			time.Sleep(want*time.Millisecond - 1)
			expect.False(t, x.admits(s.now(), time.Second), "tried too early")
			time.Sleep(time.Nanosecond)
			if !x.admits(s.now(), time.Second) || x.admits(s.now(), time.Second) {
				t.Error("not tried by one client")
			}
			x.refused(refusedErr)
		}
		x.connected()
		s.expect(t, "")
		x.refused(refusedErr)
		expect.Equal(t, time.Duration(x.avoid.Load()-s.now()), ejectMost, "a backend that fails and works in turn is skipped for")
		x.connected()
		time.Sleep(calmTime + 1)
		x.refused(refusedErr)
		expect.Equal(t, time.Duration(x.avoid.Load()-s.now()), ejectFirst, "skipped after a calm time")
	}, []string{"a", "b"})
}

// Each try of a backend that resets costs a client, so the tries become rarer than those of one that refuses.
func TestResetsBackOffFurther(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch, _ *watched) {
		x := s.of("a")
		for range resetsToEject + 10 {
			time.Sleep(max(0, time.Duration(x.avoid.Load()-s.now())))
			x.admits(s.now(), time.Second)
			x.reset()
		}
		expect.Equal(t, time.Duration(x.avoid.Load()-s.now()), lostMost, "skipped for")
	}, []string{"a", "b"})
}

// A connect is no evidence for a backend that resets its connections; an answer is.
func TestAConnectDoesNotReadmitABackendThatResets(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch, _ *watched) {
		x := s.of("a")
		for range resetsToEject - 1 {
			x.reset()
		}
		x.answered()
		for range resetsToEject - 1 {
			x.reset()
			x.connected()
		}
		s.expect(t, "")
		x.reset()
		s.expect(t, "a")
		x.connected()
		s.expect(t, "a")
		x.answered()
		s.expect(t, "")
	}, []string{"a", "b"})
}

// Without clients, an ejection ends by itself.
func TestAnEjectionWithoutClientsEnds(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch, w *watched) {
		s.of("a").refused(refusedErr)
		time.Sleep(ejectFirst + unseenTime - time.Second)
		expect.Equal(t, w.rows.Len(), 1, "rows")
		time.Sleep(2 * time.Second)
		s.expect(t, "")
		expect.Equal(t, w.rows.Len(), 0, "rows afterwards")
		kinds, _ := w.kinds()
		expect.SameList(t, kinds, []string{"backend_ejected", "backend_readmitted"}, "events")
	}, []string{"a", "b"})
}

// A connection to a backend that was removed can still fail. Such a failure has no effect, also if
// the backend is back.
func TestALateFailureOfARemovedBackend(t *testing.T) {
	for _, returns := range []bool{false, true} {
		inSketch(t, func(t *testing.T, s *sketch, w *watched) {
			removed := s.of("a")
			removed.refused(refusedErr)
			time.Sleep(2 * ejectFirst)
			must.True(t, removed.admits(s.now(), time.Second), "no client tries it")
			s.fronts[0].choose(frontendOf(0, "b", "c"))
			removed.refused(refusedErr)
			removed.connected()
			if returns {
				s.fronts[0].choose(frontendOf(0, "a", "b", "c"))
			}
			time.Sleep(3 * unseenTime)
			s.expect(t, "")
			s.of("b").refused(refusedErr)
			s.expect(t, "b")
			time.Sleep(3 * unseenTime)
			s.expect(t, "")
		}, []string{"a", "b", "c"})
	}
}

// A backend that its frontend has just dropped doesn't count among its ejected ones.
func TestADroppedBackendDoesNotCount(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch, _ *watched) {
		f := s.fronts[0]
		b := *f.backends.Load()
		dropped := b.all.of(at("a"))
		b.all = endpoints{b.all.of(at("b"))}
		b.usable = b.all
		whole := f.backends.Swap(&b)
		dropped.outlier.refused(refusedErr)
		s.expect(t, "")
		f.backends.Store(whole)
	}, []string{"a", "b"})
}

// A flapping backend causes few events, and a mass failure one for each service.
func TestEventsAreFew(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch, w *watched) {
		x := s.of("a")
		for range 100 { // 50 s
			x.refused(refusedErr)
			time.Sleep(250 * time.Millisecond)
			x.answered()
			time.Sleep(250 * time.Millisecond)
		}
		if kinds, _ := w.kinds(); len(kinds) == 0 || len(kinds) > 6 {
			t.Errorf("%d events of a backend that flapped for 50 s: %v", len(kinds), kinds)
		}
	}, []string{"a", "b"})
	inSketch(t, func(t *testing.T, s *sketch, w *watched) {
		const services = 60
		feed := w.rows.Watch()
		defer feed.Close()
		var all []*outlier
		for i := range services {
			spec := frontendOf(uint16(i+10), "a", "b", "c", "d")
			spec.Service.Name = fmt.Sprintf("web%d", i)
			f := newFrontend(s.Target, spec)
			f.listener = noListener{}
			defer f.close()
			for _, name := range []string{"a", "b"} {
				all = append(all, f.backends.Load().all.of(at(name)).outlier)
			}
		}
		for _, x := range all {
			x.refused(refusedErr)
		}
		time.Sleep(2 * reportPause)
		expect.Equal(t, w.rows.Len(), 2*services, "rows")
		kinds, messages := w.kinds()
		expect.Equal(t, len(kinds), services, "events")
		expect.Equal(t, messages[0], "web0 2 backends connections of clients failed: 10.0.0.97:80: connection refused; 10.0.0.98:80: connection refused")
	}, []string{"a", "b"})
}

// A connection of a backend that works takes no lock and no memory.
func TestAGoodConnectionIsNoNews(t *testing.T) {
	p := newTarget(t, Options{})
	f := onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin, at("a"), at("b"))
	p.must(f)
	x := p.frontend(f.Key).backends.Load().all.of(at("a")).outlier
	x.answered()
	p.outliers.mu.Lock() // a call that took it would hang
	defer p.outliers.mu.Unlock()
	if n := testing.AllocsPerRun(100, func() {
		expect.True(t, x.admits(p.now(), time.Second), "skipped")
		x.connected()
		x.answered()
		x.closed()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The endpoints of an address leave it in any order, each once.
func TestEndpointsLeaveTheirOutlier(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}} {
		inSketch(t, func(t *testing.T, s *sketch, _ *watched) {
			x := s.of("a")
			left := map[*endpoint]struct{}{}
			for _, f := range s.fronts {
				left[f.backends.Load().all.of(at("a"))] = struct{}{}
			}
			for _, i := range order {
				e := s.fronts[i].backends.Load().all.of(at("a"))
				s.outliers.part(e)
				s.outliers.part(e)
				delete(left, e)
				must.Equal(t, len(x.users), len(left), "%v: %d endpoints after %d, want %d", order, len(x.users), i, len(left))
				for _, u := range x.users {
					_, is := left[u]
					expect.True(t, is, "%v: a wrong endpoint after %d", order, i)
				}
			}
			expect.True(t, s.outliers.m[x.key] == nil, "the outlier stays without endpoints")
		}, []string{"a"}, []string{"a"}, []string{"a"}, []string{"a"})
	}
}
