package pipeline

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// waiter runs a wait in the background and reports whether it has ended.
type waiter struct {
	done     chan struct{}
	problems []vip.Problem
	err      error
}

// inBackground starts a wait that has no end of its own.
func inBackground(wait func(context.Context) ([]vip.Problem, error)) *waiter {
	out := &waiter{done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	go func() {
		defer close(out.done)
		defer cancel()
		out.problems, out.err = wait(ctx)
	}()
	synctest.Wait()
	return out
}

func (w *world) wait(name string, rev uint64) *waiter {
	return inBackground(func(ctx context.Context) ([]vip.Problem, error) {
		return w.Progress().WaitApplied(ctx, key(name), "static", rev)
	})
}

// waitGone waits for the end of a service that was compiled as last.
func (w *world) waitGone(name string, last Compiled) *waiter {
	return inBackground(func(ctx context.Context) ([]vip.Problem, error) { return w.Progress().WaitGone(ctx, key(name), last) })
}

// waitTried waits until the dataplane has tried the frontends of a service.
func (w *world) waitTried(name string) *waiter {
	return inBackground(func(ctx context.Context) ([]vip.Problem, error) { return w.Progress().WaitTried(ctx, key(name)) })
}

func (w *waiter) expect(t *testing.T, when string, ended bool, codes ...string) {
	t.Helper()
	synctest.Wait()
	if table.IsClosed(w.done) != ended {
		t.Fatalf("%s: the wait has ended: %t", when, !ended)
	}
	if !ended {
		return
	}
	expect.Succeed(t, w.err, when)
	must.Len(t, w.problems, len(codes), "%s: problems %+v, want %v", when, w.problems, codes)
	for i, p := range w.problems {
		if p.Code != codes[i] || p.Service == "" {
			t.Errorf("%s: problem %+v, want code %s and a service", when, p, codes[i])
		}
	}
}

func TestWaitUntilApplied(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		rev := w.Services.Set(service("web", []string{"10.0.0.1"}))
		early := w.wait("web", rev)
		early.expect(t, "after it was applied", true)

		// A change without effect on frontends is applied once it is compiled.
		rev = w.Services.Set(service("web", []string{"10.0.0.1"}, func(s *vip.Service) { s.Origin = "x" }))
		w.wait("web", rev).expect(t, "nothing to program", true)

		// An older revision than the newest is already applied.
		w.wait("web", rev-1).expect(t, "older revision", true)

		// A setting that has no effect is applied, and reported.
		rev = w.Services.Set(service("web", []string{"10.0.0.1"}, func(s *vip.Service) { s.Relay = &vip.ProxySettings{IdleTimeout: time.Minute, MaxQueue: 5} }))
		w.wait("web", rev).expect(t, "without effect", true)
		expect.SameList(t, w.problems("web"), []string{vip.CodeIneffective, vip.CodeIneffective}, "problems")

		w.put(service("web", []string{"10.0.0.1"}, port(443)))
		w.plane.FailKey(sortedFrontends(w.Frontends)[0].Key, errFull)
		rev = w.Services.Set(service("web", []string{"10.0.0.2"}, port(443)))
		w.wait("web", rev).expect(t, "one of two frontends failed", true, vip.CodeDataplane)

		w.allocator.set(func(a *fakeAllocator) { a.capacity = 0 })
		rev = w.Services.Set(service("db", nil, unsupported))
		w.wait("db", rev).expect(t, "nothing granted", true, vip.CodePoolFull, vip.CodeUnsupported)
	})
}

// A wait ends at once when its service is deleted, or when the service of another source has its name.
func TestWaitEndsWithItsService(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		late := func() (uint64, vip.Service) { // a service that the allocator has not answered yet
			w.allocator.set(func(a *fakeAllocator) { a.others = map[vip.ServiceKey]bool{key("web"): true} })
			s := service("web", []string{"10.0.0.1"})
			return w.Services.Set(s), s
		}
		expect := func(when string, heir string, all ...*waiter) {
			t.Helper()
			synctest.Wait()
			for _, wait := range all {
				var gone *GoneError
				if !table.IsClosed(wait.done) || !errors.As(wait.err, &gone) || *gone != (GoneError{key("web"), heir}) {
					t.Fatalf("%s: ended %t with %v", when, table.IsClosed(wait.done), wait.err)
				}
			}
		}
		tried := func() *waiter { return w.waitTried("web") }
		expect("never there", "", w.wait("web", 1), tried())

		rev, s := late()
		before := w.wait("web", rev)
		before.expect(t, "no answer of the allocator", false)
		w.Services.Delete(s.Key)
		expect("deleted", "", before, w.wait("web", rev), tried())

		rev, s = late()
		before = w.wait("web", rev)
		s.Source = "files"
		w.Services.Set(s)
		expect("another source has the name", "files", before, w.wait("web", rev))
		tried().expect(t, "of any source", true)
	})
}

// A wait ends when the dataplane has the frontends. A wait for what an override changes ends when the dataplane has tried
// them: what is not granted or not supported does not concern an override.
func TestWaitForTheDataplane(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1"}))
		row := w.late("web")
		row.ServiceRev++
		w.Compiled.Set(row)
		behind := w.wait("web", row.ServiceRev)
		behind.expect(t, "the dataplane is behind", false)
		applied, _, _ := w.Applied.Get(row.Frontends[0].Value.Key)
		applied.Tried = row.Frontends[0]
		w.Applied.Set(applied)
		behind.expect(t, "the dataplane has caught up", true)

		row = w.late("web")
		row.Problems = []vip.Problem{{Code: vip.CodeUnsupported}}
		w.Compiled.Set(row)
		behind = w.waitTried("web")
		behind.expect(t, "the dataplane is behind an override", false)
		applied.Tried, applied.Problem = row.Frontends[0], &vip.Problem{Code: vip.CodeDataplane}
		w.Applied.Set(applied)
		behind.expect(t, "the dataplane has tried", true, vip.CodeDataplane)
	})
}

// A service is gone for its clients when its frontends take no new connections. If they did before the deletion, it
// changes no row, so WaitGone waits for no row. A frontend that the dataplane has not removed yet still takes them.
func TestWaitUntilGone(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		compiled := func(name string) Compiled {
			row, _, _ := w.Compiled.Get(key(name))
			return row
		}
		w.waitGone("nobody", Compiled{}).expect(t, "never there", true)
		w.put(service("web", []string{"10.0.0.1"}), service("dns", []string{"10.0.0.1"}, protocol(vip.UDP)), service("idle", []string{"10.0.0.1"}),
			service("stuck", []string{"10.0.0.1"}), service("late", []string{"10.0.0.1"}))
		w.put(service("idle", nil))
		web, idle, stuck, late := compiled("web"), compiled("idle"), compiled("stuck"), w.late("late")
		w.plane.FailKey(stuck.Frontends[0].Value.Key, errFull)
		w.remove("web", "dns", "idle", "stuck", "late")
		w.waitGone("dns", compiled("dns")).expect(t, "gone", true)
		w.waitGone("web", web).expect(t, "leaving", true)
		w.waitGone("idle", idle).expect(t, "it was draining already", true)
		w.waitGone("stuck", stuck).expect(t, "the dataplane still serves it", true, vip.CodeDataplane)
		behind := w.waitGone("late", late)
		behind.expect(t, "the dataplane is behind", false)
		w.pass(time.Minute) // the frontend and its applied row are gone
		behind.expect(t, "the frontend is gone", true)
		w.pass(time.Hour)
	})
}

// A service that is there again never leaves the tables. The wait for the end of the service before it
// ends when the dataplane has the new one.
func TestWaitUntilReplaced(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for _, again := range []vip.Service{
			service("web", []string{"10.0.0.1"}),            // the same frontend, which never changes
			service("web", []string{"10.0.0.2"}),            // a newer row of it
			service("web", []string{"10.0.0.2"}, port(443)), // one more
			service("web", nil, port(444), unsupported),     // others
			service("web", []string{"10.0.0.1"}, protocol(vip.UDP)),
		} {
			w.put(service("web", []string{"10.0.0.1"}))
			last, _, _ := w.Compiled.Get(key("web"))
			w.Services.Delete(key("web"))
			w.Services.Set(again)
			w.waitGone("web", last).expect(t, "replaced before the wait", true)
		}
		at := func(s *vip.Service) { s.VIPs = addrs("192.0.2.50") }
		w.put(service("web", []string{"10.0.0.1"}, at))
		last := w.late("web")
		w.remove("web")
		wait := w.waitGone("web", last)
		wait.expect(t, "the dataplane is behind", false)
		w.put(service("web", []string{"10.0.0.1"}, at))
		wait.expect(t, "replaced meanwhile", true)
	})
}

// late returns the row of a service as if the dataplane were late.
func (w *world) late(name string) Compiled {
	row, _, _ := w.Compiled.Get(key(name))
	newer := *row.Frontends[0]
	newer.Rev += 1000
	row.Frontends = []*FrontendRow{&newer}
	return row
}

func TestWaitEndsWithItsContext(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1"}))
		never := w.wait("web", w.Services.Revision()+1)
		w.pass(time.Hour)
		if !table.IsClosed(never.done) || !errors.Is(never.err, context.DeadlineExceeded) {
			t.Errorf("ended with %v", never.err)
		}
	})
}
