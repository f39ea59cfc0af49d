package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/reconciletest"
)

// dirty is a Target that is unclean after each Apply.
type dirty struct {
	*reconciletest.Recorder[string, pair]
	takes time.Duration // what Clean takes

	mu       sync.Mutex
	unclean  int // batches since the last Clean
	suspects int
	cleans   []time.Time // their starts
	err      error
}

func (d *dirty) Apply(ctx context.Context, batch []reconcile.Update[string, pair]) error {
	d.mu.Lock()
	d.unclean++
	d.mu.Unlock()
	return d.Recorder.Apply(ctx, batch)
}

func (d *dirty) Unclean() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unclean > 0
}

func (d *dirty) Clean(ctx context.Context) error {
	d.mu.Lock()
	d.cleans = append(d.cleans, time.Now())
	err := d.err
	d.mu.Unlock()
	select {
	case <-time.After(d.takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.unclean = 0
	}
	return err
}

func (d *dirty) Suspect() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unclean++
	d.suspects++
}

// fails makes Clean fail from now on.
func (d *dirty) fails(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

// since returns how long after start each Clean began, and forgets them.
func (d *dirty) since(start time.Time) (out []time.Duration) {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, at := range d.cleans {
		out = append(out, at.Sub(start))
	}
	d.cleans = nil
	return out
}

func runDirty(t *testing.T, takes time.Duration, scenario func(*rig, *dirty)) {
	run(t, func(x *rig) {
		d := &dirty{Recorder: x.target, takes: takes}
		x.ready()
		x.start(func(o *reconcile.Options[string, pair]) { o.Target = d })
		time.Sleep(time.Minute)
		if n := len(d.since(time.Now())); d.suspects != 1 || n != 1 {
			t.Errorf("after the start: suspected %d times, %d cleans", d.suspects, n)
		}
		scenario(x, d)
	})
}

// A change is cleaned immediately. The changes of a burst share a Clean, and all take a tenth of the time, with a pause of
// at most a second.
func TestCleanTakesATenthOfTheTime(t *testing.T) {
	for takes, pause := range map[time.Duration]time.Duration{10 * time.Millisecond: 90 * time.Millisecond, 2 * time.Second: time.Second} {
		runDirty(t, takes, func(x *rig, d *dirty) {
			start := time.Now()
			for i := range 2000 {
				x.desired.Set(pair{fmt.Sprint(i % 7), fmt.Sprint(i)})
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Minute)
			got := d.since(start)
			if len(got) == 0 || got[0] > 0 {
				t.Fatalf("cleaned at %v", got)
			}
			for i, at := range got[1:] {
				expect.Equal(t, at-got[i], takes+pause, "the gap between cleans at %v and %v", got[i], at)
			}
			expect.AtMost(t, len(got), 2+int(2*time.Second/(takes+pause)), "cleans")
			expect.False(t, x.r.Stats().Unclean, "still unclean")
		})
	}
}

// A change whose connections can't be ended is applied. The first failure is an event, retries wait longer and longer, and
// its end is an event.
func TestFailedCleanIsRepeated(t *testing.T) {
	runDirty(t, 0, func(x *rig, d *dirty) {
		d.fails(errors.New("no ctnetlink"))
		start := time.Now()
		x.desired.Set(pair{"a", "1"})
		time.Sleep(time.Minute)
		got := d.since(start)
		if n := len(got); n < 5 || n > 15 || got[0] > 0 || got[n-1]-got[n-2] < 20*time.Second {
			t.Errorf("cleaned at %v", got)
		}
		x.wants(map[string]string{"a": "1"})
		if s := x.r.Stats(); s.TargetError != "" || s.Failing > 0 || !s.Unclean || s.CleanError != "no ctnetlink" || x.problem("a") != "" {
			t.Errorf("%+v, %q", s, x.problem("a"))
		}
		d.fails(nil)
		time.Sleep(time.Minute)
		if s := x.r.Stats(); s.Unclean || s.CleanError != "" {
			t.Errorf("%+v", s)
		}
		want := []string{"dataplane_error: clean the dataplane: no ctnetlink", "dataplane_recovered: the dataplane is clean again"}
		expect.SameList(t, x.eventsOf(""), want, "events")
	})
}

// Nothing is left unclean when the loop ends, unless that takes longer than 2 s.
func TestLastClean(t *testing.T) {
	for takes, unclean := range map[time.Duration]bool{time.Second: false, time.Minute: true} {
		run(t, func(x *rig) {
			d := &dirty{Recorder: x.target}
			x.ready()
			x.start(func(o *reconcile.Options[string, pair]) { o.Target = d })
			d.fails(errors.New("not now"))
			x.desired.Set(pair{"a", "1"})
			synctest.Wait()
			d.fails(nil)
			d.takes = takes
			start := time.Now()
			x.stop()
			x.stop = func() {}
			if took := time.Since(start); d.Unclean() != unclean || took != min(takes, 2*time.Second) {
				t.Errorf("unclean: %v, after %v", d.Unclean(), took)
			}
		})
	}
}
