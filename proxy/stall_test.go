package proxy

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// clientele sends clients to the backends of a sketch's first frontend on fake time, each with one
// request. As the proxy, it skips the backends to avoid.
type clientele struct {
	*sketch
	backends []*endpoint
	choose   func(i int) int                                        // the backend of a client
	takes    func(backend int, now time.Time) (time.Duration, bool) // until the answer; false: none
	sent     []int                                                  // clients by backend
	waiting  []answer
	n        int
}

type answer struct {
	*connection
	at time.Time
}

func newClientele(s *sketch, backends ...string) *clientele {
	w := &clientele{sketch: s, sent: make([]int, len(backends))}
	for _, name := range backends {
		w.backends = append(w.backends, s.fronts[0].backends.Load().all.of(at(name)))
	}
	w.choose = func(i int) int { return i % len(backends) }
	w.takes = func(int, time.Time) (time.Duration, bool) { return 2 * time.Millisecond, true }
	return w
}

// run has a client every 2.5 ms for that long, or until stop.
func (w *clientele) run(d time.Duration, stop func() bool) {
	for end := time.Now().Add(d); time.Now().Before(end) && !stop(); time.Sleep(2500 * time.Microsecond) {
		now := w.now()
		w.waiting = slices.DeleteFunc(w.waiting, func(a answer) bool {
			if a.at.After(time.Now()) {
				return false
			}
			a.getsAnswer(now)
			return true
		})
		i := w.choose(w.n)
		for w.n++; !w.backends[i].outlier.admits(now, 3*time.Second); {
			i = (i + 1) % len(w.backends)
		}
		w.sent[i]++
		c := &connection{f: w.fronts[0], endpoint: w.backends[i]}
		c.before = c.endpoint.compare()
		c.asks(now)
		if took, ok := w.takes(i, time.Now()); ok {
			w.waiting = append(w.waiting, answer{c, time.Now().Add(took)})
		}
	}
}

func (w *clientele) doubted(i int) bool {
	w.outliers.mu.Lock()
	defer w.outliers.mu.Unlock()
	return w.backends[i].outlier.doubted
}

// forever never stops run.
func forever() bool { return false }

// A stopped backend gets few of 400 clients a second, although none of them has given up. The first
// answer ends that; without one, one client at a time tries the backend.
func TestAStoppedBackendIsDoubted(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch, w *watched) {
		load := newClientele(s, "a", "b", "c")
		load.run(10*time.Second, func() bool { return load.doubted(0) || load.doubted(1) || load.doubted(2) })
		began, before := time.Now(), load.sent[0]
		must.AtLeast(t, before, 1300, "clients, then a doubt")
		load.takes = func(backend int, _ time.Time) (time.Duration, bool) { return 2 * time.Millisecond, backend > 0 }
		load.run(10*time.Second, func() bool { return load.doubted(0) })
		if took, n := time.Since(began), load.sent[0]-before; took > 250*time.Millisecond || n > 33 {
			t.Errorf("doubted after %s and %d clients", took, n)
		}
		if f := failuresOf(s.Target, s.of("a").key); !strings.HasSuffix(f.Reason, " clients, while other backends answer") {
			t.Errorf("%+v", f)
		}
		before = load.sent[0]
		load.run(30*time.Second, forever)
		expect.Between(t, load.sent[0]-before, 8, 10, "clients have tried it in 30 s")
		load.takes = func(int, time.Time) (time.Duration, bool) { return 2 * time.Millisecond, true }
		load.run(4*time.Second, func() bool { return !load.doubted(0) })
		before = load.sent[0]
		load.run(3*time.Second, forever)
		if n := load.sent[0] - before; n < 390 || load.doubted(0) {
			t.Errorf("it gets %d clients when it answers again", n)
		}
		s.expect(t, "")
		if kinds, _ := w.kinds(); len(kinds) > 0 {
			t.Errorf("events %v", kinds)
		}
	}, []string{"a", "b", "c"})
}

// Backends that behave in the same way are practically never doubted, whatever share of the requests is
// never answered, however their times differ, and however unevenly clients are spread.
// Slow: 30 simulations of many clients.
func TestNoDoubtByChance(t *testing.T) {
	for seed := range uint64(30) {
		inSketch(t, func(t *testing.T, s *sketch, _ *watched) {
			load, r := newClientele(s, "a", "b", "c", "d"), rand.New(rand.NewPCG(seed, 3))
			silent, slow, mean := r.Float64(), r.Float64(), time.Duration(r.ExpFloat64()*float64(20*time.Millisecond))
			var share [4]float64
			for i := range share {
				share[i] = r.ExpFloat64()
			}
			load.choose = func(int) int {
				i := 0
				for x := r.Float64() * (share[0] + share[1] + share[2] + share[3]); i < 3 && x >= share[i]; i++ {
					x -= share[i]
				}
				return i
			}
			load.takes = func(int, time.Time) (time.Duration, bool) {
				took := time.Duration(r.ExpFloat64() * float64(mean))
				if r.Float64() < slow {
					took *= 50
				}
				return took, r.Float64() >= silent
			}
			doubted := func() bool {
				return slices.ContainsFunc([]int{0, 1, 2, 3}, load.doubted)
			}
			load.run(20*time.Second, doubted)
			expect.False(t, doubted(), "seed %d: doubted after %v clients; %.2f silent, %.2f slow, mean %s, shares %.2f", seed, load.sent, silent, slow, mean, share)
		}, []string{"a", "b", "c", "d"})
	}
}

// If all backends become silent at the same time, none is doubted.
func TestNoDoubtIfAllAreSilent(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch, _ *watched) {
		load := newClientele(s, "a", "b", "c")
		began := time.Now()
		load.takes = func(_ int, now time.Time) (time.Duration, bool) {
			return 2 * time.Millisecond, now.Sub(began)%(4*time.Second) < 3*time.Second
		}
		load.run(time.Minute, func() bool { return load.doubted(0) || load.doubted(1) || load.doubted(2) })
		expect.AtLeast(t, time.Since(began), time.Minute, "doubted")
	}, []string{"a", "b", "c"})
}

// A backend that is much slower than the others gets its share of the clients in the end: it answers as
// many as are sent there.
func TestASlowBackendKeepsItsClients(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch, _ *watched) {
		load := newClientele(s, "a", "b", "c")
		load.takes = func(backend int, _ time.Time) (time.Duration, bool) {
			return []time.Duration{1500 * time.Millisecond, 2 * time.Millisecond, 2 * time.Millisecond}[backend], true
		}
		load.run(20*time.Second, forever)
		before := load.sent[0]
		load.run(20*time.Second, forever)
		expect.AtLeast(t, load.sent[0]-before, 2000, "its part of 8000 clients")
		s.expect(t, "")
	}, []string{"a", "b", "c"})
}

// Where a backend has clients of its own, these may be different, and belong there.
func TestNoDoubtForClientsOfABackend(t *testing.T) {
	for name, change := range map[string]func(*vip.Frontend){
		"sh":       func(f *vip.Frontend) { f.Scheduler = vip.SourceHash },
		"mh":       func(f *vip.Frontend) { f.Scheduler = vip.MaglevHash },
		"affinity": func(f *vip.Frontend) { f.Affinity = time.Minute },
	} {
		inSketch(t, func(t *testing.T, s *sketch, _ *watched) {
			spec := frontendOf(0, "a", "b", "c")
			change(spec)
			s.fronts[0].choose(spec)
			load := newClientele(s, "a", "b", "c")
			load.takes = func(backend int, _ time.Time) (time.Duration, bool) { return 2 * time.Millisecond, backend > 0 }
			load.run(10*time.Second, func() bool { return load.doubted(0) })
			expect.False(t, load.doubted(0), "%s: doubted after %v clients", name, load.sent)
		}, []string{"a", "b", "c"})
	}
}

// Patient clients: a backend that stops to answer gets no others, before any has given up. It gets some
// again when it answers.
func TestPatientClientsAreSentElsewhere(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		t.Parallel() // it waits, see leastWait
		w := newWatched(t)
		key := freeKey(t, f.vip, vip.TCP)
		var never, hung atomic.Bool
		a, b, bad := hangs(t, f.backend, "a", &never), hangs(t, f.backend, "b", &never), hangs(t, f.backend, "bad", &hung)
		w.must(onVIP(key, vip.RoundRobin, a, b, bad))
		hung.Store(true)
		var clients sync.WaitGroup
		defer clients.Wait()
		var over atomic.Bool
		defer over.Store(true)
		arrive := func() bool { // a client at each look
			clients.Go(func() {
				c := dial(t, key)
				defer c.Close()
				_, _ = c.Write([]byte("x\n"))
				for !over.Load() && c.SetReadDeadline(time.Now().Add(leastWait)) == nil {
					if _, err := c.r.ReadString('\n'); err == nil {
						return
					}
				}
			})
			return w.doubted(key, bad)
		}
		wait.Until(t, "the silent backend is doubted", arrive)
		n := w.Failures(passiveKey(key, bad))
		if n.Unanswered != 0 || n.Ejections != 0 || !strings.HasPrefix(n.Reason, "no answer yet to ") {
			t.Errorf("%+v", n)
		}
		hung.Store(false)
		wait.Until(t, "it is trusted", func() bool { return !arrive() })
		for _, addr := range []netip.AddrPort{a, b} {
			expect.Equal(t, w.Failures(passiveKey(key, addr)).Reason, "", "of a backend that works: reason")
		}
	})
}
