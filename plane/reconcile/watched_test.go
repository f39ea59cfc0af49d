package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/vip"
)

// seeing is a Target that learns of changes by others.
type seeing struct {
	*reconciletest.Recorder[string, pair]
	disturbed chan struct{}

	mu    sync.Mutex
	sight reconcile.Drift[string, pair]
	err   error
	looks int
	takes time.Duration // a Look
	reads time.Duration // a read of everything
	hold  chan struct{} // Apply waits until it is closed, if it isn't nil
}

func (w *seeing) Apply(ctx context.Context, batch []reconcile.Update[string, pair]) error {
	if w.hold != nil {
		<-w.hold
	}
	return w.Recorder.Apply(ctx, batch)
}

// Actual forgets what was seen.
func (w *seeing) Actual(ctx context.Context) iter.Seq2[reconcile.Observed[pair], error] {
	w.mu.Lock()
	w.sight = reconcile.Drift[string, pair]{}
	w.mu.Unlock()
	time.Sleep(w.reads)
	return w.Recorder.Actual(ctx)
}

func (w *seeing) Changed() <-chan struct{} { return w.disturbed }

func (w *seeing) Check(context.Context) (reconcile.Drift[string, pair], error) {
	time.Sleep(w.takes)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	s := w.sight
	w.sight = reconcile.Drift[string, pair]{}
	return s, w.err
}

// disturb lets the loop look and find s.
func (w *seeing) disturb(s reconcile.Drift[string, pair], err error) {
	w.mu.Lock()
	w.sight, w.err = s, err
	w.mu.Unlock()
	w.disturbed <- struct{}{}
	synctest.Wait()
}

// lose deletes a key behind the Target's back, and tells it so.
func (w *seeing) lose(key string) {
	w.Remove(key)
	w.disturb(reconcile.Drift[string, pair]{Damaged: []reconcile.Damage[string]{{Key: key, What: "address of " + key + " missing"}}}, nil)
}

func runSeeing(t *testing.T, scenario func(*rig, *seeing)) {
	run(t, func(x *rig) {
		w := &seeing{Recorder: x.target, disturbed: make(chan struct{})}
		x.ready()
		x.desired.Set(pair{"a", "1"})
		x.desired.Set(pair{"b", "1"})
		x.start(func(o *reconcile.Options[string, pair]) { o.Target = w })
		time.Sleep(time.Second) // clear of the resyncs
		scenario(x, w)
	})
}

func (x *rig) readings(want int) {
	x.t.Helper()
	_, _, got := x.target.Counts()
	expect.Equal(x.t, got, want, "the target was read %d times", got)
}

// A change that the Target sees is repaired at once, with one write and without a read.
func TestSeenChangeIsRepairedAtOnce(t *testing.T) {
	runSeeing(t, func(x *rig, w *seeing) {
		w.lose("a")
		x.wants(map[string]string{"a": "1", "b": "1"})
		x.writes(3)
		x.readings(1)
		events, _ := x.events.Since(0)
		if e := events[len(events)-1]; e.Kind != "drift_repaired" || e.Object != "a" || e.Message != "address of a missing, repaired" {
			t.Errorf("event %+v", e)
		}
		expect.Equal(t, x.r.Stats().DriftRepairs, 1, "repairs")
		w.disturb(reconcile.Drift[string, pair]{}, nil) // nothing was found
		x.writes(3)
		x.readings(1)
	})
}

// Any number of changes in a row is repaired at once. The row says that it is contested.
func TestManySeenChangesAreRepairedAtOnce(t *testing.T) {
	runSeeing(t, func(x *rig, w *seeing) {
		for range 50 {
			w.lose("a")
			x.wants(map[string]string{"a": "1", "b": "1"})
		}
		row, _, _ := x.applied.Get("a")
		if row.Problem != nil || row.Warning == nil || row.Warning.Code != vip.CodeContested || !strings.Contains(row.Warning.Message, "50 times since") {
			t.Fatalf("row %+v", row)
		}
		if s := x.r.Stats(); s.Contested != 1 || s.Failing != 0 {
			t.Errorf("stats %+v", s)
		}
		_, of := x.kinds("dataplane_contested", "a")
		expect.Equal(t, of, 1, "reported %d times", of)
	})
}

// If more may have changed than a Look can find, one read finds it: at once, but not more often than ten times a second. The
// event names the program.
func TestUnknownChangesCauseOneRead(t *testing.T) {
	runSeeing(t, func(x *rig, w *seeing) {
		x.target.Remove("a")
		w.disturb(reconcile.Drift[string, pair]{Unknown: true, By: "nft (pid 812)"}, nil)
		x.wants(map[string]string{"a": "1", "b": "1"})
		x.readings(2)
		events, _ := x.events.Since(0)
		if e := events[len(events)-1]; e.Object != "a" || !strings.HasSuffix(e.Message, "; changed by nft (pid 812)") {
			t.Errorf("event %+v", e)
		}
		for range 50 {
			w.disturb(reconcile.Drift[string, pair]{}, errors.New("no buffer space"))
		}
		x.readings(2)
		time.Sleep(time.Second)
		synctest.Wait()
		x.readings(3)
	})
}

// A read that fails after the events were taken is repeated.
func TestReadAfterUnknownChangesIsRepeated(t *testing.T) {
	runSeeing(t, func(x *rig, w *seeing) {
		x.target.Remove("a")
		x.target.FailAll(errors.New("no buffer space"))
		w.disturb(reconcile.Drift[string, pair]{Unknown: true}, nil)
		x.target.FailAll(nil)
		time.Sleep(2 * time.Second)
		x.wants(map[string]string{"a": "1", "b": "1"})
	})
}

// A list of the differences doesn't lose what was seen before.
func TestDiffLosesNothing(t *testing.T) {
	runSeeing(t, func(x *rig, w *seeing) {
		for i := range 20 { // the loop may take either first
			w.hold = make(chan struct{})
			want := fmt.Sprint(i)
			x.desired.Set(pair{"b", want})
			synctest.Wait()
			var both sync.WaitGroup
			both.Go(func() { w.lose("a") })
			both.Go(func() {
				_, err := x.r.Diff(x.t.Context())
				expect.Succeed(t, err)
			})
			synctest.Wait()
			close(w.hold)
			both.Wait()
			synctest.Wait()
			x.wants(map[string]string{"a": "1", "b": want})
		}
	})
}

// A key that is being retried is no change by somebody else.
func TestSeenChangeOfFailingKey(t *testing.T) {
	runSeeing(t, func(x *rig, w *seeing) {
		x.target.FailKey("a", errors.New("no memory"))
		w.lose("a")
		w.lose("a")
		expect.Equal(t, x.r.Stats().DriftRepairs, 0, "repairs")
		expect.Contains(t, x.problem("a"), "no memory", "problem")
	})
}

// A sighting of a key that is being retried makes its retry due: other keys may share what was changed.
func TestSeenChangeHastensARetry(t *testing.T) {
	runSeeing(t, func(x *rig, w *seeing) {
		x.target.FailKey("a", errors.New("no memory"))
		x.desired.Set(pair{"a", "2"})
		time.Sleep(time.Minute) // the retries are far apart
		x.target.FailKey("a", nil)
		w.lose("a")
		x.wants(map[string]string{"a": "2", "b": "1"})
	})
}

// The same time bounds the reads of a program whose changes can't be told.
func TestFloodOfUnknownChangesIsBounded(t *testing.T) {
	runSeeing(t, func(x *rig, w *seeing) {
		w.reads = 300 * time.Millisecond
		flood := func() (readings int) {
			_, _, before := x.target.Counts()
			for range 2500 {
				w.mu.Lock()
				w.sight.Unknown = true
				w.mu.Unlock()
				select {
				case w.disturbed <- struct{}{}:
				default:
				}
				time.Sleep(10 * time.Millisecond)
			}
			_, _, after := x.target.Counts()
			return after - before
		}
		first, then := flood(), flood()
		if first < 18 || first > 26 || then < 7 || then > 11 { // one is the resync
			t.Errorf("%d reads of 300 ms in the first 25 s, %d in the next", first, then)
		}
	})
}

// A program that changes something all the time gets five seconds of the loop's time, and then a tenth of it. The last change
// is repaired, too.
func TestFloodOfChangesIsBounded(t *testing.T) {
	runSeeing(t, func(x *rig, w *seeing) {
		w.takes = 100 * time.Millisecond
		flood := func() {
			for range 1000 {
				select {
				case w.disturbed <- struct{}{}:
				default:
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		flood()
		if w.looks < 50 || w.looks > 60 {
			t.Errorf("%d looks of 100 ms in the first 10 s", w.looks)
		}
		before := w.looks
		flood()
		if n := w.looks - before; n < 9 || n > 11 {
			t.Errorf("%d looks of 100 ms in 10 s", n)
		}
		x.target.Remove("a")
		w.mu.Lock()
		w.sight.Damaged = []reconcile.Damage[string]{{Key: "a", What: "missing"}}
		w.mu.Unlock()
		w.disturbed <- struct{}{}
		time.Sleep(time.Second + 100*time.Millisecond)
		synctest.Wait()
		x.wants(map[string]string{"a": "1", "b": "1"})

		w.disturbed <- struct{}{} // waits
		must.Get(x.r.Diff(x.t.Context()))(t)
		looks := w.looks
		time.Sleep(2 * time.Second)
		expect.Equal(t, w.looks, looks, "looks after a list")
	})
}

// A failed key is tried when its cause ends, not after its backoff. Others wait for their backoff.
func TestFailedKeyIsTriedWhenWhatItLacksArrives(t *testing.T) {
	runSeeing(t, func(x *rig, w *seeing) {
		for _, k := range []string{"a", "b"} {
			x.target.FailKey(k, errors.New("not an address of this host"))
			x.desired.Set(pair{k, "2"})
		}
		// Far into the wait between two tries, of which the last takes 30 s.
		time.Sleep(10*time.Minute + 5*time.Second)
		x.target.FailKey("a", nil)
		batches, _, _ := x.target.Counts()
		w.disturb(reconcile.Drift[string, pair]{}, nil)
		x.wants(map[string]string{"a": "1", "b": "1"})
		w.disturb(reconcile.Drift[string, pair]{Arrived: []string{"a", "never seen"}}, nil)
		x.wants(map[string]string{"a": "2", "b": "1"})
		if after, _, _ := x.target.Counts(); after != batches+1 {
			t.Errorf("%d batches for two events, want one", after-batches)
		}
		expect.Equal(t, x.problem("a"), "", "problem after the retry")
	})
}
