package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
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
		expect.Equal(t, w.changedRows(), 1, "changes for one end of a drain")
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
		expect.Equal(t, w.Compiled.Len()+w.Allocations.Len(), 0, "rows of deleted services")
		released, _, _ := w.allocator.received()
		want := []string{"web 1m0s", "db 1m0s"}
		expect.SameList(t, released, want, "released %v, want %v: cooling must outlast the drain", released, want)
		w.pass(time.Minute)
		w.expect()
	})
}

func TestNothingLeavesLaterWithoutATimeout(t *testing.T) {
	f := vip.Frontend{Key: vip.FrontendKey{Protocol: vip.TCP}}
	left := withLeaving(&f, []vip.Endpoint{{Weight: 1}}, vip.InstantOf(time.Now()))
	expect.Empty(t, left, "is first put into a row and then taken out")
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
			expect.Len(t, c.drains.questions(), tc.want, "%+v, row %d: questions", tc.applied, rev)
		}
	})
}

func TestUnreadableConnectionsLeaveItToTheDeadline(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}))
		w.put(service("web", []string{"10.0.0.1"}))
		w.pass(59 * time.Second)
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@1s")
		n := w.conns.count()
		expect.AtLeast(t, n, 50, "asked %d times in 59 s", n)
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
		n := again.Frontends.Len()
		expect.Equal(t, n, 0, "frontends before anything is known: restored alone, they would take the others' place")
		again.put(service("web", []string{"10.0.0.1"}))
		have := again.plane.Have()
		if got := showFrontend(have[vip.FrontendKey{Addr: addrs("192.0.2.1")[0], Port: 80, Protocol: vip.TCP}]); got !=
			"192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@20s" {
			t.Errorf("after the first compile the dataplane has %s", got)
		}
		expect.Equal(t, len(have), 3, "the dataplane has %d frontends: removed before the sources were read", len(have))
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
		values, _ := w.store.has()
		expect.Len(t, values, 1, "the store has")
		w.put(service("web", []string{"10.0.0.1"}))
		short, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		expect.Is(t, w.compiler.WaitKept(short), context.DeadlineExceeded, "half way")
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
		_, writes := w.store.has()
		expect.AtMost(t, writes, 2, "durable writes for one frontend")
		w.changedRows()
		w.pass(time.Minute)
		w.expect("192.0.2.1:80/tcp web:")
		expect.Equal(t, w.changedRows(), 1, "rows changed at the end of 100 drains with one deadline")
	})
}

// The agent's parts implement the interfaces of the stages.
var (
	_ Allocator  = (*allocator.Allocator)(nil)
	_ DrainStore = (*store.Bucket[vip.Frontend])(nil)
)

// A real store returns a drain as it was written, to the nanosecond.
func TestDrainsInTheRealStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ironvip.db")
	db, err := store.Open(path)
	must.Succeed(t, err)
	want := vip.Frontend{
		Key: vip.FrontendKey{Addr: netip.MustParseAddr("2001:db8::1"), Port: 80, LastPort: 89, Protocol: vip.TCP, Audience: vip.InternalClients}, Kind: vip.OnVIP,
		Service: key("web"), Port: "http", Scheduler: vip.MaglevHash, SchedulerFallback: true, SchedulerPort: true,
		SourceRanges: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}, Forward: vip.ForwardNAT, Affinity: time.Hour, Masquerade: vip.MasqueradeOwn, DrainTimeout: time.Minute,
		Relay:    &vip.ProxySettings{ProxyProtocol: vip.ProxyV2, AcceptProxyFrom: []netip.Prefix{netip.MustParsePrefix("2001:db8::/64")}},
		Backends: []vip.Endpoint{{Addr: netip.MustParseAddrPort("[2001:db8::2]:80"), Leaving: vip.InstantOf(time.Now().Add(time.Minute))}},
	}
	must.Succeed(t, store.NewBucket[vip.Frontend](db, "drains").Put(want.Key.String(), want))
	must.Succeed(t, db.Close())
	if db, err = store.Open(path); err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	all, err := store.NewBucket[vip.Frontend](db, "drains").All()
	if got := all["[2001:db8::1]:80-89/tcp+internal"]; err != nil || len(all) != 1 || !compile.SameFrontend(got, want) {
		t.Errorf("read %+v, %v; written was %+v", all, err, want)
	}
}

// A step of the host's clock after the start neither cuts connections nor keeps them longer.
func TestDrainsTakeAsLongWhoeverSetsTheClock(t *testing.T) {
	for _, set := range []time.Duration{time.Hour, -time.Hour, 50 * 365 * 24 * time.Hour, 2 * time.Second} {
		t.Run(set.String(), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				web := func(left time.Duration, more string) string {
					return fmt.Sprintf("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@%s%s", left, more)
				}
				w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}))
				w.put(service("web", []string{"10.0.0.1"}))
				w.pass(20 * time.Second)
				w.setClock(set)
				w.put(service("web", []string{"10.0.0.1", "10.0.0.3"}))
				w.expect(web(40*time.Second, " 10.0.0.3:80*1"))
				w.setClock(-set)
				w.pass(idlePoll)
				w.setClock(set)
				w.pass(idlePoll) // nothing else happens
				w.expect(web(38*time.Second, " 10.0.0.3:80*1"))
				if values, _ := w.store.has(); len(values) != 1 || values["192.0.2.1:80/tcp"].Backends[0].Leaving != vip.InstantOf(time.Now().Add(38*time.Second)) {
					t.Errorf("the store has %v", values)
				}
				w.pass(37 * time.Second)
				w.expect(web(time.Second, " 10.0.0.3:80*1"))
				w.pass(time.Second)
				w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.3:80*1")
				w.expectStored()
			})
		})
	}
}

// A step of the host's clock has no effect on restored drains that wait for their frontend, either.
func TestRestoredDrainsTakeAsLongWhoeverSetsTheClock(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil).run()
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}))
		w.put(service("web", []string{"10.0.0.1"}))
		w.stop()
		again := newWorld(t, w)
		ready := again.Services.Initializer()
		again.run().put()
		again.pass(20 * time.Second)
		again.setClock(time.Hour)
		again.Services.Set(service("web", []string{"10.0.0.1"}))
		ready()
		again.put()
		again.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@40s")
		again.pass(40 * time.Second)
		again.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1")
		again.stop()
	})
}
