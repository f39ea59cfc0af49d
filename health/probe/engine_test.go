package probe

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/metrictest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// A thousand targets that fail within one second are written in few batches, of which a reader of
// the table receives no more. The first change is written at once.
func TestManyChangesAreFewBatches(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const n = 1000
		var down atomic.Bool
		l := newLab(t, Options{}, func(Target) (Outcome, time.Duration) {
			if down.Load() {
				return Refused, time.Millisecond
			}
			return OK, time.Millisecond
		})
		all := targets(n, vip.HealthCheck{Type: vip.CheckTCP, Interval: time.Second, Fall: 1})
		for _, target := range all {
			l.Start(target, Use{Namespace: "default"})
		}
		time.Sleep(10 * time.Second)
		before := l.Stats()
		f := l.rows.Watch()
		defer f.Close()
		for batch, _ := f.TryNext(); len(batch) > 0; batch, _ = f.TryNext() {
		}
		down.Store(true)
		fell := time.Now()
		batches, rows := 0, 0
		for rows < n {
			batch := must.Get(f.Next(t.Context()))(t)
			if batches++; batches == 1 {
				expect.AtMost(t, time.Since(fell), 20*time.Millisecond, "the first change was written")
				if s, _ := l.stateOf(batch[0].Value.Target); s.row(batch[0].Value.Target) != batch[0].Value {
					t.Errorf("the state %+v differs from the row %+v", s, batch[0].Value)
				}
			}
			rows += len(batch)
		}
		s := l.Stats()
		if batches > 7 || rows != n || s.Batches-before.Batches != uint64(batches) || s.Changes-before.Changes != n {
			t.Errorf("%d rows in %d batches, the engine counts %d in %d", rows, batches, s.Changes-before.Changes, s.Batches-before.Batches)
		}
		// Targets that remain unhealthy change no row.
		rev := l.rows.Revision()
		time.Sleep(5 * time.Second)
		expect.Equal(t, l.rows.Revision(), rev, "rows changed without a change")
	})
}

func TestStartAndStop(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newLab(t, Options{}, func(Target) (Outcome, time.Duration) { return OK, 100 * time.Millisecond })
		target := targets(1, tcp)[0]
		use := Use{Namespace: "default", Begins: Result{Target: target, Health: vip.Unhealthy, Since: vip.InstantOf(time.Now().Add(-time.Hour)), Outcome: Refused, Reason: "connect: refused"}}
		l.Start(target, use)
		l.Start(target, use)
		r, _, ok := l.rows.Get(target)
		if !ok || r.Health != vip.Unhealthy || r.Reason != "connect: refused" {
			t.Errorf("restored row: %+v", r)
		}
		time.Sleep(50 * time.Millisecond)
		l.Stop(target) // while the probe runs
		l.Stop(target)
		if _, _, ok := l.rows.Get(target); ok {
			t.Error("row after Stop")
		}
		if _, ok := l.stateOf(target); ok {
			t.Error("state after Stop")
		}
		l.Start(target, use) // a new one, whose probe runs beside the former one's
		time.Sleep(300 * time.Millisecond)
		s, _ := l.stateOf(target)
		if s.passing != 1 || s.health != vip.Unhealthy {
			t.Errorf("%+v", s)
		}
		time.Sleep(2 * time.Second)
		if s, _ = l.stateOf(target); s.health != vip.Healthy || s.passing < 2 {
			t.Errorf("%+v", s)
		}
		l.Start(NewTarget(addr("10.0.0.1:1"), vip.HealthCheck{Type: vip.CheckNone}), Use{Namespace: "default"})
		if s := l.Stats(); s.Targets != 1 || l.rows.Len() != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// Commands are not run unless they are allowed, and the row says so.
func TestCommandsAreOff(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newLab(t, Options{}, passes)
		target := NewTarget(addr("10.0.0.1:1"), vip.HealthCheck{Type: vip.CheckExec, Command: "/bin/true"})
		l.Start(target, Use{Namespace: "default"})
		time.Sleep(time.Minute)
		r, _, _ := l.rows.Get(target)
		if r.Health != vip.Unknown || r.Outcome != Local || r.Reason != "checks of type exec are not enabled" || len(l.startsOf(target)) != 0 {
			t.Errorf("%+v, probed %d times", r, len(l.startsOf(target)))
		}
	})
}

// Faults of this host are logged once a minute, and change no health.
func TestLocalFaults(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer // the engine's goroutine writes it
		var broken atomic.Bool
		l := newLab(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(target Target) (Outcome, time.Duration) {
			if broken.Load() {
				return Local, 0
			}
			return passes(target)
		})
		for _, target := range targets(100, tcp) {
			l.Start(target, Use{Namespace: "default"})
		}
		time.Sleep(5 * time.Second)
		rev := l.rows.Revision()
		broken.Store(true)
		time.Sleep(119 * time.Second)
		synctest.Wait()
		n := strings.Count(log.String(), "fault of this host")
		expect.Equal(t, n, 2, "%d records in 2 minutes:\n%s", n, log.String())
		if l.health()[vip.Healthy] != 100 || l.rows.Revision() != rev {
			t.Errorf("states %v", l.health())
		}
	})
}

// Checks that mean the same are one target.
func TestEqualTargets(t *testing.T) {
	full := vip.HealthCheck{Type: vip.CheckTCP, Port: 8080, Interval: vip.DefaultCheckInterval, FastInterval: vip.DefaultCheckFastInterval,
		Timeout: vip.DefaultCheckTimeout, Rise: vip.DefaultRise, Fall: vip.DefaultFall}
	if a, b := NewTarget(addr("10.0.0.1:80"), tcp), NewTarget(addr("[::ffff:10.0.0.1]:80"), full); a != b {
		t.Errorf("%+v and %+v differ", a.Check(), b.Check())
	}
	c := NewTarget(addr("10.0.0.1:80"), vip.HealthCheck{Type: vip.CheckTCP, Interval: time.Nanosecond, FastInterval: time.Hour, Timeout: time.Hour}).Check()
	if c.Interval != vip.MinCheckInterval || c.FastInterval != c.Interval || c.Timeout != vip.MaxCheckTimeout {
		t.Errorf("%+v", c)
	}
}

func TestStats(t *testing.T) {
	c := counters{durations: NewDurations()}
	c.add(vip.CheckTCP, OK, time.Millisecond)
	c.add(vip.CheckTCP, OK, 2*time.Minute) // above all bounds
	c.add(vip.CheckTCP, Local, 0)
	c.add(vip.CheckExec, Exited, 30*time.Millisecond)
	s := c.stats()
	if len(s.Probes) != 3 || s.Probes[0] != (ProbeCount{vip.CheckTCP, OK, 2}) || s.Probes[2] != (ProbeCount{vip.CheckExec, Exited, 1}) {
		t.Errorf("%+v", s.Probes)
	}
	text := metrictest.Text(t, s.Durations.Collect)
	for _, want := range []string{`bucket{type="tcp",le="0.0005"} 0`, `bucket{type="tcp",le="0.001"} 1`, `bucket{type="tcp",le="60"} 1`, `sum{type="tcp"} 120.001`,
		`count{type="tcp"} 2`, `count{type="exec"} 1`} {
		expect.True(t, strings.Contains(text, "ironvip_health_check_duration_seconds_"+want+"\n"), "no %s in\n%s", want, text)
	}
}

// The memory of a target that is idle: its state, its row and its place in the queue.
func TestMemoryOfATarget(t *testing.T) {
	const n = 20_000
	all := targets(n, tcp)
	per := heapOf(func() any {
		e := New(Options{Results: NewResults(&table.Clock{})})
		for _, target := range all {
			e.Start(target, Use{Namespace: "default"})
		}
		return e
	}) / n
	t.Logf("%d bytes per target", per)
	expect.AtMost(t, per, 600, "bytes of a target")
}

// A probe that panics is a fault of this host and ends nothing else.
func TestPanicInAProbe(t *testing.T) {
	results := make(chan done, 1)
	running, _ := parallel.NewGroup(t.Context())
	r := &routines{ctx: t.Context(), all: running, report: func(batch []done) { results <- batch[0] }, run: func(vip.CheckType) probeFunc {
		return func(context.Context, *job) (Outcome, string) { panic("bad answer") }
	}}
	at := NewTarget(addr("10.0.0.1:80"), vip.HealthCheck{Type: vip.CheckHTTP})
	r.start([]job{{t: &target{Target: at}, check: at.Check()}})
	if d := <-results; d.outcome != Local || d.reason != "panic: bad answer" {
		t.Errorf("%+v", d)
	}
	must.Succeed(t, running.Wait())
}
