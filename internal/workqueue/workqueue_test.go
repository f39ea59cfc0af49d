package workqueue

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/expect"
)

// The queue behaves as a plain list without duplicates.
func TestQueueIsAListOfUniqueKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[int]
		var list []int
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			k := rapid.IntRange(0, 40).Draw(t, "key")
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0, 1:
				q.Add(k)
				if !slices.Contains(list, k) {
					list = append(list, k)
				}
			case 2:
				q.Remove(k)
				list = slices.DeleteFunc(list, func(other int) bool { return other == k })
			case 3:
				k, ok := q.Take()
				if ok != (len(list) > 0) || ok && k != list[0] {
					t.Fatalf("took %d, %v from %v", k, ok, list)
				}
				if ok {
					list = list[1:]
				}
			case 4:
				some := q.Some()
				if table.IsClosed(some) != (len(list) > 0) {
					t.Fatalf("Some is closed: %v, with %v", table.IsClosed(some), list)
				}
			}
			if got := slices.Collect(q.All()); !slices.Equal(got, list) || q.Len() != len(list) || q.Has(k) != slices.Contains(list, k) {
				t.Fatalf("%v, %d keys, has %d: %v; want %v", got, q.Len(), k, q.Has(k), list)
			}
		}
	})
}

// A waiting owner is woken by the first key, also if keys have come and gone before.
func TestSomeIsClosedByTheFirstKey(t *testing.T) {
	var q Queue[string]
	some := q.Some()
	q.Add("a")
	expect.True(t, table.IsClosed(some), "not closed by the first key")
	q.Take()
	if some = q.Some(); table.IsClosed(some) {
		t.Error("closed while empty")
	}
	q.Add("b")
	expect.True(t, table.IsClosed(some), "not closed by the first key after the queue was empty")
}

// An empty queue keeps no memory of many former keys.
func TestEmptyQueueIsSmall(t *testing.T) {
	var q Queue[int]
	for range 3 {
		for k := range 10_000 {
			q.Add(k)
		}
		for k := range 10_000 {
			if got, ok := q.Take(); got != k || !ok {
				t.Fatalf("took %d, %v, want %d", got, ok, k)
			}
		}
		expect.True(t, q.places == nil, "room for former keys is kept")
	}
}
