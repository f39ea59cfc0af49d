package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// ask assigns services of these names.
func (w *world) ask(names []string) []vip.Allocation {
	w.t.Helper()
	var services []vip.Service
	for _, name := range names {
		services = append(services, service(name))
	}
	return w.assign(services...)
}

func (w *world) taken() (names []string) {
	for _, k := range w.a.TakeRecalls() {
		names = append(names, k.Name)
	}
	return names
}

func names(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("s%03d", i))
	}
	return out
}

// While the leader allocates a part of what other hosts wait for, they wait for the rest. When it
// stops, they step in for a few services first, and then for more and more.
func TestGracePeriodRestartsWhileTheLeaderWorks(t *testing.T) {
	together(t, pools(pool("p", "192.0.2.0/24")), func(_ *election, a, b *world) {
		all := names(200)
		b.ask(all)
		for i := range 3 {
			pass(stepInAfter - time.Millisecond)
			a.get(all[i])
			pass(0)
			if got := b.taken(); len(got) != 1 || got[0] != all[i] {
				t.Fatalf("recalled %v while the leader allocates for %s", got, all[i])
			}
			b.get(all[i])
		}
		pass(stepInAfter - time.Millisecond)
		if got := b.taken(); len(got) != 0 {
			t.Fatalf("recalled %v within the grace period", got)
		}
		began := time.Now()
		for !freed(b.a.Recalls()) && time.Since(began) <= stepInJitter {
			pass(100 * time.Millisecond)
		}
		for _, want := range []int{8, 16, 32, 64, 77} {
			got := b.taken()
			must.Equal(t, len(got), want, "recalled %d services", len(got))
			b.ask(got)
			pass(time.Second)
		}
		same(t, "leases", b.a.Leases().Len(), 200)
	})
}

// A service that only this host knows doesn't wait forever because the leader is busy with others.
func TestGracePeriodIsBounded(t *testing.T) {
	together(t, pools(pool("p", "192.0.2.0/24")), func(_ *election, a, b *world) {
		all := names(100)
		b.ask(append(all, "own"))
		for i := 0; ; i++ {
			pass(time.Second)
			got := b.taken()
			b.ask(got)
			pass(0)
			if slices.Contains(got, "own") {
				if i < 58 || i > 66 { // many others step in at the same time
					t.Errorf("stepped in after %d seconds", i)
				}
				return
			}
			must.True(t, i != len(all), "still waiting")
			a.get(all[i])
		}
	})
}

// slowStore takes its time for each commit, and manages none while it is stuck.
type slowStore struct {
	ipam.Store
	stuck   bool
	commits int
}

func (s *slowStore) Commit(ctx context.Context, ops []ipam.Op) error {
	s.commits++
	if s.stuck {
		time.Sleep(5 * time.Second)
		return errors.Join(ipam.ErrUnavailable, ipam.ErrSlow)
	}
	return s.Store.Commit(ctx, ops)
}

// A host that steps in and finds the store too slow waits for the leader again, says so, and later
// tries a few services again.
func TestFollowerWithASlowStore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		o := &election{elected: "lb1", changed: make(chan struct{})}
		w := newWorld(t, pools(pool("p", "192.0.2.0/24")))
		store := &slowStore{Store: w.store, stuck: true}
		w.with(store, allocator.Options{Node: "lb2", Leadership: seat{o, "lb2"}})
		defer w.start()()
		w.ask(names(100))
		for began := time.Now(); time.Since(began) < 2*time.Minute; pass(100 * time.Millisecond) {
			got := w.taken()
			must.AtMost(t, len(got), 8, "acts for %d services", len(got))
			for _, answer := range w.ask(got) {
				if p := answer.Problems; len(p) != 1 || p[0].Code != vip.CodeWaiting {
					t.Fatalf("%v", p)
				}
			}
		}
		if store.commits < 3 || store.commits > 6 { // one of 5 seconds, then two grace periods
			t.Errorf("%d commits in two minutes", store.commits)
		}
		store.stuck = false
		for began := time.Now(); w.a.Leases().Len() < 100; pass(100 * time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatalf("%d leases", w.a.Leases().Len())
			}
			w.ask(w.taken())
		}
	})
}

// A follower doesn't end cooling at once on a store that was too slow for it: the leader is at that.
func TestFollowerEndsCoolingLateOnASlowStore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		o := &election{elected: "lb2", changed: make(chan struct{})}
		w := newWorld(t, pools(pool("p", "192.0.2.0/24")))
		store := &slowStore{Store: w.store}
		w.with(store, allocator.Options{Node: "lb2", Leadership: seat{o, "lb2"}})
		w.ask(names(20))
		defer w.start()()
		w.release(names(20)...)
		end := time.Now().Add(w.cfg.ReuseDelay)
		o.elect("lb1")
		store.stuck = true
		w.ask([]string{"new"})
		pass(stepInAfter + stepInJitter)
		w.ask(w.taken()) // takes 5 seconds, in vain
		store.stuck = false
		pass(time.Until(end))
		for known := w.a.Leases().Len(); ; pass(100 * time.Millisecond) {
			must.Equal(t, known, 20, "leases")
			if w.a.Leases().Len() < known {
				break
			}
			must.AtMost(t, time.Since(end), time.Minute, "they are never ended")
		}
		if took := time.Since(end); took < stepInAfter || took > stepInAfter+stepInJitter+time.Second {
			t.Errorf("ended after %s, want the grace period", took)
		}
	})
}
