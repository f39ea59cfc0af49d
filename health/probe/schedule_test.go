package probe

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// fake is a prober in fake time. It records when probes start.
type fake struct {
	e      *Engine
	answer func(t Target) (o Outcome, after time.Duration)
	mu     sync.Mutex
	starts map[Target][]time.Duration // since the engine's epoch
	marks  map[Target]uint32          // of the last one
	now    int
	most   int // at once
}

func (f *fake) start(jobs []job) {
	for _, j := range jobs {
		o, after := f.answer(j.t.Target)
		f.mu.Lock()
		f.now++
		f.most = max(f.most, f.now)
		if f.marks == nil {
			f.marks = map[Target]uint32{}
		}
		f.marks[j.t.Target] = j.mark
		f.starts[j.t.Target] = append(f.starts[j.t.Target], time.Since(f.e.epoch))
		f.mu.Unlock()
		time.AfterFunc(after, func() {
			f.mu.Lock()
			f.now--
			f.mu.Unlock()
			f.e.report([]done{{j.t, o, o.String(), after}})
		})
	}
}

// lab is an engine with fake probers in fake time and the same chance in each run, for use in a
// bubble.
type lab struct {
	*Engine
	*fake
	rows *table.Table[Target, Result]
}

func passes(Target) (Outcome, time.Duration)   { return OK, time.Millisecond }
func silent(t Target) (Outcome, time.Duration) { return TimedOut, t.Check().Timeout }

func newLab(t *testing.T, o Options, answer func(Target) (Outcome, time.Duration)) *lab {
	t.Helper()
	o.Results = NewResults(&table.Clock{})
	e := New(o)
	e.chance = rand.New(rand.NewPCG(2, 2)) // another seed can give a window a rate far from the mean, by chance
	f := &fake{e: e, answer: answer, starts: map[Target][]time.Duration{}}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { e.run(ctx, [lanes]prober{f, f, f}) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		time.Sleep(time.Hour) // fake time: the fake's timers end
	})
	return &lab{e, f, o.Results}
}

// health returns the number of rows with each health.
func (l *lab) health() map[vip.Health]int {
	n := map[vip.Health]int{}
	for _, r := range l.rows.All() {
		n[r.Health]++
	}
	return n
}

// targets returns n targets with a check.
func targets(n int, c vip.HealthCheck) []Target {
	ts := make([]Target, n)
	for i := range ts {
		ts[i] = NewTarget(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80), c)
	}
	return ts
}

var tcp = vip.HealthCheck{Type: vip.CheckTCP}

// markOf returns the mark of a target's last probe.
func (f *fake) markOf(t Target) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.marks[t]
}

// startsOf returns when the probes of a target started.
func (f *fake) startsOf(t Target) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.starts[t])
}

// mostAtOnce returns how many probes ran at the same time.
func (f *fake) mostAtOnce() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}

// rates returns the number of starts in each window.
func (f *fake) rates(window time.Duration) []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	var n []int
	for _, starts := range f.starts {
		for _, at := range starts {
			i := int(at / window)
			for len(n) <= i {
				n = append(n, 0)
			}
			n[i]++
		}
	}
	return n
}

// All targets are probed within one interval, and no 100 ms have more than twice the mean rate, at
// the start and later.
func TestProbesAreSpread(t *testing.T) {
	for _, n := range []int{1000, 10_000} {
		bubble.Run(t, fmt.Sprint(n), func(t *testing.T) {
			l := newLab(t, Options{}, passes)
			for _, target := range targets(n, tcp) {
				l.Start(target, Use{Namespace: "default"})
			}
			if h := l.health(); h[vip.Unknown] != n {
				t.Errorf("at the start: %v", h)
			}
			time.Sleep(vip.DefaultCheckInterval)
			if h := l.health(); h[vip.Healthy] != n {
				t.Errorf("after one interval: %v", h)
			}
			time.Sleep(6 * time.Second)
			rates, window := l.rates(100*time.Millisecond), 100*time.Millisecond
			mean := n * int(window) / int(vip.DefaultCheckInterval)
			most := 2 * mean
			if n == 1000 { // few enough that knowing them soon counts more
				most = 150
			}
			for i, rate := range rates[:len(rates)-1] {
				if rate > most || i > 40 && rate < mean/2 {
					t.Errorf("%d probes started at %v, the mean is %d", rate, time.Duration(i)*window, mean)
				}
			}
		})
	}
}

// Each interval is shortened by 0 to 20%, and chance uses the whole range.
func TestJitter(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newLab(t, Options{}, passes)
		target := targets(1, tcp)[0]
		l.Start(target, Use{Namespace: "default"})
		time.Sleep(20 * time.Minute)
		starts := l.startsOf(target)
		lo, hi := time.Hour, time.Duration(0)
		for i := range starts[1:] {
			d := starts[i+1] - starts[i]
			lo, hi = min(lo, d), max(hi, d)
		}
		if starts[0] > spreadStep+pace || lo < 1600*time.Millisecond || lo > 1650*time.Millisecond || hi < 1950*time.Millisecond || hi > 2*time.Second+pace {
			t.Errorf("first after %v, then every %v to %v", starts[0], lo, hi)
		}
	})
}

// The fast interval applies from the first failure until the state is decided, and while a target
// recovers.
func TestFastInterval(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		answers := outcomesOf("+rrrrr+++") // becomes unhealthy at the third r, healthy at the second last +
		l := newLab(t, Options{}, func(Target) (Outcome, time.Duration) {
			o := answers[0]
			if len(answers) > 1 {
				answers = answers[1:]
			}
			return o, time.Millisecond
		})
		target := targets(1, tcp)[0]
		l.Start(target, Use{Namespace: "default"})
		time.Sleep(20 * time.Second)
		var fast string
		starts := l.startsOf(target)
		for i := range 9 {
			switch d := starts[i+1] - starts[i]; {
			case d >= 400*time.Millisecond && d <= 500*time.Millisecond+2*pace:
				fast += "f"
			case d >= 1600*time.Millisecond && d <= 2*time.Second+2*pace:
				fast += "-"
			default:
				fast += "?"
			}
		}
		want := "-ff---f--"
		expect.Equal(t, fast, want, "intervals are %s, want %s: %v", fast, want, starts)
	})
}

// A silent target is unhealthy after fall * interval + timeout at the latest; a refusing one after
// one interval and a series of fast intervals.
func TestTimeOfDetection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const n = 500
		down := map[Target]time.Duration{}
		var mu sync.Mutex
		l := newLab(t, Options{}, func(t Target) (Outcome, time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case down[t] == 0:
				return OK, time.Millisecond
			case t.Addr.Port() == 80:
				return silent(t)
			}
			return Refused, time.Millisecond
		})
		all := targets(n, tcp)
		for i := range all {
			if i%2 == 1 {
				all[i] = NewTarget(netip.AddrPortFrom(all[i].Addr.Addr(), 81), tcp)
			}
			l.Start(all[i], Use{Namespace: "default"})
		}
		time.Sleep(5 * time.Second)
		for _, target := range all { // one after the other, so that the phases differ
			time.Sleep(7 * time.Millisecond)
			mu.Lock()
			down[target] = time.Since(l.epoch)
			mu.Unlock()
		}
		time.Sleep(10 * time.Second)
		c := all[0].Check()
		for _, target := range all {
			r, _, _ := l.rows.Get(target)
			took := r.Since.Sub(vip.InstantOf(l.epoch)) - down[target]
			bound := time.Duration(c.Fall)*c.Interval + c.Timeout
			if target.Addr.Port() == 81 {
				bound = c.Interval + time.Duration(c.Fall-1)*c.FastInterval + 20*time.Millisecond
			}
			if r.Health != vip.Unhealthy || took > bound {
				t.Errorf("%v is %v after %v, the bound is %v", target, r.Health, took, bound)
			}
		}
	})
}

// A new target among others is probed at once, and so is the first of many.
func TestFirstProbeIsEarly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newLab(t, Options{}, passes)
		for _, target := range targets(20, vip.HealthCheck{Type: vip.CheckTCP, Interval: time.Hour}) {
			time.Sleep(time.Second)
			l.Start(target, Use{Namespace: "default"})
			began := time.Since(l.epoch)
			time.Sleep(10 * time.Millisecond)
			if s, _ := l.stateOf(target); s.health != vip.Healthy || l.startsOf(target)[0]-began > pace {
				t.Fatalf("%v is %v after 10ms, probed at %v", target, s.health, l.startsOf(target))
			}
		}
		few := targets(5, vip.HealthCheck{Type: vip.CheckTCP, Interval: time.Minute})
		for _, target := range few {
			l.Start(target, Use{Namespace: "default"})
		}
		time.Sleep(5 * spreadStep)
		for _, target := range few {
			expect.True(t, len(l.startsOf(target)) != 0, "%v of few was not probed", target)
		}
		many := targets(10_000, vip.HealthCheck{Type: vip.CheckTCP, Interval: 30 * time.Minute})
		for _, target := range many {
			l.Start(target, Use{Namespace: "default"})
		}
		time.Sleep(maxSpread + 10*time.Millisecond)
		for _, target := range many {
			expect.True(t, len(l.startsOf(target)) != 0, "%v of many was not probed within %v", target, maxSpread)
		}
	})
}

// After a stall, the overdue probes are spread again, and timeouts of probes that ran meanwhile are
// no evidence.
func TestStall(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const n = 2000
		t0 := time.Now()
		var stalls atomic.Int64   // when it begins
		var stalled time.Duration // when the engine was stopped; only its goroutine writes it
		l := newLab(t, Options{}, func(target Target) (Outcome, time.Duration) {
			begin := time.Duration(stalls.Load())
			switch now := time.Since(t0); {
			case begin == 0 || now < begin:
				return OK, time.Millisecond
			case now < begin+100*time.Millisecond: // ends while the engine is stopped
				return TimedOut, time.Second
			case stalled == 0:
				stalled = now
				time.Sleep(30 * time.Second) // in the engine's goroutine
			}
			return OK, time.Millisecond
		})
		all := targets(n, tcp)
		for _, target := range all {
			l.Start(target, Use{Namespace: "default"})
		}
		time.Sleep(10 * time.Second)
		stalls.Store(int64(10 * time.Second))
		time.Sleep(40 * time.Second)
		s := l.Stats()
		resumed := stalled + 30*time.Second
		if s.Stalls != 1 || l.health()[vip.Healthy] != n {
			t.Errorf("%d stalls, states %v", s.Stalls, l.health())
		}
		locals := uint64(0)
		for _, c := range s.Probes {
			if c.Outcome == Starved {
				locals = c.N
			} else if c.Outcome != OK {
				t.Errorf("%d probes with outcome %v", c.N, c.Outcome)
			}
		}
		expect.Between(t, locals, n/30, n/10, "local faults")
		window := 100 * time.Millisecond
		for i, rate := range l.rates(window) {
			at := time.Duration(i) * window
			if at > resumed-window && rate > 250 { // few enough that knowing them soon counts more than an even rate
				t.Errorf("%d probes in the window %v after the stall", rate, at-resumed)
			}
		}
	})
}

// Targets that were added long before Run are spread from its start.
func TestStartBeforeRun(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		e := New(Options{Results: NewResults(&table.Clock{})})
		f := &fake{e: e, answer: passes, starts: map[Target][]time.Duration{}}
		for _, target := range targets(10_000, tcp) {
			e.Start(target, Use{Namespace: "default"})
		}
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		e.run(ctx, [lanes]prober{f, f, f})
		if s := e.Stats(); s.Stalls != 0 || s.Targets != 10_000 {
			t.Errorf("%+v", s)
		}
		for i, rate := range f.rates(100 * time.Millisecond) {
			expect.AtMost(t, rate, 1000, "probes in window %d", i-600)
		}
		time.Sleep(time.Second)
	})
}

// A wall clock that changes has no effect on the schedule: only monotonic time is used. In a
// bubble, the clocks can't differ, so this reads the types: the queue's times have a monotonic part.
func TestScheduleIsMonotonic(t *testing.T) {
	e := New(Options{Results: NewResults(&table.Clock{})})
	e.Start(targets(1, tcp)[0], Use{Namespace: "default"})
	_, at, _ := e.queue.First()
	expect.True(t, at != at.Round(0), "the queue has a time without a monotonic clock reading")
}

// Probes over a limit wait in order and start when one ends. They are late, and this is no failure.
func TestLimitOfProbes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const n, limit = 300, 50
		l := newLab(t, Options{Sockets: limit}, func(t Target) (Outcome, time.Duration) { return OK, time.Second })
		all := targets(n, tcp)
		for _, target := range all {
			l.Start(target, Use{Namespace: "default"})
		}
		time.Sleep(7 * time.Second)
		synctest.Wait()
		s := l.Stats()
		if l.mostAtOnce() != limit || s.Running != limit || s.Waiting == 0 || s.Late == 0 {
			t.Errorf("at most %d at once; %+v", l.mostAtOnce(), s)
		}
		time.Sleep(time.Minute)
		fewest, most := 1000, 0
		for _, target := range all {
			fewest, most = min(fewest, len(l.startsOf(target))), max(most, len(l.startsOf(target)))
		}
		if l.health()[vip.Healthy] != n || fewest < 10 || most > fewest+2 {
			t.Errorf("states %v, each probed %d to %d times in 67 s", l.health(), fewest, most)
		}
		for _, target := range all {
			l.Stop(target)
		}
		time.Sleep(2 * time.Second)
		if s := l.Stats(); s.Targets+s.Running+s.Waiting != 0 {
			t.Errorf("after Stop: %+v", s)
		}
	})
}

// Lanes don't delay each other.
func TestLanesAreSeparate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newLab(t, Options{Requests: 1, Commands: 1}, func(t Target) (Outcome, time.Duration) {
			if t.Check().Type == vip.CheckTCP {
				return passes(t)
			}
			return silent(t)
		})
		for _, c := range []vip.CheckType{vip.CheckHTTP, vip.CheckExec} {
			for _, target := range targets(100, vip.HealthCheck{Type: c, Timeout: time.Minute}) {
				l.Start(target, Use{Namespace: "default"})
			}
		}
		time.Sleep(time.Second)
		target := targets(1, tcp)[0]
		l.Start(target, Use{Namespace: "default"})
		time.Sleep(10 * time.Second)
		expect.AtLeast(t, len(l.startsOf(target)), 5, "probes of the TCP target in 10 s")
	})
}

// Targets of some namespaces that accept and never answer don't keep the probes of another one waiting, in any
// lane. A namespace alone has the whole lane.
func TestNamespacesShareALane(t *testing.T) {
	for _, kind := range []vip.CheckType{vip.CheckTCP, vip.CheckHTTP, vip.CheckExec} {
		t.Run(kind.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				const limit = 16
				l := newLab(t, Options{Sockets: limit, Requests: limit, Commands: limit}, func(t Target) (Outcome, time.Duration) {
					if t.Check().Interval == time.Minute {
						return silent(t)
					}
					return passes(t)
				})
				hang := targets(1000, vip.HealthCheck{Type: kind, Interval: time.Minute, Timeout: time.Minute})
				for _, target := range hang[:500] {
					l.Start(target, Use{Namespace: "hangs"})
				}
				time.Sleep(time.Minute)
				expect.Equal(t, l.mostAtOnce(), limit, "probes at once of a namespace alone")
				for _, target := range hang[500:] {
					l.Start(target, Use{Namespace: "hangs-too"})
				}
				probed := NewTarget(addr("10.1.0.1:80"), vip.HealthCheck{Type: kind, Interval: time.Second})
				l.Start(probed, Use{Namespace: "works"})
				time.Sleep(2 * time.Minute) // all that ran before have ended
				before := len(l.startsOf(probed))
				time.Sleep(time.Minute)
				expect.AtLeast(t, len(l.startsOf(probed))-before, 59, "probes in 60 s of the namespace that works")
				s := l.Stats()
				expect.Between(t, s.Running, limit*3/4, limit-1, "probes that hang")
				expect.Equal(t, s.Waiting, len(hang)-s.Running, "probes that wait")
				for _, target := range append(hang, probed) {
					l.Stop(target)
				}
				time.Sleep(2 * time.Minute)
				l.Engine.mu.Lock()
				defer l.Engine.mu.Unlock()
				expect.Equal(t, len(l.lanes[laneOf(kind)].groups), 0, "namespaces after Stop")
			})
		})
	}
}
