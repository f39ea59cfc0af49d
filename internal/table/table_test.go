package table

import (
	"context"
	"maps"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// entry is a value with its key.
type entry[K comparable] struct {
	key   K
	value int
}

func keyOf[K comparable](e *entry[K]) K { return e.key }

func same[K comparable](a, b entry[K]) bool { return a == b }

func drain[K comparable, V any](f *Feed[K, V]) []Change[V] {
	var all []Change[V]
	for {
		batch, _ := f.TryNext()
		if len(batch) == 0 {
			return all
		}
		all = append(all, batch...)
	}
}

// A reader that waits receives the values of one SetAll in one batch, however many processors run.
func TestSetAllIsOneBatch(t *testing.T) {
	tab := New(&Clock{}, keyOf[int], same[int])
	tab.Set(entry[int]{5, 5})
	f := tab.Watch()
	defer f.Close()
	drain(f)
	sum := tab.Sum(func(e *entry[int]) int { return e.value })
	const rounds, size, last = 500, 100, 1000
	done := make(chan []int)
	go func() {
		var sizes []int
		for {
			batch, err := f.Next(t.Context())
			sizes = append(sizes, len(batch))
			if err != nil || batch[len(batch)-1].Value.key == last {
				done <- sizes
				return
			}
		}
	}()
	for round := range rounds {
		vs := make([]entry[int], size)
		for i := range vs {
			vs[i] = entry[int]{i, round + 6}
		}
		vs[5].value = 5 // does not change
		tab.SetAll(vs)
	}
	tab.Set(entry[int]{last, 0})
	sizes := <-done
	for _, n := range sizes {
		if n != size-1 && n != size && n != 1 { // one round, one round with the last row, the last row
			t.Errorf("a batch has %d changes, want %d", n, size-1)
		}
	}
	if got, want := sum(), (rounds+5)*(size-1)+5; got != want {
		t.Errorf("sum is %d, want %d", got, want)
	}
}

// Whatever is done to the table, a reader that replays its feed into a map has
// the table's rows, a batch never names a key twice or goes back in time, and
// sums are of the rows that are there, whenever they were asked for.
func TestFeedReplaysToTheTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := New(&Clock{}, keyOf[int], same[int])
		oracle := map[int]int{}
		type reader struct {
			feed *Feed[int, entry[int]]
			rows map[int]int
			rev  uint64
		}
		var readers []*reader
		var sums []func() int
		tracked := map[int]int{}
		tab.Set(entry[int]{9, 9})
		oracle[9] = 9
		tab.Track(func(before, after *entry[int]) {
			if before != nil {
				if v, there := tracked[before.key]; !there || v != before.value {
					t.Fatalf("the row before a change is %v, tracked is %v", *before, tracked)
				}
				delete(tracked, before.key)
			}
			if after != nil {
				tracked[after.key] = after.value
			}
		})
		counts := Counts(tab, func(e *entry[int]) int { return e.value })
		catchUp := func(r *reader) {
			for {
				batch, _ := r.feed.TryNext()
				if len(batch) == 0 {
					break
				}
				names := map[int]bool{}
				for _, c := range batch {
					if names[c.Value.key] {
						t.Fatalf("key %d twice in one batch", c.Value.key)
					}
					names[c.Value.key] = true
					if c.Rev <= r.rev {
						t.Fatalf("revision %d after %d", c.Rev, r.rev)
					}
					r.rev = c.Rev
					if c.Deleted {
						delete(r.rows, c.Value.key)
					} else {
						r.rows[c.Value.key] = c.Value.value
					}
				}
			}
			if r.feed.Seen() != tab.Revision() {
				t.Fatalf("all seen up to %d, the table is at %d", r.feed.Seen(), tab.Revision())
			}
			if !maps.Equal(r.rows, oracle) {
				t.Fatalf("feed says %v, table holds %v", r.rows, oracle)
			}
			must.True(t, maps.Equal(tracked, oracle), "tracker says %v, table holds %v", tracked, oracle)
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			k := rapid.IntRange(0, 9).Draw(t, "key")
			switch rapid.IntRange(0, 9).Draw(t, "op") {
			case 9:
				_, rev, there := tab.Get(k)
				touched := tab.Touch(k)
				if _, now, _ := tab.Get(k); touched != there || (now > rev) != there {
					t.Fatalf("touch of key %d: %v, revision %d after %d", k, touched, now, rev)
				}
			case 8:
				sums = append(sums, tab.Sum(func(e *entry[int]) int { return 1 + e.value }))
			case 0, 1, 2:
				v := rapid.IntRange(0, 3).Draw(t, "value")
				tab.Set(entry[int]{k, v})
				oracle[k] = v
			case 3, 4:
				tab.Delete(k)
				delete(oracle, k)
			case 5:
				readers = append(readers, &reader{feed: tab.Watch(), rows: map[int]int{}})
			case 6:
				if len(readers) > 0 {
					catchUp(readers[k%len(readers)])
				}
			case 7:
				if len(readers) > 0 {
					i := k % len(readers)
					readers[i].feed.Close()
					readers = append(readers[:i], readers[i+1:]...)
				}
			}
		}
		for _, r := range readers {
			catchUp(r)
		}
		want := 0
		for _, v := range oracle {
			want += 1 + v
		}
		for _, sum := range sums {
			must.Equal(t, sum(), want, "a sum")
		}
		kinds := map[int]int{}
		for _, v := range oracle {
			kinds[v]++
		}
		if got := counts(); !maps.Equal(got, kinds) {
			t.Fatalf("counted %v, want %v", got, kinds)
		}
		if len(tab.tombstones) != 0 || len(tab.buried) != 0 {
			t.Fatalf("%d tombstones left after every feed has passed", len(tab.tombstones))
		}
		all := map[int]int{}
		for k, e := range tab.All() {
			if all[k] = e.value; e.key != k {
				t.Fatalf("All gives %v at %d", e, k)
			}
		}
		must.True(t, maps.Equal(all, oracle), "All gives %v, table holds %v", all, oracle)
	})
}

// A reader that sees what a tracker has done sees the change of the row, too.
func TestTrackersAreAheadOfNobody(t *testing.T) {
	clock := &Clock{}
	tab, seen := New(clock, keyOf[int], nil), New(clock, keyOf[int], nil)
	tab.Track(func(before, after *entry[int]) {
		if after == nil {
			seen.Delete(before.key)
		} else {
			seen.Set(*after)
		}
	})
	feed := seen.Watch()
	defer feed.Close()
	const rounds = 2000
	go func() {
		for i := range rounds {
			tab.Set(entry[int]{1, i})
			tab.Delete(1)
		}
		tab.Set(entry[int]{1, rounds})
	}()
	for last := -1; last < rounds; {
		batch := must.Get(feed.Next(t.Context()))(t)
		for _, c := range batch {
			if row := tab.Row(1); row != nil && row.Value.value < c.Value.value || row == nil && !c.Deleted && c.Value.value == rounds {
				t.Fatalf("tracked %v, the row is %v", c.Value, row)
			}
			last = c.Value.value
		}
	}
}

// A reader that holds a row has it as it was, whatever becomes of its key.
func TestRowsNeverChange(t *testing.T) {
	tab := New(&Clock{}, keyOf[string], nil)
	feed := tab.Watch()
	defer feed.Close()
	first := tab.Put(entry[string]{"a", 1})
	read, batch := tab.Row("a"), drain(feed)
	second := tab.Put(entry[string]{"a", 2})
	tab.Delete("a")
	gone := drain(feed)
	if *first != (Row[entry[string]]{entry[string]{"a", 1}, 1}) || read != first || batch[0].Row != first || *second != (Row[entry[string]]{entry[string]{"a", 2}, 2}) {
		t.Errorf("rows %v, %v, %v, %v", *first, *read, *batch[0].Row, *second)
	}
	if tab.Row("a") != nil || len(gone) != 1 || !gone[0].Deleted || *gone[0].Row != (Row[entry[string]]{entry[string]{"a", 2}, 3}) {
		t.Errorf("after the end %v, %+v", tab.Row("a"), gone)
	}
}

// A fleet has some hundred thousand rows: each takes two links and a revision
// beside its value, and its place among the keys.
func TestRowTakesThreeWords(t *testing.T) {
	type value [10]uintptr
	got := unsafe.Sizeof(node[value]{}) - unsafe.Sizeof(value{})
	expect.Equal(t, got, 3*unsafe.Sizeof(uintptr(0)), "a row takes %d bytes beside its value", got)
}

func TestSetOfEqualValueWakesNobody(t *testing.T) {
	tab := New(&Clock{}, keyOf[string], same[string])
	rev := tab.Set(entry[string]{"a", 1})
	feed := tab.Watch()
	drain(feed)
	changed := tab.Changed()
	expect.Equal(t, tab.Set(entry[string]{"a", 1}), rev, "revision moved from %d to", rev)
	select {
	case <-changed:
		t.Error("readers were woken")
	default:
	}
	expect.Empty(t, drain(feed), "feed delivered")
}

func TestNextWaitsAndHonoursContext(t *testing.T) {
	tab := New(&Clock{}, keyOf[string], nil)
	feed := tab.Watch()
	defer feed.Close()
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		batch, err := feed.Next(ctx)
		if err == nil && (len(batch) != 1 || batch[0].Value.key != "a") {
			t.Errorf("batch %v", batch)
		}
		_, err = feed.Next(ctx)
		got <- err
	}()
	tab.Set(entry[string]{"a", 1})
	cancel()
	if err := <-got; err != context.Canceled {
		t.Errorf("Next ended with %v", err)
	}
}

func TestReadyAfterLastInitializer(t *testing.T) {
	tab := New(&Clock{}, keyOf[string], nil)
	a, b := tab.Initializer(), tab.Initializer()
	isReady := func() bool {
		select {
		case <-tab.Ready():
			return true
		default:
			return false
		}
	}
	a()
	a()
	expect.False(t, isReady(), "ready with an initializer left")
	b()
	expect.True(t, isReady(), "not ready after the last initializer")
}

func TestClockFitsJSONAndGrows(t *testing.T) {
	c := NewClock(time.Date(2255, 1, 1, 0, 0, 0, 0, time.UTC))
	expect.AtMost(t, c.Revision(), 1<<53, "does not fit a float64")
	a, b := New(c, keyOf[int], nil), New(c, keyOf[int], nil)
	if x, y := a.Set(entry[int]{1, 1}), b.Set(entry[int]{1, 1}); y <= x {
		t.Errorf("the later change has revision %d, the earlier %d", y, x)
	}
}

// One change seen by one watcher costs the same allocations at any size.
func TestChangeAllocationsDontGrow(t *testing.T) {
	cost := func(rows int) float64 {
		tab := New(&Clock{}, keyOf[int], nil)
		for i := range rows {
			tab.Set(entry[int]{i, i})
		}
		feed := tab.Watch()
		drain(feed)
		return testing.AllocsPerRun(100, func() {
			tab.Set(entry[int]{rand.IntN(rows), rand.Int()})
			feed.TryNext()
		})
	}
	if small, large := cost(10), cost(100_000); large > small*1.5 {
		t.Errorf("%v allocations a change at 10 rows, %v at 100,000", small, large)
	}
}
