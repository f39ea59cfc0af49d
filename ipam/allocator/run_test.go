package allocator_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func newClock() *table.Clock { return &table.Clock{} }

// running returns a world with a running allocator, in the fake time of a synctest
// bubble. Stop ends it.
func running(t *testing.T, cfg ipam.Config) (w *world, stop func()) {
	t.Helper()
	w = &world{t: t, store: memstore.New(), cfg: cfg}
	return w, w.run()
}

// run starts an allocator on the world's store.
func (w *world) run() (stop func()) {
	w.events = event.NewLog(1_000, time.Now)
	a, err := allocator.New(context.Background(), w.store, w.cfg, allocator.Options{Clock: newClock(), Events: w.events})
	if err != nil {
		w.t.Fatal(err)
	}
	w.a = a
	return w.start()
}

// start runs the world's allocator.
func (w *world) start() (stop func()) {
	a := w.a
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- a.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != context.Canceled {
			w.t.Errorf("Run ended with %v", err)
		}
	}
}

func TestCoolingEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, stop := running(t, pools(pool("p", "192.0.2.0/30")))
		w.get("a")
		w.get("b")
		w.release("a")
		time.Sleep(time.Minute)
		w.release("b")
		waiting := w.a.Freed()
		time.Sleep(4*time.Minute - time.Second)
		synctest.Wait()
		expect.False(t, freed(waiting), "freed too early")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		expect.True(t, freed(waiting), "not freed after 5 minutes")
		same(t, "leases left", w.a.Leases().Len(), 1)
		same(t, "the freed one", w.get("c"), "192.0.2.1")

		// A cooling lease goes on cooling over a restart, for the rest of its time.
		stop()
		stop = w.run()
		waiting = w.a.Freed()
		time.Sleep(57 * time.Second)
		synctest.Wait()
		same(t, "leases before the rest is over", w.a.Leases().Len(), 2)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		same(t, "leases after it", w.a.Leases().Len(), 1)
		expect.True(t, freed(waiting), "not freed")
		w.durable()
		stop()
	})
}

func TestReturnWithinCoolingStaysHeld(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, stop := running(t, pools(pool("p", "192.0.2.0/30")))
		w.get("a")
		for range 5 { // each leaves an entry behind in the queue of what cools
			w.release("a")
			time.Sleep(time.Minute)
			same(t, "back", w.get("a"), "192.0.2.1")
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if l, ok := w.lease("192.0.2.1"); !ok || l.State != ipam.Held {
			t.Errorf("%+v", l)
		}
		stop()
	})
}

func TestCoolingEndsLateWhenTheStoreFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, stop := running(t, pools(pool("p", "192.0.2.0/30")))
		w.get("a")
		w.release("a")
		w.store.Fail(errFull)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		same(t, "leases while the disk is full", w.a.Leases().Len(), 1)
		w.store.Fail(nil)
		time.Sleep(31 * time.Second) // the longest wait between tries
		synctest.Wait()
		same(t, "leases afterwards", w.a.Leases().Len(), 0)
		stop()
	})
}

// A lease that the store refuses to remove doesn't delay others, and is tried again.
func TestCoolingEndsLateWhereTheStoreRefusesOne(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, stop := running(t, pools(pool("p", "192.0.2.0/29")))
		stop()
		s := &refusing{Store: w.store}
		w.with(s, allocator.Options{})
		stop = w.start()
		w.get("a")
		w.get("b")
		w.get("c")
		w.release("a")
		w.release("b")
		w.get("hog", requests("192.0.2.4"))
		time.Sleep(time.Second)
		w.release("c")
		refused := ipam.Resource{Addr: addr("192.0.2.1")}
		s.refuse(refused)
		time.Sleep(5*time.Minute - 500*time.Millisecond)
		synctest.Wait()
		same(t, "leases when the first have cooled down", w.a.Leases().Len(), 3)
		time.Sleep(time.Second)
		synctest.Wait()
		same(t, "leases when all have", w.a.Leases().Len(), 2)
		s.refuse(ipam.Resource{})
		time.Sleep(31 * time.Second)
		synctest.Wait()
		_, ok := w.lease("192.0.2.1")
		expect.False(t, ok, "what was refused once is not tried again")
		w.durable()
		stop()
	})
}

// refusing is a store that refuses every change of one resource.
type refusing struct {
	ipam.Store
	mu       sync.Mutex
	resource ipam.Resource
}

func (s *refusing) refuse(r ipam.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resource = r
}

func (s *refusing) Commit(ctx context.Context, ops []ipam.Op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pass []ipam.Op
	var at []int
	for i := range ops {
		old := ops[i].Old
		if old != nil && old.Resource == s.resource {
			ops[i].Err = errFull
			continue
		}
		pass, at = append(pass, ops[i]), append(at, i)
	}
	err := s.Store.Commit(ctx, pass)
	for i := range pass {
		ops[at[i]].Err = pass[i].Err
	}
	return err
}

// A clock that was set back doesn't make a lease cool down for years.
func TestClockSetBack(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/30")))
	w.now = time.Now().AddDate(10, 0, 0)
	w.get("a")
	w.release("a")
	ctx, cancel := context.WithCancel(t.Context())
	w.now = time.Now()
	waiting := w.a.Freed()
	ended := make(chan error)
	go func() { ended <- w.a.Run(ctx) }()
	<-waiting
	cancel()
	<-ended
	same(t, "leases", w.a.Leases().Len(), 0)
}

func TestOrphansAreReleased(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cfg := pools(pool("p", "192.0.2.0/28"))
		cfg.OrphanGrace = 10 * time.Minute
		w, stop := running(t, cfg)
		w.get("kept")
		w.get("late")
		w.get("gone", ports(on(tcp(80), 0)))
		var known sync.Map
		known.Store(key("kept"), true)
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		same(t, "leases before the sources have spoken", w.a.Leases().Len(), 4)
		same(t, "orphans by then", w.a.Orphans(), 0)

		w.a.Settled(func(k vip.ServiceKey) bool { _, ok := known.Load(k); return ok })
		synctest.Wait()
		same(t, "orphans", w.a.Orphans(), 2)
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		known.Store(key("late"), true) // its source was slow
		time.Sleep(time.Minute)
		synctest.Wait()
		same(t, "orphans after the grace time", w.a.Orphans(), 0)
		l, _ := w.lease("192.0.2.3")
		if l.State != ipam.Cooling || l.Holders[0].Service != key("gone") {
			t.Errorf("the orphan: %+v", l)
		}
		for _, a := range []string{"192.0.2.1", "192.0.2.2"} {
			if l, _ := w.lease(a); l.State != ipam.Held {
				t.Errorf("%s: %+v", a, l)
			}
		}
		if !slices.Contains(w.kinds(), "lease_orphaned") {
			t.Errorf("events %v", w.kinds())
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		same(t, "leases in the end", w.a.Leases().Len(), 2)
		w.durable()
		stop()
	})
}

func TestManyOrphansAreOneCommit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, stop := running(t, pools(pool("p", "10.0.0.0/16")))
		for i := range 100 {
			w.get(fmt.Sprint("s", i))
		}
		commits := w.store.Commits()
		w.a.Settled(func(vip.ServiceKey) bool { return false })
		time.Sleep(7 * time.Minute) // the grace time, and less than what cools
		synctest.Wait()
		same(t, "orphans", w.a.Orphans(), 0)
		same(t, "commits", w.store.Commits(), commits+1)
		stop()
	})
}

func TestOrphanWaitsForTheStore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, stop := running(t, pools(pool("p", "192.0.2.0/28")))
		w.get("gone")
		w.a.Settled(func(vip.ServiceKey) bool { return false })
		w.store.Fail(errFull)
		time.Sleep(time.Hour)
		synctest.Wait()
		same(t, "orphans", w.a.Orphans(), 1)
		w.store.Fail(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		same(t, "orphans afterwards", w.a.Orphans(), 0)
		stop()
	})
}

// A sweep doesn't look at services that a source names, from the start or later.
func TestSweepSkipsKnownServices(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, stop := running(t, pools(pool("p", "10.0.0.0/16")))
		asked := 0
		for i := range 100 {
			w.get(fmt.Sprint("s", i))
		}
		w.a.Settled(func(vip.ServiceKey) bool { asked++; return true })
		for i := range 100 {
			w.get(fmt.Sprint("late", i))
		}
		synctest.Wait()
		before := asked
		time.Sleep(time.Hour)
		synctest.Wait()
		same(t, "questions of an hour", asked-before, 0)
		stop()
	})
}

// Orphans that appear after Settled are found: a service for which the release failed, and one that
// another host wrote.
func TestOrphansAfterSettled(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := memstore.New()
		w := &world{t: t, store: store, cfg: pools(pool("p", "192.0.2.0/28"))}
		w.with(store, allocator.Options{Node: "lb1"})
		defer w.start()()
		w.get("gone")
		w.get("stays")
		var gone atomic.Bool
		w.a.Settled(func(k vip.ServiceKey) bool { return k == key("stays") || k == key("gone") && !gone.Load() })
		pass(time.Hour)
		same(t, "orphans while all are named", w.a.Orphans(), 0)

		gone.Store(true)
		store.Fail(errFull)
		errs := w.a.Release(t.Context(), []ipam.Released{{Service: key("gone")}})
		expect.True(t, errs[0] != nil, "a release succeeds though the store fails")
		store.Fail(nil)
		l := ipam.Lease{Resource: ipam.Resource{Addr: netip.MustParseAddr("192.0.2.9")}, Pool: "p", State: ipam.Held, Since: vip.InstantOf(time.Now()),
			Holders: []ipam.Holder{{Service: key("strange"), Source: "rest"}}}
		must.Succeed(t, store.Commit(t.Context(), []ipam.Op{{New: &l}}))
		pass(2 * time.Minute)
		same(t, "orphans", w.a.Orphans(), 2)
		pass(5 * time.Minute)
		same(t, "orphans after the grace time", w.a.Orphans(), 0)
		pass(time.Hour)
		same(t, "leases in the end", w.a.Leases().Len(), 1)
	})
}
