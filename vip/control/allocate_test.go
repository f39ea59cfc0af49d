package control

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/table"
)

func TestServicesThatComeTogetherAreOneCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		for _, name := range []string{"a", "b", "c"} {
			w.services.Set(key(name), service(name, nil))
		}
		w.run().put()
		if got := w.allocator.asked(); len(got) != 1 || len(got[0]) != 3 {
			t.Errorf("asked for %v, want one batch of three", got)
		}
		w.put(service("b", []string{"10.0.0.1"}))
		if got := w.allocator.asked(); len(got) != 1 || !slices.Equal(got[0], []vip.ServiceKey{key("b")}) {
			t.Errorf("asked for %v, want only the service that changed", got)
		}
		w.stop()
	})
}

func TestWaitingServiceGetsWhatBecomesFree(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.allocator.set(func(a *fakeAllocator) { a.capacity = 1 })
		w.put(service("a", nil), service("b", nil), service("c", nil))
		w.expect("192.0.2.1:80/tcp a:")
		if got := w.problems("b"); !slices.Equal(got, []string{vip.CodePoolFull}) {
			t.Errorf("b has problems %v", got)
		}
		w.allocator.asked()
		w.remove("a")
		w.expect("192.0.2.2:80/tcp b:") // the one that waits longest
		if got := w.allocator.asked(); len(got) != 1 || !slices.Equal(got[0], []vip.ServiceKey{key("b"), key("c")}) {
			t.Errorf("asked for %v, want the waiting ones in their order", got)
		}
		if got := w.problems("b"); len(got) != 0 {
			t.Errorf("b still has problems %v", got)
		}
	})
}

func TestUpdateWithProblemsKeepsFormerAddress(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("a", nil), service("b", []string{"10.0.0.1"}))
		w.put(service("b", []string{"10.0.0.2"}, on("", "192.0.2.1")))
		w.expect("192.0.2.1:80/tcp a:", "192.0.2.2:80/tcp b: 10.0.0.1:80*0@1m0s 10.0.0.2:80*1")
		if got := w.problems("b"); !slices.Equal(got, []string{vip.CodeAddressTaken}) {
			t.Errorf("b has problems %v", got)
		}
		row, _, _ := w.compiled.Get(key("b"))
		if row.Problems[0].Service != "b" {
			t.Errorf("problem %+v names no service", row.Problems[0])
		}
	})
}

func TestStoreDownKeepsWhatThereIs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("a", []string{"10.0.0.1"}), service("gone", nil))
		w.allocator.set(func(a *fakeAllocator) { a.down = true })

		w.put(service("new", nil))                                                                       // can't be granted
		w.put(service("a", []string{"10.0.0.2"}, func(s *vip.Service) { s.VIPs = addrs("192.0.2.50") })) // nor this
		w.remove("gone")                                                                                 // can't be released
		w.expect("192.0.2.1:80/tcp a: 10.0.0.1:80*0@1m0s 10.0.0.2:80*1")
		for _, name := range []string{"new", "a"} {
			if got := w.problems(name); !slices.Equal(got, []string{vip.CodeStore}) {
				t.Errorf("%s has problems %v", name, got)
			}
		}
		row, _, _ := w.compiled.Get(key("a"))
		if _, rev, _ := w.services.Get(key("a")); row.ServiceRev != rev {
			t.Error("the newest row of a is not compiled: a broken disk must not hold up its backends")
		}

		w.allocator.asked()
		w.pass(5 * time.Minute)
		if n := len(w.allocator.asked()); n < 30 || n > 40 {
			t.Errorf("tried %d times in 5 minutes", n)
		}
		w.allocator.set(func(a *fakeAllocator) { a.down = false })
		w.pass(maxBackoff)
		released, _, _ := w.allocator.told()
		if !slices.Equal(released, []string{"gone 1m0s"}) {
			t.Errorf("released %v", released)
		}
		w.pass(time.Minute)
		w.expect("192.0.2.3:80/tcp new:", "192.0.2.50:80/tcp a: 10.0.0.2:80*1")
		var kinds []string
		events, _ := w.events.Since(0)
		for _, e := range events {
			if e.Kind != "backend_drained" {
				kinds = append(kinds, e.Kind)
			}
		}
		if !slices.Equal(kinds, []string{"lease_store_down", "lease_store_up"}) {
			t.Errorf("events %v", kinds)
		}
		w.allocator.asked()
		w.pass(time.Hour)
		if got := w.allocator.asked(); len(got) != 0 {
			t.Errorf("still trying: %v", got)
		}
	})
}

// Deleting many services is a few commits, not one each.
func TestServicesThatGoTogetherAreFewCommits(t *testing.T) {
	settledWorld(t, 1200, func(w *world) {
		for i := range 1200 {
			w.services.Delete(key(fmt.Sprintf("s%d", i)))
		}
		w.put()
		released, _, _ := w.allocator.told()
		// Three where the feed is behind by all of them; the stage may run meanwhile.
		if n := w.allocator.releases; len(released) != 1200 || n > 120 {
			t.Errorf("released %d services with %d commits, want 1200 with a few", len(released), n)
		}
	})
}

// The release of many that the store was away for is a few commits, too, and
// one that is refused for itself holds up no other.
func TestReleasesThatWaited(t *testing.T) {
	settledWorld(t, 1200, func(w *world) {
		w.allocator.set(func(a *fakeAllocator) { a.down = true })
		for i := range 1200 {
			w.services.Delete(key(fmt.Sprintf("s%d", i)))
		}
		w.put()
		w.allocator.set(func(a *fakeAllocator) { a.down, a.stuck, a.releases = false, key("s5"), 0 })
		w.pass(maxBackoff)
		released, _, _ := w.allocator.told()
		if n := w.allocator.releases; len(released) != 1199 || n > 12 {
			t.Errorf("released %d services with %d commits", len(released), n)
		}
		w.allocator.set(func(a *fakeAllocator) { a.stuck = vip.ServiceKey{} })
		w.pass(maxBackoff)
		if released, _, _ := w.allocator.told(); len(released) != 1200 || released[1199] != "s5 1m0s" {
			t.Errorf("released %d services, last %s", len(released), released[len(released)-1])
		}
	})
}

func TestServiceThatReturnsIsNotReleased(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("a", []string{"10.0.0.1"}))
		w.services.Delete(key("a"))
		w.put(service("a", []string{"10.0.0.1"})) // before anybody looked
		if released, _, _ := w.allocator.told(); len(released) != 0 {
			t.Errorf("released %v", released)
		}
		w.allocator.set(func(a *fakeAllocator) { a.down = true })
		w.remove("a")
		w.put(service("a", []string{"10.0.0.1"}))
		w.allocator.set(func(a *fakeAllocator) { a.down = false })
		w.pass(time.Hour)
		if released, _, _ := w.allocator.told(); len(released) != 0 {
			t.Errorf("released %v after it was back", released)
		}
		w.expect("192.0.2.1:80/tcp a: 10.0.0.1:80*1")
	})
}

// A deletion may be read when the service is back already: the rows count, not
// the news of them.
func TestOutdatedDeletionIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		a := NewAllocate(AllocateOptions{Services: w.services, Allocator: w.allocator, Allocations: w.allocations})
		w.services.Set(key("a"), service("a", nil))
		w.allocations.Set(key("a"), vip.Allocation{Service: key("a")})
		var ask touched
		a.take(&table.Change[vip.ServiceKey, vip.Service]{Key: key("a"), Deleted: true}, &ask)
		if _, _, there := w.allocations.Get(key("a")); !there || a.releases.len() != 0 {
			t.Error("a service that is there was given up")
		}
	})
}

// A host that can't be read must not keep the fleet from having addresses.
func TestHostUnknownForLong(t *testing.T) {
	inLateWorld(t, func(t *testing.T, w *world, sourcesSynced, hostKnown, statesKnown func()) {
		sourcesSynced()
		statesKnown()
		w.put(service("a", nil))
		w.pass(DefaultHostWait - time.Millisecond)
		if w.allocations.Len() != 0 {
			t.Error("allocated without waiting for the host")
		}
		if isClosed(w.frontends.Ready()) {
			t.Error("frontends are complete without waiting for the host's node ports")
		}
		w.pass(time.Millisecond)
		w.expect("192.0.2.1:80/tcp a:")
		if !isClosed(w.frontends.Ready()) || !isClosed(w.compiled.Ready()) {
			t.Error("frontends never become complete, and what waits for that never works")
		}
		if events, _ := w.events.Since(0); len(events) != 1 || events[0].Kind != "host_unknown" {
			t.Errorf("events %+v", events)
		}
		// Known late, its node ports are served late.
		w.put(service("a", nil, nodePort))
		w.expect("192.0.2.1:80/tcp a:")
		w.host.Set(struct{}{}, hostAddrs("10.9.0.1/24"))
		hostKnown()
		w.put()
		w.expect("10.9.0.1:30080/tcp a:", "192.0.2.1:80/tcp a:")
	})
}

// A host that is known in time is nothing to talk about.
func TestHostKnownInTime(t *testing.T) {
	inLateWorld(t, func(t *testing.T, w *world, sourcesSynced, hostKnown, statesKnown func()) {
		statesKnown()
		hostKnown()
		w.pass(2 * DefaultHostWait) // the sources take their time
		if isClosed(w.frontends.Ready()) {
			t.Error("frontends are complete without the services")
		}
		sourcesSynced()
		w.put()
		if !isClosed(w.frontends.Ready()) {
			t.Error("frontends are not complete")
		}
		if events, _ := w.events.Since(0); len(events) != 0 {
			t.Errorf("events %+v", events)
		}
	})
}

func TestStagesEndWhileTheyWait(t *testing.T) {
	for name, enough := range map[string]int{"for the host": 0, "for the services": 2} {
		t.Run(name, func(t *testing.T) {
			inLateWorld(t, func(t *testing.T, w *world, _, host, states func()) {
				for _, done := range []func(){host, states}[:enough] {
					done()
				}
				w.put()
				w.stop() // synctest fails the test if a goroutine stays
			})
		})
	}
}

func TestBackoffDoublesAndRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackoff()
		defer b.stop()
		ring := func(want time.Duration) {
			t.Helper()
			start := time.Now()
			b.set(true)
			b.set(true) // saying so again doesn't put it off
			<-b.C()
			b.ring()
			if got := time.Since(start); got != want {
				t.Errorf("rang after %s, want %s", got, want)
			}
			if !b.due() || b.due() {
				t.Error("due must be said exactly once")
			}
		}
		for _, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000} {
			ring(want * time.Millisecond)
		}
		if !b.failing() {
			t.Error("not failing")
		}
		b.set(false)
		if b.failing() {
			t.Error("failing")
		}
		ring(100 * time.Millisecond)
		b.set(true)
		time.Sleep(time.Second)
		if !b.due() {
			t.Error("not due though nobody selected on C")
		}
	})
}
