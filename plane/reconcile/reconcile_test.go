package reconcile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/logbuffer"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

// pair is a value with its key.
type pair struct{ key, value string }

func pairKey(p *pair) string { return p.key }

func samePair(a, b *pair) bool { return *a == *b }

func triedKey(a *reconcile.Applied[pair]) string { return a.Tried.Value.key }

// rig is a Reconciler of pairs with all its surroundings, in a synctest
// bubble.
type rig struct {
	t       *testing.T
	desired *table.Table[string, pair]
	ready   func()
	applied *table.Table[string, reconcile.Applied[pair]]
	target  *reconciletest.Recorder[string, pair]
	events  *event.Log
	log     logbuffer.Buffer // errors and worse
	r       *reconcile.Reconciler[string, pair]
	stop    func()
}

func run(t *testing.T, scenario func(*rig)) {
	bubble.Test(t, func(t *testing.T) {
		clock := &table.Clock{}
		x := &rig{
			t:       t,
			desired: table.New(clock, pairKey, nil),
			applied: table.New(clock, triedKey, nil),
			target:  reconciletest.NewRecorder(pairKey, samePair),
			events:  event.NewLog(100, time.Now),
		}
		x.ready = x.desired.Initializer()
		x.stop = func() {}
		defer func() { x.stop() }()
		scenario(x)
	})
}

// start runs the Reconciler to the end of the test.
func (x *rig) start(change ...func(*reconcile.Options[string, pair])) {
	o := reconcile.Options[string, pair]{
		Desired: x.desired, Target: x.target, Applied: x.applied, Events: x.events, Resync: 30 * time.Second,
		Log: slog.New(slog.NewTextHandler(&x.log, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	for _, do := range change {
		do(&o)
	}
	x.r = reconcile.New(o)
	x.stop = scope.Go(x.t, x.r.Run)
	synctest.Wait()
}

func (x *rig) wants(want map[string]string) {
	x.t.Helper()
	synctest.Wait()
	got := make(map[string]string)
	for k, p := range x.target.Have() {
		got[k] = p.value
	}
	must.True(x.t, maps.Equal(got, want), "the target has %v, want %v", got, want)
}

func (x *rig) writes(want int) {
	x.t.Helper()
	_, got, _ := x.target.Counts()
	must.Equal(x.t, got, want, "writes")
}

func (x *rig) problem(k string) string {
	x.t.Helper()
	a, _, ok := x.applied.Get(k)
	must.True(x.t, ok, "%s was not tried", k)
	if a.Problem == nil {
		return ""
	}
	return a.Problem.Message
}

func TestAdoptsWhatMatches(t *testing.T) {
	run(t, func(x *rig) {
		x.target.Put(pair{"same", "1"})
		x.target.Put(pair{"changed", "old"})
		x.target.Put(pair{"stray", "1"})
		x.desired.Set(pair{"same", "1"})
		x.desired.Set(pair{"changed", "new"})
		x.desired.Set(pair{"fresh", "1"})
		x.start()
		x.wants(map[string]string{"same": "1", "changed": "new", "fresh": "1", "stray": "1"})
		x.writes(2)
		x.ready()
		x.wants(map[string]string{"same": "1", "changed": "new", "fresh": "1"})
		x.writes(3)
		if s := x.r.Stats(); !s.Synced || s.Adopted != 1 || s.DriftRepairs != 0 || s.Failing != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestRemovesNothingBeforeReady(t *testing.T) {
	run(t, func(x *rig) {
		x.target.Put(pair{"a", "1"})
		x.start()
		x.desired.Set(pair{"a", "1"})
		synctest.Wait()
		x.desired.Delete("a")
		time.Sleep(5 * time.Minute) // resyncs don't remove it either
		x.wants(map[string]string{"a": "1"})
		select {
		case <-x.r.Synced():
			t.Error("synced before the table was ready")
		default:
		}
		x.ready()
		x.wants(map[string]string{})
	})
}

// An orphan is there to be removed, however long that has to wait: it is never put
// right, nor put back once it has gone or a frontend has begun to use it.
func TestOrphansAreOnlyRemoved(t *testing.T) {
	run(t, func(x *rig) {
		for _, o := range []string{"stays", "damaged", "used", "altered"} {
			x.target.PutOrphan(pair{o, "1"})
		}
		x.target.Damage("damaged", "belongs to nobody")
		var log bytes.Buffer
		x.start(func(o *reconcile.Options[string, pair]) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		x.target.Remove("used")
		x.target.PutOrphan(pair{"altered", "2"})
		time.Sleep(time.Minute)
		x.wants(map[string]string{"stays": "1", "damaged": "1", "altered": "2"})
		expect.Empty(t, must.Get(x.r.Diff(x.t.Context()))(t))
		_, err := x.r.Repair(x.t.Context())
		expect.Succeed(t, err)
		x.wants(map[string]string{"stays": "1", "damaged": "1", "altered": "2"})
		x.writes(0)
		if s := x.r.Stats(); x.applied.Len() != 0 || s.Failing != 0 || s.DriftRepairs != 0 || log.Len() != 0 {
			t.Errorf("%d applied rows, stats %+v, log %s", x.applied.Len(), s, &log)
		}
		x.ready()
		x.wants(map[string]string{})
		x.writes(3)
		x.target.PutOrphan(pair{"later", "1"})
		time.Sleep(time.Minute)
		x.wants(map[string]string{})
	})
}

// One whose removal fails is tried again until it is gone, by whomever.
func TestOrphanThatCanNotBeRemoved(t *testing.T) {
	run(t, func(x *rig) {
		x.target.PutOrphan(pair{"o", "1"})
		x.target.FailKey("o", errors.New("busy"))
		x.start()
		x.ready()
		time.Sleep(2 * time.Minute)
		expect.Equal(t, x.problem("o"), "busy", "problem")
		x.target.Remove("o")
		time.Sleep(2 * time.Minute)
		if s := x.r.Stats(); x.applied.Len() != 0 || s.Failing != 0 {
			t.Errorf("%d applied rows after it has gone, stats %+v", x.applied.Len(), s)
		}
	})
}

func TestChangeNeedsNoReading(t *testing.T) {
	run(t, func(x *rig) {
		x.ready()
		x.start()
		_, _, before := x.target.Counts()
		for i := range 10 {
			x.desired.Set(pair{"a", fmt.Sprint(i)})
			synctest.Wait()
		}
		x.desired.Delete("a")
		x.wants(map[string]string{})
		if _, _, after := x.target.Counts(); after != before {
			t.Errorf("%d readings of the target for 11 changes", after-before)
		}
		x.writes(11)
		expect.Equal(t, x.applied.Len(), 0, "applied rows of a key that is gone")
	})
}

func TestFailedKeyIsRetriedAloneWithBackoff(t *testing.T) {
	run(t, func(x *rig) {
		x.ready()
		x.start()
		x.target.FailKey("bad", errors.New("no such luck"))
		x.desired.Set(pair{"bad", "1"})
		x.desired.Set(pair{"good", "1"})
		x.wants(map[string]string{"good": "1"})
		expect.Equal(t, x.problem("bad"), "no such luck", "problem")
		expect.Equal(t, x.problem("good"), "", "problem with a key that works")
		batches, _, _ := x.target.Counts()
		time.Sleep(10 * time.Minute)
		after, _, _ := x.target.Counts()
		if tries := after - batches; tries < 20 || tries > 40 {
			t.Errorf("%d tries in ten minutes, want one every 30 s once backed off", tries)
		}
		n := strings.Count(x.log.String(), "\n")
		expect.Equal(t, n, 1, "%d errors logged for one key that goes on failing, want 1\n%s", n, x.log.String())
		x.target.FailKey("bad", nil)
		time.Sleep(reconcile.DefaultMaxBackoff)
		x.wants(map[string]string{"good": "1", "bad": "1"})
		expect.Equal(t, x.problem("bad"), "", "problem after success")
		if s := x.r.Stats(); s.Failing != 0 || s.DriftRepairs != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// eventsOf returns the events of one key, "" for the whole Target, as "kind: message".
func (x *rig) eventsOf(object string) (out []string) {
	events, _ := x.events.Since(0)
	for _, e := range events {
		if e.Object == object {
			out = append(out, e.Kind+": "+e.Message)
		}
	}
	return out
}

// A key that fails causes one error event, whatever the number of tries and changes, and one event when it succeeds.
func TestErrorAndRecoveryOfAKeyAreReportedOnce(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(x *rig) // after it, the key succeeds
		want string
	}{
		{"the Target accepts it", func(x *rig) { x.target.FailKey("bad", nil) }, "dataplane_recovered: the dataplane applies it again"},
		{"it is removed", func(x *rig) { x.desired.Delete("bad"); x.target.FailKey("bad", nil) }, "dataplane_recovered: removed from the dataplane"},
	} {
		t.Run(test.name, func(t *testing.T) {
			run(t, func(x *rig) {
				x.ready()
				x.start()
				x.target.FailKey("bad", errors.New("no such luck"))
				x.desired.Set(pair{"bad", "1"})
				time.Sleep(5 * time.Minute)
				x.desired.Set(pair{"bad", "2"})
				time.Sleep(5 * time.Minute)
				want := []string{"dataplane_error: no such luck"}
				must.SameList(t, x.eventsOf("bad"), want, "events")
				test.end(x)
				time.Sleep(5 * time.Minute)
				want = append(want, test.want)
				must.SameList(t, x.eventsOf("bad"), want, "events")
				x.target.FailKey("bad", errors.New("out of luck again"))
				x.desired.Set(pair{"bad", "3"})
				time.Sleep(5 * time.Minute)
				want = append(want, "dataplane_error: out of luck again")
				expect.SameList(t, x.eventsOf("bad"), want, "events")
			})
		})
	}
}

// unprogrammable is a Target that can be read but not programmed while err is set.
type unprogrammable struct {
	*reconciletest.Recorder[string, pair]
	err      error
	repaired atomic.Bool
}

func (u *unprogrammable) Apply(ctx context.Context, batch []reconcile.Update[string, pair]) error {
	if !u.repaired.Load() {
		return u.err
	}
	return u.Recorder.Apply(ctx, batch)
}

// A Target that can be read, but not programmed, has not recovered: errors and recoveries must not alternate.
func TestReadableTargetThatCanNotBeProgrammedHasNotRecovered(t *testing.T) {
	run(t, func(x *rig) {
		target := &unprogrammable{Recorder: x.target, err: errors.New("no nftables")}
		x.ready()
		x.start(func(o *reconcile.Options[string, pair]) {
			o.Target = target
			o.Log = slog.New(slog.NewTextHandler(&x.log, nil))
		})
		x.desired.Set(pair{"a", "1"})
		time.Sleep(10 * time.Minute)
		want := []string{"dataplane_error: program the dataplane: no nftables"}
		must.SameList(t, x.eventsOf(""), want, "events")
		expect.Contains(t, x.r.Stats().TargetError, "no nftables")
		if strings.Contains(x.log.String(), "recovered") {
			t.Errorf("recovery logged while programming fails:\n%s", x.log.String())
		}
		target.repaired.Store(true)
		time.Sleep(time.Minute)
		x.wants(map[string]string{"a": "1"})
		want = append(want, "dataplane_recovered: the dataplane works again")
		expect.SameList(t, x.eventsOf(""), want, "events")
		expect.Equal(t, x.r.Stats().TargetError, "")
	})
}

// watched is a Recorder with somebody who looks at each batch before it.
type watched struct {
	*reconciletest.Recorder[string, pair]
	look func([]reconcile.Update[string, pair])
}

func (w *watched) Apply(ctx context.Context, batch []reconcile.Update[string, pair]) error {
	w.look(batch)
	return w.Recorder.Apply(ctx, batch)
}

// runWatched runs a Reconciler on w, without synctest, until stop.
func runWatched(t *testing.T, w *watched, desired *table.Table[string, pair], resync time.Duration) (r *reconcile.Reconciler[string, pair], stop func()) {
	t.Helper()
	r = reconcile.New(reconcile.Options[string, pair]{
		Desired: desired, Target: w, Applied: table.New(&table.Clock{}, triedKey, nil),
		Resync: resync, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	return r, func() { cancel(); <-done }
}

func TestTableThatNeverRestsDoesNotHoldUpRetries(t *testing.T) {
	desired := table.New(&table.Clock{}, pairKey, nil)
	w := &watched{Recorder: reconciletest.NewRecorder(pairKey, samePair)}
	w.FailKey("bad", errors.New("not yet"))
	changes, tries, again := 0, 0, make(chan struct{})
	w.look = func(batch []reconcile.Update[string, pair]) {
		for _, u := range batch {
			if u.Key == "bad" {
				if tries++; tries == 2 {
					close(again)
				}
			}
		}
		changes++ // the next batch is there before this one is done
		desired.Set(pair{"busy", fmt.Sprint(changes)})
	}
	desired.Set(pair{"bad", "1"})
	_, stop := runWatched(t, w, desired, -1)
	defer stop()
	select {
	case <-again:
	case <-time.After(time.Minute):
		t.Error("the failed key is not tried again while others change")
	}
}

func TestStrayThatCanNotBeRemovedIsTriedAgainAsWhatItIs(t *testing.T) {
	w := &watched{Recorder: reconciletest.NewRecorder(pairKey, samePair)}
	w.FailKey("stray", errors.New("busy"))
	olds, enough := []string{}, make(chan struct{})
	w.look = func(batch []reconcile.Update[string, pair]) {
		for _, u := range batch {
			if olds = append(olds, u.Old.value); len(olds) == 3 {
				close(enough)
			}
		}
	}
	r, stop := runWatched(t, w, table.New(&table.Clock{}, pairKey, nil), 5*time.Millisecond)
	<-r.Synced() // so that it is a resync that finds it
	w.Put(pair{"stray", "old"})
	<-enough
	stop()
	for i, old := range olds {
		expect.Equal(t, old, "old", "what try %d reads", i+1)
	}
}

func TestFailedKeyThatIsNoLongerWantedIsRemoved(t *testing.T) {
	run(t, func(x *rig) {
		x.ready()
		x.start()
		x.target.FailKey("a", errors.New("half done"))
		x.desired.Set(pair{"a", "1"})
		synctest.Wait()
		x.target.Put(pair{"a", "half"}) // the failed update left something
		x.target.FailKey("a", nil)
		x.desired.Delete("a")
		x.wants(map[string]string{})
	})
}

func TestUnsupportedIsNotRetriedAndLeavesTheOldInForce(t *testing.T) {
	run(t, func(x *rig) {
		x.ready()
		x.start()
		x.desired.Set(pair{"a", "1"})
		x.wants(map[string]string{"a": "1"})
		x.target.FailKey("a", vip.Unsupported("recorder", "forward", "tunnels"))
		x.desired.Set(pair{"a", "2"})
		x.wants(map[string]string{"a": "1"})
		batches, _, _ := x.target.Counts()
		time.Sleep(10 * time.Minute)
		if after, _, _ := x.target.Counts(); after != batches {
			t.Errorf("%d more tries of what is not supported", after-batches)
		}
		expect.Contains(t, x.problem("a"), "tunnels", "problem")
		// A row that still works is still guarded.
		x.target.FailKey("a", nil)
		x.target.Remove("a")
		time.Sleep(31 * time.Second)
		x.wants(map[string]string{"a": "1"})
		expect.Contains(t, x.problem("a"), "tunnels", "the repair of the old row hides that the new one was refused")
	})
}

// A key that failed half-way, and whose next version is refused for good, is
// not left half done.
func TestHalfDoneKeyIsMadeWholeWhenTheNextVersionIsRefused(t *testing.T) {
	run(t, func(x *rig) {
		x.ready()
		x.start()
		x.desired.Set(pair{"a", "1"})
		x.wants(map[string]string{"a": "1"})
		x.target.FailKey("a", errors.New("half done"))
		x.desired.Set(pair{"a", "2"})
		synctest.Wait()
		x.target.Put(pair{"a", "half"})
		x.target.FailKey("a", vip.Unsupported("recorder", "forward", "tunnels"))
		x.desired.Set(pair{"a", "3"})
		synctest.Wait()
		x.target.FailKey("a", nil)
		time.Sleep(31 * time.Second)
		x.wants(map[string]string{"a": "1"})
	})
}

func TestDriftIsRepairedCountedAndReported(t *testing.T) {
	run(t, func(x *rig) {
		x.ready()
		for _, k := range []string{"gone", "altered", "damaged", "fine"} {
			x.desired.Set(pair{k, "1"})
		}
		x.start()
		x.target.Remove("gone")
		x.target.Put(pair{"altered", "2"})
		x.target.Damage("damaged", "address 192.0.2.1 missing")
		x.target.Put(pair{"stray", "1"})
		_, before, _ := x.target.Counts()
		time.Sleep(31 * time.Second)
		x.wants(map[string]string{"gone": "1", "altered": "1", "damaged": "1", "fine": "1"})
		x.writes(before + 4)
		expect.Equal(t, x.r.Stats().DriftRepairs, 4, "repairs")
		events, _ := x.events.Since(0)
		messages := map[string]string{}
		for _, e := range events {
			messages[e.Object] = e.Message
		}
		for k, want := range map[string]string{"gone": "missing", "altered": "changed", "damaged": "192.0.2.1", "stray": "not desired"} {
			if !strings.Contains(messages[k], want) {
				t.Errorf("event for %s: %q, want it to say %q", k, messages[k], want)
			}
		}
	})
}

func TestTargetOutOfReachAtStartIsWaitedFor(t *testing.T) {
	run(t, func(x *rig) {
		x.ready()
		x.target.FailAll(errors.New("no kernel"))
		x.desired.Set(pair{"a", "1"})
		x.start()
		time.Sleep(time.Minute)
		expect.Contains(t, x.r.Stats().TargetError, "no kernel")
		x.target.FailAll(nil)
		time.Sleep(time.Minute)
		x.wants(map[string]string{"a": "1"})
		if s := x.r.Stats(); s.TargetError != "" || !s.Synced {
			t.Errorf("stats %+v", s)
		}
	})
}

// endless is a Target whose readings take until they are cut short.
type endless struct {
	*reconciletest.Recorder[string, pair]
}

func (endless) Actual(ctx context.Context) iter.Seq2[reconcile.Observed[pair], error] {
	return func(yield func(reconcile.Observed[pair], error) bool) {
		<-ctx.Done()
		yield(reconcile.Observed[pair]{}, fmt.Errorf("read services: %w", ctx.Err()))
	}
}

func TestStopWhileReadingIsNoFailureOfTheTarget(t *testing.T) {
	run(t, func(x *rig) {
		x.ready()
		x.start(func(o *reconcile.Options[string, pair]) { o.Target = endless{x.target} })
		x.stop()
		x.stop = func() {}
		events, _ := x.events.Since(0)
		if s := x.r.Stats(); s.TargetError != "" || x.log.String() != "" || len(events) > 0 {
			t.Errorf("stats %+v, log %q, events %v", s, x.log.String(), events)
		}
	})
}

func TestDiffReadsAndRepairMends(t *testing.T) {
	run(t, func(x *rig) {
		x.ready()
		x.desired.Set(pair{"a", "1"})
		x.start()
		x.target.Put(pair{"a", "2"})
		for range 2 {
			diff, err := x.r.Diff(x.t.Context())
			if err != nil || len(diff) != 1 || diff[0].Want.value != "1" || diff[0].Have.value != "2" {
				t.Fatalf("diff %+v, %v", diff, err)
			}
		}
		must.Get(x.r.Repair(x.t.Context()))(t)
		x.wants(map[string]string{"a": "1"})
		expect.Empty(t, must.Get(x.r.Diff(x.t.Context()))(t), "diff after the repair")
	})
}

func TestAppliedHasTheRevision(t *testing.T) {
	run(t, func(x *rig) {
		x.ready()
		x.start()
		for range 3 {
			rev := x.desired.Set(pair{"a", "v"})
			synctest.Wait()
			if a, _, _ := x.applied.Get("a"); a.Tried.Rev != rev || a.Problem != nil {
				t.Fatalf("applied %+v, want revision %d", a, rev)
			}
		}
	})
}

// No event reports what was wanted and isn't any more when the Reconciler begins to
// listen. It counts as done all the same, or whoever waits for it waits for ever.
func TestAppliedIsUpToWhatWasDroppedBeforeTheStart(t *testing.T) {
	run(t, func(x *rig) {
		x.desired.Set(pair{"a", "v"})
		x.desired.Set(pair{"b", "v"})
		x.desired.Delete("b")
		last := x.desired.Revision()
		x.ready()
		x.start()
		if s := x.r.Stats(); s.AppliedRev != last || s.DesiredRev != last {
			t.Fatalf("applied up to %d of %d, want both %d", s.AppliedRev, s.DesiredRev, last)
		}
	})
	run(t, func(x *rig) {
		x.desired.Set(pair{"a", "v"})
		x.desired.Delete("a")
		last := x.desired.Revision()
		x.ready()
		x.start()
		if s := x.r.Stats(); s.AppliedRev != last {
			t.Fatalf("applied up to %d of %d with nothing wanted", s.AppliedRev, s.DesiredRev)
		}
	})
}

// One change costs the Target one update and the loop a bounded number of
// allocations, however many rows there are.
func TestCostOfAChangeDoesNotGrow(t *testing.T) {
	cost := func(rows int) float64 {
		clock := &table.Clock{}
		desired := table.New(clock, pairKey, nil)
		applied := table.New(clock, triedKey, nil)
		target := reconciletest.NewRecorder(pairKey, samePair)
		for i := range rows {
			desired.Set(pair{strconv.Itoa(i), "0"})
		}
		r := reconcile.New(reconcile.Options[string, pair]{Desired: desired, Target: target, Applied: applied, Resync: -1})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		defer func() { cancel(); <-done }()
		<-r.Synced()
		_, before, _ := target.Counts()
		key, value := strconv.Itoa(rows/2), 0
		runs := 200
		allocs := testing.AllocsPerRun(runs, func() {
			value++
			rev := desired.Set(pair{key, strconv.Itoa(value)})
			for {
				changed := applied.Changed()
				if a, _, ok := applied.Get(key); ok && a.Tried.Rev >= rev {
					return
				}
				<-changed
			}
		})
		if _, after, _ := target.Counts(); after-before != runs+1 { // AllocsPerRun runs once to warm up
			t.Errorf("%d changes cost %d updates", runs+1, after-before)
		}
		return allocs
	}
	if small, large := cost(10), cost(10_000); large > small*1.5 {
		t.Errorf("%v allocations a change at 10 rows, %v at 10,000", small, large)
	}
}

// A read of an unchanged Target copies no row.
func TestAReadWithoutChangesCopiesNoRow(t *testing.T) {
	const rows = 10_000
	clock := &table.Clock{}
	desired, applied := table.New(clock, pairKey, nil), table.New(clock, triedKey, nil)
	for i := range rows {
		desired.Set(pair{strconv.Itoa(i), "0"})
	}
	r := reconcile.New(reconcile.Options[string, pair]{Desired: desired, Target: reconciletest.NewRecorder(pairKey, samePair), Applied: applied, Resync: -1})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	defer func() { cancel(); <-done }()
	<-r.Synced()
	allocs := testing.AllocsPerRun(5, func() {
		diff := must.Get(r.Diff(t.Context()))(t)
		must.Empty(t, diff)
	})
	expect.AtMost(t, allocs, rows/10, "allocations of a read")
}
