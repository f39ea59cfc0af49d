package reconcile_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// resyncs lets n resyncs pass; before each, undo alters the target. It returns
// after which of them, counted from 1, the target was whole.
func (x *rig) resyncs(n int, undo func(), whole func() bool) (repaired []int) {
	for i := range n {
		undo()
		time.Sleep(30 * time.Second)
		if whole() {
			repaired = append(repaired, i+1)
		}
	}
	return repaired
}

func (x *rig) has(k string) func() bool {
	return func() bool { _, ok := x.target.Have()[k]; return ok }
}

// kinds counts the events of a kind, and those of one object.
func (x *rig) kinds(kind, object string) (all, of int) {
	events, _ := x.events.Since(0)
	for _, e := range events {
		if e.Kind == kind {
			if all++; e.Object == object {
				of++
			}
		}
	}
	return all, of
}

// begin starts the rig and stays one second clear of its resyncs.
func (x *rig) begin(keys ...string) {
	x.ready()
	for _, k := range keys {
		x.desired.Set(pair{k, "1"})
	}
	x.start()
	time.Sleep(time.Second)
}

// all returns the numbers from 1 to n.
func all(n int) (out []int) {
	for i := range n {
		out = append(out, i+1)
	}
	return out
}

// A key that somebody else deletes again and again is put back by every resync. The contest is reported once, and its
// row says since when and how often.
func TestContestedKeyIsRepairedByEveryResync(t *testing.T) {
	run(t, func(x *rig) {
		x.begin("a", "b")
		began := time.Now()
		got := x.resyncs(43, func() { x.target.Remove("a") }, x.has("a"))
		expect.SameList(t, got, all(43), "repaired after resyncs %v, want every one", got)
		if all, of := x.kinds("dataplane_contested", "a"); all != 1 || of != 1 {
			t.Errorf("reported %d times, %d of them of a; want once", all, of)
		}
		row, _, _ := x.applied.Get("a")
		if row.Problem != nil || row.Warning == nil || row.Warning.Code != vip.CodeContested || !strings.Contains(row.Warning.Hint, "ends 5m0s after") {
			t.Fatalf("row %+v of what was repaired", row)
		}
		want := fmt.Sprintf("43 times since %s; the last time: was missing from the dataplane", began.Add(29*time.Second).UTC().Format(time.RFC3339))
		if !strings.HasSuffix(row.Warning.Message, want) {
			t.Errorf("row says %q, want %q", row.Warning.Message, want)
		}
		if s := x.r.Stats(); s.Contested != 1 || s.Failing != 0 || s.DriftRepairs != 43 {
			t.Errorf("stats %+v", s)
		}
		if row, _, _ := x.applied.Get("b"); row.Problem != nil || row.Warning != nil {
			t.Errorf("b, which nobody touched, has %+v", row)
		}
	})
}

// After ten resyncs without a change by somebody else all is forgotten.
func TestCalmEndsAContest(t *testing.T) {
	run(t, func(x *rig) {
		x.begin("a")
		x.resyncs(6, func() { x.target.Remove("a") }, x.has("a"))
		if row, _, _ := x.applied.Get("a"); row.Problem != nil || row.Warning == nil {
			t.Errorf("row %+v of what is there for the moment", row)
		}
		still := func() {}
		x.resyncs(9, still, x.has("a"))
		expect.Equal(t, x.r.Stats().Contested, 1, "contested keys")
		x.resyncs(1, still, x.has("a"))
		if s := x.r.Stats(); s.Contested != 0 || s.Failing != 0 {
			t.Errorf("after 10 calm resyncs: %+v", s)
		}
		if row, _, _ := x.applied.Get("a"); row.Problem != nil || row.Warning != nil || row.Tried.Rev == 0 {
			t.Errorf("row %+v", row)
		}
		if _, of := x.kinds("dataplane_calm", "a"); of != 1 {
			t.Errorf("reported %d times that it is calm", of)
		}
		x.resyncs(4, func() { x.target.Remove("a") }, x.has("a"))
		if _, of := x.kinds("dataplane_contested", "a"); of != 2 {
			t.Errorf("reported %d times of two contests", of)
		}
	})
}

// A change now and then is drift, not a contest.
func TestRareDriftIsNoContest(t *testing.T) {
	run(t, func(x *rig) {
		x.begin("a")
		n := 0
		got := x.resyncs(8*11, func() {
			if n++; n%11 == 1 {
				x.target.Remove("a")
			}
		}, x.has("a"))
		if all, _ := x.kinds("dataplane_contested", "a"); all != 0 || len(got) != 8*11 {
			t.Errorf("reported %d times; whole after %d resyncs of %d", all, len(got), 8*11)
		}
	})
}

// A key that nobody wants and somebody else brings again and again is removed by every resync, and everything that
// somebody deletes is restored; of many keys a few are reported one by one.
func TestContestOfStraysAndOfEverything(t *testing.T) {
	run(t, func(x *rig) {
		x.begin()
		got := x.resyncs(12, func() { x.target.Put(pair{"stray", "1"}) }, func() bool { return !x.has("stray")() })
		expect.SameList(t, got, all(12), "removed after resyncs %v, want every one", got)
		_, _, ok := x.applied.Get("stray")
		expect.False(t, ok, "a stray has an applied row")
	})
	run(t, func(x *rig) {
		var keys []string
		for i := range 60 {
			keys = append(keys, fmt.Sprintf("k%02d", i))
		}
		x.begin(keys...)
		got := x.resyncs(6, func() {
			for _, k := range keys {
				x.target.Remove(k)
			}
		}, func() bool { return len(x.target.Have()) == len(keys) })
		expect.SameList(t, got, all(6), "repaired after resyncs %v, want every one", got)
		if all, _ := x.kinds("dataplane_contested", ""); all != 21 {
			t.Errorf("%d events of 60 keys, want 20 and one for the rest", all)
		}
		expect.Equal(t, x.r.Stats().Contested, 60, "contested keys")
		x.resyncs(10, func() {}, func() bool { return true })
		if all, _ := x.kinds("dataplane_calm", ""); all != 21 {
			t.Errorf("%d events of the end for 60 keys, want 20 and one for the rest", all)
		}
	})
}

// A key that can't be programmed is a failure of ours to retry, not a contest.
func TestFailureIsNoContest(t *testing.T) {
	run(t, func(x *rig) {
		x.begin("a")
		x.target.FailKey("a", errors.New("no memory"))
		x.resyncs(12, func() { x.target.Remove("a") }, x.has("a"))
		all, _ := x.kinds("dataplane_contested", "a")
		expect.Equal(t, all, 0, "reported %d times", all)
		expect.Contains(t, x.problem("a"), "no memory", "problem")
	})
}
