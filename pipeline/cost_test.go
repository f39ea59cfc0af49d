package pipeline

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// settledWorld runs a scenario in a world with n services after all stages have become idle.
func settledWorld(t *testing.T, n int, scenario func(w *world)) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		for i := range n {
			s := service(fmt.Sprintf("s%d", i), []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"})
			w.Services.Set(s)
		}
		w.run().put()
		got := len(w.plane.Have())
		must.Equal(t, got, n, "%d frontends for %d services", got, n)
		scenario(w)
		w.stop()
	})
}

// One change, from the services table to the dataplane and back to the applied
// table, costs the same whatever the number of services.
func TestChangeCostDoesNotGrow(t *testing.T) {
	forms := [2]vip.Service{
		service("s0", []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}),
		service("s0", []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, func(s *vip.Service) { s.Backends[0].Weight = 7 }),
	}
	for name, change := range map[string]func(w *world, i int){
		"service": func(w *world, i int) { w.Services.Set(forms[i%2]) },
		"state": func(w *world, i int) {
			w.Overrides.Set(vip.BackendState{Backend: vip.BackendKey{Service: forms[0].Key, Address: forms[0].Backends[0].Address}, State: []vip.State{vip.Ready, vip.Maint}[i%2]})
		},
		// No service has a node port, so none is compiled.
		"host": func(w *world, i int) { w.Host.Set(hostAddrs(fmt.Sprintf("10.9.0.%d/24", i%2+1))) },
	} {
		t.Run(name, func(t *testing.T) {
			cost := func(n int) (allocs float64) {
				settledWorld(t, n, func(w *world) {
					i := 0
					allocs = testing.AllocsPerRun(50, func() {
						i++
						change(w, i)
						synctest.Wait()
					})
				})
				return allocs
			}
			few, many := cost(10), cost(2000)
			t.Logf("%v allocations among 10 services, %v among 2,000", few, many)
			if many > 1.5*few {
				t.Errorf("%v allocations among 10 services, %v among 2,000: more than 1.5 times as many", few, many)
			}
		})
	}
}

// A change while thousands of endpoints drain costs no more than with a few.
func TestChangeCostDoesNotGrowWithDrains(t *testing.T) {
	cost := func(n int) (allocs float64) {
		settledWorld(t, n, func(w *world) {
			for i := range n {
				w.Services.Set(service(fmt.Sprintf("s%d", i), []string{"10.0.0.1"}))
			}
			w.put()
			i := 0
			allocs = testing.AllocsPerRun(50, func() {
				i++
				w.put(service("s0", []string{"10.0.0.1", "10.0.0.9"}[:1+i%2]))
			})
		})
		return allocs
	}
	if few, many := cost(10), cost(2000); many > 1.5*few {
		t.Errorf("%v allocations among 10 drains, %v among 2,000", few, many)
	}
}

// A thousand services that drain with one deadline end in one pass. The queries to the dataplane
// about them take one round per second, and storing them takes a few writes.
func TestMassDrain(t *testing.T) {
	settledWorld(t, 1000, func(w *world) {
		w.changedRows()
		w.store.fsync = 10 * time.Millisecond
		for i := range 1000 {
			w.Services.Delete(key(fmt.Sprintf("s%d", i)))
		}
		w.put()
		w.pass(10 * time.Second)
		n := w.conns.count()
		expect.Equal(t, n, 10_000, "asked %d times about 1,000 frontends in 10 s, want 10,000", n)
		expect.Equal(t, w.changedRows(), 1000, "rows changed for 1,000 frontends that begin to leave")
		stored, began := w.store.has()
		w.pass(50 * time.Second)
		w.expect()
		w.pass(time.Second)
		left, ended := w.store.has()
		if len(stored) != 1000 || len(left) != 0 || began > 4 || ended-began > 4 {
			t.Errorf("%d durable writes for %d drains that begin, %d to leave %d at their end", began, len(stored), ended-began, len(left))
		}
	})
}

// The cost of each frontend that leaves with its own deadline doesn't depend on their number.
func TestMassDrainWithManyDeadlines(t *testing.T) {
	cost := func(n int) (each float64) {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			c := w.bareCompile()
			each = testing.AllocsPerRun(2, func() {
				start := vip.InstantOf(time.Now())
				for i := range n {
					e := vip.Endpoint{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Leaving: start.Add(time.Duration(1+(i*7919)%n) * time.Millisecond)}
					c.drains.set(vip.Frontend{
						Key:      vip.FrontendKey{Addr: netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), Port: 80, Protocol: vip.TCP},
						Backends: []vip.Endpoint{e},
					})
				}
				for left := n; left > 0; left-- {
					if got := w.Frontends.Len(); got != left {
						t.Fatalf("%d frontends, want %d", got, left)
					}
					time.Sleep(time.Millisecond)
					c.drains.advance()
				}
			}) / float64(n)
			expect.Equal(t, w.Frontends.Len(), 0, "frontends stay")
			c.drains.timer.Stop()
		})
		return each
	}
	few, many := cost(50), cost(1000)
	t.Logf("%v allocations a frontend among 50, %v among 1,000", few, many)
	expect.AtMost(t, many, 1.5*few, "%v allocations a frontend among 50 that leave, %v among 1,000", few, many)
}
