package delayqueue

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/test/expect"
)

// After any sets and drops, a queue has the content of a map, and returns
// the earliest first.
func TestAgendaIsAMapInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a Queue[int]
		oracle := map[int]time.Time{}
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			k := rapid.IntRange(0, 20).Draw(t, "key")
			if rapid.IntRange(0, 3).Draw(t, "what") == 0 {
				a.Drop(k)
				delete(oracle, k)
				continue
			}
			at := time.Unix(rapid.Int64Range(0, 10).Draw(t, "at"), 0)
			if was, there := oracle[k]; rapid.Bool().Draw(t, "hasten") {
				a.Hasten(k, at)
				if there && was.Before(at) {
					at = was
				}
			} else {
				a.Set(k, at)
			}
			oracle[k] = at
		}
		if got, want := slices.Sorted(a.All()), slices.Sorted(maps.Keys(oracle)); !slices.Equal(got, want) || a.Len() != len(want) {
			t.Fatalf("has %v, %d of them, want %v", got, a.Len(), want)
		}
		var last time.Time
		for range len(oracle) {
			k, at, ok := a.First()
			if !ok || !a.Has(k) || !oracle[k].Equal(at) || at.Before(last) {
				t.Fatalf("first is %d at %v (%t), want one of %v not before %v", k, at, ok, oracle, last)
			}
			last = at
			a.Drop(k)
		}
		if k, at, ok := a.First(); ok {
			t.Fatalf("first of nothing is %d at %v", k, at)
		}
	})
}

func TestDueIsWhatHasCome(t *testing.T) {
	var a Queue[string]
	for k, at := range map[string]int64{"past": 3, "now": 5, "soon": 6} {
		a.Set(k, time.Unix(at, 0))
	}
	var due []string
	for k := range a.Due(time.Unix(5, 0)) {
		due = append(due, k)
		switch len(due) {
		case 1:
			a.Set(k, time.Unix(4, 0)) // put off, but not for long enough
		case 2:
			a.Set(k, time.Unix(9, 0))
		default:
			a.Drop(k)
		}
	}
	expect.SameList(t, due, []string{"past", "past", "now"}, "due")
	if k, _, _ := a.First(); k != "soon" || a.Len() != 2 {
		t.Errorf("left are %d, first %q, want soon and one more", a.Len(), k)
	}
}

// An empty queue keeps no memory of many former keys.
func TestEmptyQueueIsSmall(t *testing.T) {
	var q Queue[int]
	now := time.Unix(0, 0)
	for range 3 {
		for k := range 10_000 {
			q.Set(k, now)
		}
		n := 0
		for k := range q.Due(now) {
			q.Drop(k)
			n++
		}
		if n != 10_000 || q.entries != nil || q.heap != nil {
			t.Errorf("%d keys were due; room for %d is kept", n, cap(q.heap))
		}
	}
}
