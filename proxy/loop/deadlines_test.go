package loop

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
)

// timedItem expires when nothing has renewed it for its timeout.
type timedItem struct {
	w         *Deadlines
	renewed   int64
	timeout   time.Duration
	visits    int
	expired   atomic.Int64 // 0: not yet
	shortened int64
}

func (i *timedItem) due() int64 { return i.renewed + int64(i.timeout) }

func (i *timedItem) Visit(now int64) (int64, bool) {
	i.visits++
	return i.due(), now >= i.due()
}

func (i *timedItem) Expire() { i.expired.Store(i.w.now()) }

func (i *timedItem) change(f func()) {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	f()
}

const grain = 250 * time.Millisecond

func deadlinesFromNow() *Deadlines {
	start := time.Now()
	return NewDeadlines(func() int64 { return int64(time.Since(start)) }, grain)
}

func (w *Deadlines) start(timeout time.Duration) *timedItem {
	i := &timedItem{w: w, timeout: timeout, renewed: w.now()}
	w.Add(i, i.due())
	return i
}

// Entries with timeouts from none to hours are renewed, shortened and removed at random. Each one
// expires once, at its last deadline, at most a grain late.
func TestDeadlinesExpire(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		w := deadlinesFromNow()
		var all []*timedItem
		removed := map[*timedItem]bool{}
		for range 3000 {
			switch k := rng.IntN(10); {
			case k < 3 || len(all) == 0:
				all = append(all, w.start(time.Duration(rng.ExpFloat64()*float64(time.Minute))))
			case k < 7: // no change of the deadlines
				if i := all[rng.IntN(len(all))]; i.expired.Load() == 0 {
					i.change(func() { i.renewed = w.now() })
				}
			case k < 8:
				if i := all[rng.IntN(len(all))]; i.expired.Load() == 0 && !removed[i] {
					i.change(func() { i.timeout, i.shortened = i.timeout/2, w.now() })
					w.Move(i, i.due())
				}
			case k < 9:
				i := all[rng.IntN(len(all))]
				w.Remove(i)
				removed[i] = removed[i] || i.expired.Load() == 0
				w.Move(i, i.due())
			default:
				all = append(all, w.start(time.Duration(rng.IntN(int(5*time.Hour)))))
			}
			time.Sleep(time.Duration(rng.ExpFloat64() * float64(time.Second)))
			synctest.Wait()
		}
		time.Sleep(24 * time.Hour)
		for _, i := range all {
			switch {
			case removed[i] && i.expired.Load() != 0:
				t.Fatal("a removed entry has expired")
			case !removed[i] && i.expired.Load() == 0:
				t.Fatal("an entry never expired")
			case !removed[i] && (i.expired.Load() < i.due() || i.expired.Load() > max(i.due(), i.shortened)+int64(grain)+1):
				t.Fatalf("due at %s, expired at %s", time.Duration(i.due()), time.Duration(i.expired.Load()))
			}
		}
		expect.True(t, w.queue.Len() == 0, "entries are left")
	})
}

// The cost of idle entries: few visits.
func TestDeadlinesAreCheap(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := deadlinesFromNow()
		const n = 50_000
		all := make([]*timedItem, n)
		for i := range all {
			all[i] = w.start(time.Hour)
		}
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		visits := 0
		for _, i := range all {
			visits += i.visits
			w.Remove(i)
		}
		if most := 60 * n; visits > most { // one a minute
			t.Errorf("%d visits in an hour for %d entries, more than %d", visits, n, most)
		}
		w.Close()
	})
}
