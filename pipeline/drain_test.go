package pipeline

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/vip"
)

const (
	web1 = "192.0.2.1:80/tcp web: 10.0.0.1:80*1"
	web2 = "192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*1"
)

// expectStored compares the names of the drains in the store.
func (w *world) expectStored(want ...string) {
	w.t.Helper()
	values, _ := w.store.has()
	if got := slices.Sorted(maps.Keys(values)); !slices.Equal(got, want) {
		w.t.Errorf("the store has %v, want %v", got, want)
	}
}

func TestRemovedBackendDrains(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}))
		w.expect(web2)
		w.put(service("web", []string{"10.0.0.1"}))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@1m0s")
		w.pass(20 * time.Second)
		// Other changes of the service don't postpone the deadline.
		w.put(service("web", []string{"10.0.0.1", "10.0.0.3"}, func(s *vip.Service) { s.DrainTimeout = time.Hour }))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@40s 10.0.0.3:80*1")
		w.pass(39 * time.Second)
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@1s 10.0.0.3:80*1")
		w.changedRows()
		w.pass(time.Second)
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.3:80*1")
		if n := w.changedRows(); n != 1 {
			t.Errorf("%d changes for one end of a drain", n)
		}
		if events, _ := w.events.Since(0); len(events) != 1 || events[0].Kind != "backend_drained" || events[0].Service != "web" {
			t.Errorf("events %+v", events)
		}
	})
}

func TestDeletedServiceDrainsThenIsGone(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}), service("db", nil))
		w.remove("web", "db")
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*0@1m0s 10.0.0.2:80*0@1m0s")
		if n := w.Compiled.Len() + w.Allocations.Len(); n != 0 {
			t.Errorf("%d rows of deleted services", n)
		}
		released, _, _ := w.allocator.received()
		if want := []string{"web 1m0s", "db 1m0s"}; !slices.Equal(released, want) {
			t.Errorf("released %v, want %v: cooling must outlast the drain", released, want)
		}
		w.pass(time.Minute)
		w.expect()
	})
}

func TestNothingLeavesLaterWithoutATimeout(t *testing.T) {
	f := vip.Frontend{Key: vip.FrontendKey{Protocol: vip.TCP}}
	if left := withLeaving(&f, []vip.Endpoint{{Weight: 1}}, vip.InstantOf(time.Now())); len(left) != 0 {
		t.Errorf("%v is first put into a row and then taken out", left)
	}
}

func TestIdleBackendLeavesEarly(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		busy := netip.MustParseAddrPort("10.0.0.2:80")
		w.conns.set(map[netip.AddrPort]int{busy: 3}, nil)
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}))
		w.pass(time.Minute)
		if n := w.conns.count(); n != 0 {
			t.Errorf("asked for connections %d times with nothing leaving", n)
		}
		w.put(service("web", []string{"10.0.0.1"}))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@1m0s 10.0.0.3:80*0@1m0s")
		w.pass(idlePoll)
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@59s")
		w.pass(10 * idlePoll)
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@49s")
		w.conns.set(nil, nil)
		w.pass(idlePoll)
		w.expect(web1)
		asked := w.conns.count()
		w.pass(time.Minute)
		if n := w.conns.count() - asked; n != 0 {
			t.Errorf("asked for connections %d times with nothing leaving", n)
		}
		w.remove("web")
		w.pass(idlePoll)
		w.expect()
	})
}

// A backend that still gets connections from the dataplane may be idle by chance.
func TestBackendIsIdleOnlyOnceTheDataplaneKnows(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.conns.set(nil, nil)
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}))
		frontend := sortedFrontends(w.Frontends)[0].Key
		w.plane.FailKey(frontend, errFull)
		w.put(service("web", []string{"10.0.0.1"}))
		w.pass(30 * time.Second)
		if row, _, _ := w.Frontends.Get(frontend); len(row.Backends) != 2 {
			t.Errorf("taken out before the dataplane stopped using it: %s", showFrontend(row))
		}
		w.plane.FailKey(frontend, nil)
		w.pass(25 * time.Second) // the reconciler's backoff, and a poll
		w.expect(web1)
	})
}

// A late answer of the dataplane doesn't apply to a backend that meanwhile returned, took
// connections and left again.
func TestLateAnswerIsNotOfTheNextDrain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		both := service("web", []string{"10.0.0.1", "10.0.0.2"})
		w.put(both)
		w.put(service("web", []string{"10.0.0.1"}))
		answer := w.conns.hold()
		w.pass(3 * time.Second)
		w.put(both)
		w.put(service("web", []string{"10.0.0.1"}))
		w.conns.set(nil, errors.New("not asked again in this test"))
		answer()
		w.put()
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@1m0s")
	})
}

func TestNoQuestionBeforeTheDataplaneHasTheRow(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		c := w.bareCompile()
		f := vip.Frontend{
			Key:      vip.FrontendKey{Addr: addrs("192.0.2.1")[0], Port: 80, Protocol: vip.TCP},
			Backends: []vip.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Leaving: vip.InstantOf(time.Now().Add(time.Minute))}},
		}
		rev := c.drains.set(f).Rev
		row := func(rev uint64) *table.Row[vip.Frontend] { return &table.Row[vip.Frontend]{Value: f, Rev: rev} }
		for _, tc := range []struct {
			applied reconcile.AppliedFrontend
			want    int
		}{
			{reconcile.AppliedFrontend{Tried: row(rev - 1)}, 0},
			{reconcile.AppliedFrontend{Tried: row(rev), Problem: &vip.Problem{}}, 0},
			{reconcile.AppliedFrontend{Tried: row(rev)}, 1},
		} {
			w.Applied.Set(tc.applied)
			if got := c.drains.questions(); len(got) != tc.want {
				t.Errorf("%+v, row %d: questions %+v", tc.applied, rev, got)
			}
		}
	})
}

func TestUnreadableConnectionsLeaveItToTheDeadline(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}))
		w.put(service("web", []string{"10.0.0.1"}))
		w.pass(59 * time.Second)
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@1s")
		if n := w.conns.count(); n < 50 {
			t.Errorf("asked %d times in 59 s", n)
		}
		w.pass(time.Second)
		w.expect(web1)
	})
}

// Another service takes over the frontend of a deleted service while it drains: open connections of
// the former and new ones of the latter continue.
func TestDrainingFrontendIsTakenOver(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("old", []string{"10.0.0.1", "10.0.0.2"}, on("", "192.0.2.9")))
		w.remove("old")
		w.pass(20 * time.Second)
		w.put(service("new", []string{"10.0.0.2", "10.0.0.3"}, on("", "192.0.2.9")))
		w.expect("192.0.2.9:80/tcp new: 10.0.0.1:80*0@40s 10.0.0.2:80*1 10.0.0.3:80*1")
		w.pass(40 * time.Second)
		w.expect("192.0.2.9:80/tcp new: 10.0.0.2:80*1 10.0.0.3:80*1")
		w.put(service("new", nil, on("", "192.0.2.9")))
		w.pass(time.Minute)
		w.expect("192.0.2.9:80/tcp new:") // it remains, to reject clients
	})
}

func TestDrainSurvivesRestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil).run()
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}), service("db", []string{"10.0.0.9"}), service("old", []string{"10.0.0.8"}))
		w.remove("old")
		w.pass(30 * time.Second)
		w.put(service("web", []string{"10.0.0.1"}))
		w.remove("db")
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@1m0s",
			"192.0.2.2:80/tcp db: 10.0.0.9:80*0@1m0s", "192.0.2.3:80/tcp old: 10.0.0.8:80*0@30s")
		w.stop()
		time.Sleep(40 * time.Second)

		again := newWorld(t, w)
		synced := again.Services.Initializer()
		again.run()
		synctest.Wait()
		if n := again.Frontends.Len(); n != 0 {
			t.Errorf("%d frontends before anything is known: restored alone, they would take the others' place", n)
		}
		again.put(service("web", []string{"10.0.0.1"}))
		have := again.plane.Have()
		if got := showFrontend(have[vip.FrontendKey{Addr: addrs("192.0.2.1")[0], Port: 80, Protocol: vip.TCP}]); got !=
			"192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@20s" {
			t.Errorf("after the first compile the dataplane has %s", got)
		}
		if len(have) != 3 {
			t.Errorf("the dataplane has %d frontends: removed before the sources were read", len(have))
		}
		synced()
		again.put()
		again.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@20s", "192.0.2.2:80/tcp db: 10.0.0.9:80*0@20s")
		again.expectStored("192.0.2.1:80/tcp", "192.0.2.2:80/tcp")
		again.pass(20 * time.Second)
		again.expect(web1)
		again.expectStored()
		again.stop()
	})
}

func TestBackendReturnsAcrossRestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil).run()
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}))
		w.put(service("web", []string{"10.0.0.1"}))
		w.stop()
		again := newWorld(t, w)
		again.Services.Set(service("web", []string{"10.0.0.1", "10.0.0.2"}))
		again.run().put()
		again.expect(web2)
		again.expectStored()
		again.stop()
	})
}

func TestStoredDrainsAreNotTrusted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		stored := func(name, addr string, backends ...vip.Endpoint) {
			f := vip.Frontend{Key: vip.FrontendKey{Addr: addrs(addr)[0], Port: 80, Protocol: vip.TCP}, Service: key("x"), Backends: backends}
			w.store.values[name] = f
		}
		at := netip.MustParseAddrPort
		stored("192.0.2.1:80/tcp", "192.0.2.1",
			vip.Endpoint{Addr: at("10.0.0.2:80"), Weight: 7, Leaving: vip.InstantOf(time.Now().Add(1000 * time.Hour))},
			vip.Endpoint{Addr: at("10.0.0.1:80"), Leaving: vip.InstantOf(time.Now().Add(time.Minute))},
			vip.Endpoint{Addr: at("10.0.0.3:80")})
		stored("192.0.2.2:80/tcp", "192.0.2.2", vip.Endpoint{Addr: at("10.0.0.1:80"), Leaving: vip.InstantOf(time.Now())})
		stored("else", "192.0.2.3", vip.Endpoint{Addr: at("10.0.0.1:80"), Leaving: vip.InstantOf(time.Now().Add(time.Minute))})
		w.run().put()
		w.expect("192.0.2.1:80/tcp x: 10.0.0.1:80*0@1m0s 10.0.0.2:80*0@24h0m0s")
		w.expectStored("192.0.2.1:80/tcp")
		w.pass(time.Minute)
		w.expect("192.0.2.1:80/tcp x: 10.0.0.2:80*0@23h59m0s")
		w.stop()
	})
}

// After a change is reported as applied, its drains survive a kill, unless the disk has rejected
// them: nothing waits for that.
func TestWaitKept(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		wait := func(want time.Duration) {
			t.Helper()
			began := time.Now()
			if err := w.compiler.WaitKept(t.Context()); err != nil || time.Since(began) != want {
				t.Errorf("%v after %v, want %v", err, time.Since(began), want)
			}
		}
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}))
		wait(0)
		w.store.mu.Lock()
		w.store.fsync = time.Second
		w.store.mu.Unlock()
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*1 10.0.0.3:80*0@1m0s")
		wait(time.Second)
		if values, _ := w.store.has(); len(values) != 1 {
			t.Errorf("the store has %v", values)
		}
		w.put(service("web", []string{"10.0.0.1"}))
		short, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if err := w.compiler.WaitKept(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("half way: %v", err)
		}
		wait(time.Second / 2)
		w.store.fail(errFull)
		w.remove("web")
		wait(time.Second)
		w.store.fail(nil)
	})
}

func TestManyDrainsOfOneFrontendAreOneWrite(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var all []string
		for i := range 100 {
			all = append(all, netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}).String())
		}
		w.put(service("web", all))
		w.put(service("web", nil))
		if _, writes := w.store.has(); writes > 2 {
			t.Errorf("%d durable writes for one frontend", writes)
		}
		w.changedRows()
		w.pass(time.Minute)
		w.expect("192.0.2.1:80/tcp web:")
		if n := w.changedRows(); n != 1 {
			t.Errorf("%d rows changed at the end of 100 drains with one deadline", n)
		}
	})
}
