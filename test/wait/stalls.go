package wait

import (
	"sync"
	"testing"
	"time"
)

// A busy machine may not run this process, its children and its VMs for seconds. A measurement of a test meanwhile
// is not evidence.
const (
	stallTick = 20 * time.Millisecond
	stallTime = 500 * time.Millisecond // without a tick: more than processes usually wait for a processor
)

// Stalls records when this process did not run.
type Stalls struct {
	end  chan struct{}
	done sync.WaitGroup

	mu   sync.Mutex
	last time.Time // the last tick
	all  []stall
}

type stall struct{ from, to time.Time }

// WatchStalls records stalls from now on, at most until the end of the test.
func WatchStalls(t testing.TB) *Stalls {
	s := &Stalls{end: make(chan struct{}), last: time.Now()}
	stop := sync.OnceFunc(func() { close(s.end); s.done.Wait() })
	s.done.Go(func() {
		tick := time.NewTicker(stallTick)
		defer tick.Stop()
		for {
			select {
			case <-s.end:
				return
			case <-tick.C:
				s.note(time.Now())
			}
		}
	})
	t.Cleanup(stop)
	return s
}

func (s *Stalls) note(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.last) > stallTime {
		s.all = append(s.all, stall{s.last, now})
	}
	s.last = now
}

// Since returns how long the longest stall was that ended after a time, 0 without one.
func (s *Stalls) Since(from time.Time) (longest time.Duration) {
	s.note(time.Now()) // the tick may come later than the caller
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		if one.to.After(from) {
			longest = max(longest, one.to.Sub(one.from))
		}
	}
	return longest
}

// rounds is how often Undisturbed repeats a round.
const rounds = 6

// Undisturbed calls round, which returns why the test fails. An error of a round in which this process did not run
// all the time is not evidence: round is called again, a few times.
func Undisturbed(t testing.TB, what string, round func() error) {
	t.Helper()
	stalls := WatchStalls(t)
	for i := 1; ; i++ {
		began := time.Now()
		err := round()
		if err == nil {
			return
		}
		stalled := stalls.Since(began)
		if stalled == 0 || i == rounds {
			t.Fatalf("%s, round %d, longest stall %s: %v", what, i, stalled, err)
			return
		}
		t.Logf("%s, round %d: this process has not run for %s; once more: %v", what, i, stalled, err)
	}
}
