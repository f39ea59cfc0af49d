package pipeline

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

func TestServicesThatComeTogetherAreOneCommit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		for _, name := range []string{"a", "b", "c"} {
			w.Services.Set(service(name, nil))
		}
		w.run().put()
		if got := w.allocator.asked(); len(got) != 1 || len(got[0]) != 3 {
			t.Errorf("asked for %v, want one batch of three", got)
		}
		w.put(service("b", nil, func(s *vip.Service) { s.VIPs = addrs("192.0.2.50") }))
		if got := w.allocator.asked(); len(got) != 1 || !slices.Equal(got[0], []vip.ServiceKey{key("b")}) {
			t.Errorf("asked for %v, want only the service that changed", got)
		}
		w.stop()
	})
}

// Services that come at once, as at a start, share few commits: each one writes the leases of
// shared VIPs with all of their holders.
func TestManyServicesAreFewCommits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const n = 10_000
		w := newWorld(t, nil)
		w.allocator.capacity = n
		for i := range n {
			w.Services.Set(service(fmt.Sprintf("s%d", i), nil))
		}
		w.run().put()
		expect.AtMost(t, len(w.allocator.asked()), commitParts+1, "commits of %d services", n)
		w.stop()
	})
}

// The allocator is called only when something that it reads changes. In every case the answer is
// for the newest revision.
func TestAllocatorReceivesWhatIsRequested(t *testing.T) {
	requests := map[string]func(*vip.Service){
		"Source":       func(s *vip.Service) { s.Source = "rest" },
		"Pool":         func(s *vip.Service) { s.Pool = "q" },
		"VIPs":         func(s *vip.Service) { s.VIPs = addrs("192.0.2.50") },
		"Assigned":     func(s *vip.Service) { s.Assigned = true },
		"Families":     func(s *vip.Service) { s.Families = vip.FamiliesOf(vip.IPv4) },
		"ShareKey":     func(s *vip.Service) { s.ShareKey = "k" },
		"Ports":        func(s *vip.Service) { s.Ports[0].NodePort.Auto = true },
		"DrainTimeout": func(s *vip.Service) { s.DrainTimeout++ },
	}
	untold := map[string]func(*vip.Service){
		"Origin":    func(s *vip.Service) { s.Origin = "b.toml:1" },
		"Hostnames": func(s *vip.Service) { s.Hostnames = vip.HostnamesOf("shop.example.com") },
		"Labels":    func(s *vip.Service) { s.Labels = map[string]string{"a": "b"} },
		"weight":    func(s *vip.Service) { s.Backends[0].Weight++ },
		"backends":  func(s *vip.Service) { s.Backends = nil },
		"nothing":   func(*vip.Service) {},
	}
	check := func(changes map[string]func(*vip.Service), asks int) {
		for name, change := range changes {
			t.Run(name, func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					w.put(service("a", []string{"10.0.0.1"}))
					w.allocator.asked()
					s := service("a", []string{"10.0.0.1"})
					change(&s)
					for _, want := range []int{asks, 0} { // the second time nothing has changed
						w.put(s)
						got := len(w.allocator.asked())
						expect.Equal(t, got, want, "asked %d times", got)
						_, rev, _ := w.Services.Get(s.Key)
						row, _, _ := w.Compiled.Get(s.Key)
						expect.Equal(t, row.ServiceRev, rev, "revision %d is compiled", row.ServiceRev)
					}
				})
			})
		}
	}
	check(requests, 1)
	check(untold, 0)
}

// An answer becomes invalid with a problem, a deletion or a new configuration: the same request is
// sent again.
func TestAllocatorIsAskedAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		expect := func(when string, asks int) {
			t.Helper()
			got := len(w.allocator.asked())
			expect.Equal(t, got, asks, "%s: asked %d times", when, got)
		}
		taken := service("a", nil, func(s *vip.Service) { s.VIPs = addrs("192.0.2.60") })
		w.put(service("other", nil, func(s *vip.Service) { s.VIPs = addrs("192.0.2.60") }), service("a", nil))
		w.allocator.asked()
		w.put(taken)
		expect("a request that is refused", 1)
		w.put(taken)
		expect("the same again", 1)
		w.put(service("a", nil))
		expect("the request that was granted before", 1)
		w.put(service("a", nil))
		expect("the same again", 0)
		w.remove("a")
		w.allocator.asked()
		w.put(service("a", nil))
		expect("back after a deletion", 1)
		w.allocator.reconfigure()
		w.put(service("a", nil))
		expect("a new configuration", 1)
	})
}

// A recalled service is requested again although it lacks nothing, unless it was deleted meanwhile.
func TestRecalledServiceIsAskedForAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("a", []string{"10.0.0.1"}), service("b", nil))
		w.allocator.asked()
		w.allocator.set(func(a *fakeAllocator) { a.vips[key("a")] = addrs("192.0.2.77")[0] }) // as another host did
		w.allocator.recall(key("a"), key("never was"))
		w.put()
		w.expect("192.0.2.1:80/tcp a: 10.0.0.1:80*0@1m0s", "192.0.2.2:80/tcp b:", "192.0.2.77:80/tcp a: 10.0.0.1:80*1")
		if got := w.allocator.asked(); len(got) != 1 || !slices.Equal(got[0], []vip.ServiceKey{key("a")}) {
			t.Errorf("asked for %v", got)
		}
		w.put()
		expect.Empty(t, w.allocator.asked(), "asked again for")
	})
}

// A service that another host must process keeps its grant, and callers that wait for it continue
// to wait.
func TestServiceThatWaitsForAnotherHost(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("kept", nil))
		w.allocator.set(func(a *fakeAllocator) { a.others = map[vip.ServiceKey]bool{key("a"): true, key("kept"): true} })
		w.put(service("a", []string{"10.0.0.1"}), service("kept", nil, func(s *vip.Service) { s.VIPs = addrs("192.0.2.50") }))
		w.expect("192.0.2.1:80/tcp kept:")
		expect.SameList(t, w.problems("a"), []string{vip.CodeWaiting}, "problems")
		waited := make(chan []vip.Problem, 1)
		_, rev, _ := w.Services.Get(key("a"))
		go func() {
			p := w.Progress()
			p.Applied = table.New(&table.Clock{}, reconcile.KeyOfApplied, nil)
			problems, err := p.WaitApplied(t.Context(), key("a"), "static", rev)
			if err == nil {
				waited <- problems
			}
		}()
		w.pass(time.Second)
		select {
		case problems := <-waited:
			t.Fatalf("waiting ended with %v", problems)
		default:
		}
		w.allocator.set(func(a *fakeAllocator) {
			a.others, a.capacity = nil, 0 // so that it is compiled to nothing, because there is no dataplane to wait for
		})
		w.allocator.recall(key("a"))
		w.put()
		if problems := <-waited; len(problems) != 1 || problems[0].Code != vip.CodePoolFull {
			t.Errorf("waited for %v", problems)
		}
	})
}

func TestWaitingServiceGetsWhatBecomesFree(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.allocator.set(func(a *fakeAllocator) { a.capacity = 1 })
		w.put(service("a", nil), service("b", nil), service("c", nil))
		w.expect("192.0.2.1:80/tcp a:")
		expect.SameList(t, w.problems("b"), []string{vip.CodePoolFull}, "b has problems")
		w.allocator.asked()
		w.remove("a")
		w.expect("192.0.2.2:80/tcp b:") // the one that waited longest
		if got := w.allocator.asked(); len(got) != 1 || !slices.Equal(got[0], []vip.ServiceKey{key("b"), key("c")}) {
			t.Errorf("asked for %v, want the waiting ones in their order", got)
		}
		expect.Empty(t, w.problems("b"), "b still has problems")
	})
}

func TestUpdateWithProblemsKeepsFormerAddress(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("a", nil), service("b", []string{"10.0.0.1"}))
		w.put(service("b", []string{"10.0.0.2"}, on("", "192.0.2.1")))
		w.expect("192.0.2.1:80/tcp a:", "192.0.2.2:80/tcp b: 10.0.0.1:80*0@1m0s 10.0.0.2:80*1")
		expect.SameList(t, w.problems("b"), []string{vip.CodeAddressTaken}, "b has problems")
		row, _, _ := w.Compiled.Get(key("b"))
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
			expect.SameList(t, w.problems(name), []string{vip.CodeStore}, "%s has problems", name)
		}
		row, _, _ := w.Compiled.Get(key("a"))
		if _, rev, _ := w.Services.Get(key("a")); row.ServiceRev != rev {
			t.Error("the newest row of a is not compiled: a broken disk must not hold up its backends")
		}

		w.allocator.asked()
		w.pass(5 * time.Minute)
		if n := len(w.allocator.asked()); n < 30 || n > 60 {
			t.Errorf("tried %d times in 5 minutes", n)
		}
		w.allocator.set(func(a *fakeAllocator) { a.down = false })
		w.pass(10 * time.Second)
		released, _, _ := w.allocator.received()
		expect.SameList(t, released, []string{"gone 1m0s"}, "released")
		w.pass(time.Minute)
		w.expect("192.0.2.3:80/tcp new:", "192.0.2.50:80/tcp a: 10.0.0.2:80*1")
		var kinds []string
		events, _ := w.events.Since(0)
		for _, e := range events {
			if e.Kind != "backend_drained" {
				kinds = append(kinds, e.Kind)
			}
		}
		expect.SameList(t, kinds, []string{"lease_store_down", "lease_store_up"}, "events")
		w.allocator.asked()
		w.pass(time.Hour)
		expect.Empty(t, w.allocator.asked(), "still trying")
	})
}

// A store that accepts part of its input, and the rest later, isn't down: the rest is retried soon.
func TestSlowStoreIsNotDown(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.allocator.set(func(a *fakeAllocator) { a.few = 2 })
		for i := range 40 {
			w.Services.Set(service(fmt.Sprintf("s%d", i), nil))
		}
		w.pass(3 * time.Second)
		for i := range 40 {
			expect.Empty(t, w.problems(fmt.Sprintf("s%d", i)), "s%d has problems", i)
		}
		events, _ := w.events.Since(0)
		for _, e := range events {
			expect.True(t, e.Kind != "lease_store_down", "event %+v", e)
		}
	})
}

// The release of many services takes a few commits, also after an outage of the store. One that is rejected by itself
// delays no other.
func TestReleasesThatWaited(t *testing.T) {
	settledWorld(t, 1200, func(w *world) {
		w.allocator.set(func(a *fakeAllocator) { a.down = true })
		for i := range 1200 {
			w.Services.Delete(key(fmt.Sprintf("s%d", i)))
		}
		w.put()
		// Three if the feed has all of them at once; the stage may run meanwhile.
		expect.AtMost(t, w.allocator.releases, 120, "commits for 1,200 deletions")
		w.allocator.set(func(a *fakeAllocator) { a.down, a.stuck, a.releases = false, key("s5"), 0 })
		w.pass(10 * time.Second)
		released, _, _ := w.allocator.received()
		if n := w.allocator.releases; len(released) != 1199 || n > 12 {
			t.Errorf("released %d services with %d commits", len(released), n)
		}
		w.allocator.set(func(a *fakeAllocator) { a.stuck = vip.ServiceKey{} })
		w.pass(10 * time.Second)
		if released, _, _ := w.allocator.received(); len(released) != 1200 || released[1199] != "s5 1m0s" {
			t.Errorf("released %d services, last %s", len(released), released[len(released)-1])
		}
	})
}

func TestServiceThatReturnsIsNotReleased(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("a", []string{"10.0.0.1"}))
		w.Services.Delete(key("a"))
		w.put(service("a", []string{"10.0.0.1"})) // before the feed was read
		if released, _, _ := w.allocator.received(); len(released) != 0 {
			t.Errorf("released %v", released)
		}
		w.allocator.set(func(a *fakeAllocator) { a.down = true })
		w.remove("a")
		w.put(service("a", []string{"10.0.0.1"}))
		w.allocator.set(func(a *fakeAllocator) { a.down = false })
		w.pass(time.Hour)
		if released, _, _ := w.allocator.received(); len(released) != 0 {
			t.Errorf("released %v after it was back", released)
		}
		w.expect("192.0.2.1:80/tcp a: 10.0.0.1:80*1")
	})
}

// A deletion may be read when the service already exists again: only the row counts.
func TestOutdatedDeletionIsPassedOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		a := newAllocate(w.options())
		w.Services.Set(service("a", nil))
		w.Allocations.Set(vip.Allocation{Asked: &vip.Service{Key: key("a")}})
		var ask queue
		a.take(&table.Change[vip.Service]{Row: &serviceRow{Value: vip.Service{Key: key("a")}}, Deleted: true}, &ask)
		if _, _, there := w.Allocations.Get(key("a")); !there || a.releases.len() != 0 {
			t.Error("a service that is there was given up")
		}
	})
}

// A host that can't be read must not prevent the fleet from getting addresses.
func TestHostUnknownForLong(t *testing.T) {
	inLateWorld(t, func(t *testing.T, w *world, sourcesSynced, hostKnown, statesKnown func()) {
		sourcesSynced()
		statesKnown()
		w.put(service("a", nil))
		w.pass(hostWait - time.Millisecond)
		expect.Equal(t, w.Allocations.Len(), 0, "allocated without waiting for the host")
		if table.IsClosed(w.Frontends.Ready()) {
			t.Error("frontends are complete without waiting for the host's node ports")
		}
		w.pass(time.Millisecond)
		w.expect("192.0.2.1:80/tcp a:")
		if !table.IsClosed(w.Frontends.Ready()) || !table.IsClosed(w.Compiled.Ready()) {
			t.Error("frontends never become complete, and what waits for that never works")
		}
		if events, _ := w.events.Since(0); len(events) != 1 || events[0].Kind != "host_unknown" {
			t.Errorf("events %+v", events)
		}
		// When its addresses are known later, its node ports are served.
		w.put(service("a", nil, nodePort))
		w.expect("192.0.2.1:80/tcp a:")
		w.Host.Set(hostAddrs("10.9.0.1/24"))
		hostKnown()
		w.put()
		w.expect("10.9.0.1:30080/tcp a:", "192.0.2.1:80/tcp a:")
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
				w.stop() // synctest fails the test if a goroutine remains
			})
		})
	}
}
