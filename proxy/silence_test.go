package proxy

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

func TestUnlikely(t *testing.T) {
	for _, c := range []struct {
		n              int
		given, missing int64
		want           bool
	}{
		{2, 1e9, 0, false}, // chance, however many
		{4, 266, 0, true},  // 400 clients a second of three backends, for a second
		{3, 266, 0, false},
		{11, 22, 0, true}, // few clients
		{10, 20, 0, false},
		{1e6, 0, 0, false}, // nobody answers: logs, long polls, a database that is down
		{1e6, 0, 1e6, false},
		{1e6, 1, 1e6, false},
		{30, 100, 100, true}, // half of the requests are long polls
		{20, 100, 100, false},
		{50, 10, 90, false},
	} {
		expect.Equal(t, unlikely(c.n, c.given, c.missing, chance), c.want, "unlikely(%d, %d, %d)", c.n, c.given, c.missing)
	}
}

// The result is that of the product of probabilities. More evidence against the backend never helps it,
// more of the same at the others never harms it, and nothing is evidence if the others don't answer.
func FuzzUnlikely(f *testing.F) {
	f.Add(uint16(4), uint16(266), uint16(0), uint16(1))
	f.Add(uint16(20), uint16(100), uint16(100), uint16(50))
	f.Fuzz(func(t *testing.T, n, given, missing, more uint16) {
		is := func(n, given, missing uint16) bool { return unlikely(int(n), int64(given), int64(missing), chance) }
		product := 1.0
		for i := range int(n) {
			silent := float64(n) + float64(missing) - float64(i)
			product *= silent / (silent + float64(given))
		}
		yes := is(n, given, missing)
		if want := product <= chance && n >= leastStreak; yes != want && (product < chance*0.999 || product > chance*1.001) {
			t.Errorf("%d in a row of %d answers, %d without: %v, and the product is %g", n, given, missing, yes, product)
		}
		n, given, missing, more = min(n, 1<<15), min(given, 1<<15), min(missing, 1<<15), min(more, 1<<15)
		switch yes := is(n, given, missing); {
		case yes && given == 0:
			t.Error("without evidence")
		case yes && !is(n+1, given, missing):
			t.Error("a longer streak is more likely")
		case yes && !is(n, given+more, missing):
			t.Error("with more answers of the others, more likely")
		case !yes && is(n, given, missing+more):
			t.Error("with fewer answers of the others, less likely")
		}
	})
}

// Backends that behave in the same way are practically never told apart by chance, whatever share of
// the clients gives up and however unevenly they are spread. One that answers nobody is found.
func TestSilenceByChance(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 2))
		const backends, clients = 4, 20000
		giveUp := r.Float64()
		var share [backends]float64
		for i := range share {
			share[i] = r.ExpFloat64()
		}
		for _, dead := range []bool{false, true} {
			type counts struct {
				given, missing int64
				n              int
				since          [2]int64
			}
			var all counts
			var each [backends]counts
			found := -1
			for k := range clients {
				i := 0
				for x := r.Float64() * (share[0] + share[1] + share[2] + share[3]); i < backends-1 && x >= share[i]; i++ {
					x -= share[i]
				}
				b := &each[i]
				if r.Float64() >= giveUp && !(dead && i == 0) {
					all.given++
					b.given++
					b.n = 0
					continue
				}
				if b.n++; b.n == 1 {
					b.since = [2]int64{all.given - b.given, all.missing - b.missing}
				}
				all.missing++
				b.missing++
				if unlikely(b.n, all.given-b.given-b.since[0], all.missing-b.missing-b.since[1], chance) {
					if !dead || i != 0 {
						t.Fatalf("seed %d, %.2f give up, shares %.2f: backend %d is suspect after %d clients", seed, giveUp, share, i, k)
					}
					found = b.n
					break
				}
			}
			if dead && giveUp < 0.5 && share[0] > 0.2 && (found < 0 || found > 100) {
				t.Errorf("seed %d, %.2f give up, shares %.2f: the silent one is found after %d clients", seed, giveUp, share, found)
			}
		}
	}
}

// hangs returns a backend that answers with its name, except for polls and while it hangs. Then it
// only answers the end of its clients.
func hangs(t testing.TB, addr, name string, hung *atomic.Bool) netip.AddrPort {
	return tcpBackend(t, addr, func(c *net.TCPConn) {
		buf := make([]byte, 100)
		for {
			n, err := c.Read(buf)
			if err != nil {
				if hung.Load() { // as a program that notices only the end of its client
					fmt.Fprintln(c, "error: client gone")
				}
				return
			}
			if !hung.Load() && !strings.HasPrefix(string(buf[:n]), "poll") {
				fmt.Fprintln(c, name)
			}
		}
	})
}

// giveUp connects, sends a text, and closes the connection if there is no answer in time. It returns
// the answer.
func giveUp(t testing.TB, key vip.FrontendKey, text string, patience time.Duration) string {
	c := dial(t, key)
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		return ""
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	line, _ := c.r.ReadString('\n')
	return strings.TrimSpace(line)
}

// crowd has n clients at a time that call f until stop is called.
func crowd(n int, f func()) (stop func()) {
	var clients sync.WaitGroup
	var over atomic.Bool
	for range n {
		clients.Go(func() {
			for !over.Load() {
				f()
			}
		})
	}
	return func() { over.Store(true); clients.Wait() }
}

// A backend that accepts and never answers is ejected after few clients, because others answer. When
// it answers again, it is readmitted.
// Slow: clients give up after 0.5 s until the backend is ejected, and until it is tried again.
func TestABackendThatNeverAnswersIsEjected(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		w := newWatched(t)
		key := freeKey(t, f.vip, vip.TCP)
		var never, hung atomic.Bool
		a, b, bad := hangs(t, f.backend, "a", &never), hangs(t, f.backend, "b", &never), hangs(t, f.backend, "bad", &hung)
		w.must(onVIP(key, vip.RoundRobin, a, b, bad))
		hung.Store(true)
		stop := crowd(20, func() { giveUp(t, key, "x\n", 5*leastWait) })
		defer stop()
		row := w.waitFor(key, bad, vip.Ejected)
		expect.True(t, strings.HasPrefix(row.Reason, "no answer before the client gave up"), "%+v", row)
		if n := w.Failures(passiveKey(key, bad)); n.Unanswered < leastStreak || n.Ejections != 1 || n.Connects != 0 || n.Reason != "no answer before the client gave up" {
			t.Errorf("%+v", n)
		}
		wait.Until(t, "a client tries it in vain", func() bool { return strings.HasSuffix(w.row(key, bad).Reason, " times)") })
		hung.Store(false)
		w.waitFor(key, bad, vip.Healthy)
		stop()
		for _, addr := range []netip.AddrPort{a, b} {
			expect.Equal(t, w.Failures(passiveKey(key, addr)).Ejections, 0, "of a backend that works: ejections")
		}
	})
}

// In these services, clients end connections without an answer, as their protocol wants it. Such an
// end is no evidence against a backend. Slow: clients give up after 0.2 s, many times.
func TestSilenceThatIsNoEvidence(t *testing.T) {
	const patience = 2 * leastWait
	request := func(t *testing.T, key vip.FrontendKey, text string) { giveUp(t, key, text, patience) }
	for name, c := range map[string]struct {
		serve func(*net.TCPConn) // nil: hangs
		ask   func(t *testing.T, key vip.FrontendKey, i int)
	}{
		"long polls": {nil, func(t *testing.T, key vip.FrontendKey, _ int) { request(t, key, "poll\n") }},
		"long polls beside requests": {nil, func(t *testing.T, key vip.FrontendKey, i int) {
			request(t, key, []string{"poll\n", "x\n"}[i%2])
		}},
		"logs, which are never answered": {func(c *net.TCPConn) { io.Copy(io.Discard, c) }, func(t *testing.T, key vip.FrontendKey, _ int) {
			request(t, key, "<13>a line of a log\n")
		}},
		"the server begins": {func(c *net.TCPConn) { fmt.Fprintln(c, "220 welcome"); io.Copy(io.Discard, c) }, func(t *testing.T, key vip.FrontendKey, _ int) {
			who(t, key)
		}},
		"half-closed with the request": {func(c *net.TCPConn) { io.Copy(io.Discard, c); time.Sleep(leastWait); fmt.Fprintln(c, "done") }, func(t *testing.T, key vip.FrontendKey, _ int) {
			c := dial(t, key)
			defer c.Close()
			fmt.Fprintln(c, "x")
			_ = c.CloseWrite()
			expect.Equal(t, c.line(t), "done")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatched(t)
			key := freeKey(t, "127.96.0.1", vip.TCP)
			var all []netip.AddrPort
			var never atomic.Bool
			for i := range 3 {
				if c.serve == nil {
					all = append(all, hangs(t, "127.0.0.1", fmt.Sprint(i), &never))
				} else {
					all = append(all, tcpBackend(t, "127.0.0.1", c.serve))
				}
			}
			w.must(onVIP(key, vip.RoundRobin, all...))
			var clients sync.WaitGroup
			for i := range 20 {
				clients.Go(func() {
					for k := range 8 {
						c.ask(t, key, i+k)
					}
				})
			}
			clients.Wait()
			for _, addr := range all {
				expect.Equal(t, w.Failures(passiveKey(key, addr)).Ejections, 0, "ejections")
			}
		})
	}
}

// If all backends stop to answer at the same time, such as with their database, none is ejected.
// Slow: clients give up after 0.4 s, 60 times.
func TestAllBackendsStopToAnswer(t *testing.T) {
	w := newWatched(t)
	key := freeKey(t, "127.96.0.1", vip.TCP)
	var hung atomic.Bool
	all := []netip.AddrPort{hangs(t, "127.0.0.1", "a", &hung), hangs(t, "127.0.0.1", "b", &hung), hangs(t, "127.0.0.1", "c", &hung)}
	w.must(onVIP(key, vip.RoundRobin, all...))
	missing := func() uint64 {
		w.mu.RLock()
		defer w.mu.RUnlock()
		return w.frontends[key].answers.missing.Load()
	}
	stop := crowd(10, func() { giveUp(t, key, "x\n", 4*leastWait) })
	wait.Until(t, "they answer", func() bool { return w.row(key, all[2]).Health == vip.Healthy })
	hung.Store(true)
	wait.Until(t, "clients give up", func() bool { return missing() >= 60 })
	stop()
	for _, addr := range all {
		expect.Equal(t, w.Failures(passiveKey(key, addr)).Ejections, 0, "ejections")
	}
}

// A stopped program: all clients of it give up within the same time. It is ejected when the first
// few do, the others of that moment are lost.
func TestAStreakIsShort(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch, _ *watched) {
		f := s.fronts[0]
		a, b := f.backends.Load().all.of(at("a")), f.backends.Load().all.of(at("b"))
		begin := func(e *endpoint) *connection {
			c := &connection{f: f, endpoint: e}
			c.before = e.compare()
			c.asked.Store(s.now())
			return c
		}
		var waiting []*connection
		time.Sleep(time.Millisecond)
		for range 100 {
			waiting = append(waiting, begin(a))
			c := begin(b)
			time.Sleep(10 * time.Millisecond)
			c.getsAnswer(s.now())
		}
		const enough = 6 // with 100 answers
		for i, c := range waiting[:enough] {
			s.expect(t, "")
			if c.givesUp(); i == 0 {
				c.givesUp() // again at the end of the connection
			}
		}
		s.expect(t, "a")
		waiting[0].getsAnswer(s.now()) // too late
		s.expect(t, "a")
		begin(a).getsAnswer(s.now())
		s.expect(t, "")
		for _, c := range waiting[enough:] {
			c.givesUp() // it has answered since they began
		}
		s.expect(t, "")
	}, []string{"a", "b"})
}

// A service of few clients, one at a time: nobody else is answered while a client waits in vain.
func TestSilenceOfAQuietService(t *testing.T) {
	for name, c := range map[string]struct {
		silent   []string // the backends that answer nobody
		together int      // clients at a time
		ejects   int      // after so many clients without an answer; 0: never
	}{
		"one of three":                    {[]string{"a"}, 1, 6},
		"all":                             {[]string{"a", "b", "c"}, 1, 0},
		"all clients of a moment are one": {[]string{"a"}, 3, 4},
	} {
		t.Run(name, func(t *testing.T) {
			inSketch(t, func(t *testing.T, s *sketch, _ *watched) {
				f := s.fronts[0]
				lost := 0
				time.Sleep(time.Millisecond)
				for i := range 60 {
					name := []string{"a", "b", "c"}[i%3]
					e := f.backends.Load().all.of(at(name))
					var clients []*connection
					for range c.together {
						one := &connection{f: f, endpoint: e}
						one.before = e.compare()
						one.asked.Store(s.now())
						clients = append(clients, one)
					}
					if !slices.Contains(c.silent, name) {
						time.Sleep(time.Millisecond)
						for _, one := range clients {
							one.getsAnswer(s.now())
						}
						continue
					}
					time.Sleep(3 * time.Second)
					for _, one := range clients {
						one.givesUp()
					}
					if lost++; c.ejects == 0 || lost < c.ejects {
						s.expect(t, "")
						continue
					}
					s.expect(t, "a")
					return
				}
				expect.Equal(t, c.ejects, 0, "not ejected")
			}, []string{"a", "b", "c"})
		})
	}
}
