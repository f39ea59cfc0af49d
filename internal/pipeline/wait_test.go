package pipeline

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// waiter runs a wait in the background and reports whether it has ended.
type waiter struct {
	done     chan struct{}
	problems []vip.Problem
	err      error
}

func (w *world) wait(name string, rev uint64) *waiter {
	out := &waiter{done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	go func() {
		defer close(out.done)
		defer cancel()
		out.problems, out.err = WaitApplied(ctx, w.Compiled, w.Applied, key(name), rev)
	}()
	synctest.Wait()
	return out
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
	if w.err != nil {
		t.Errorf("%s: %v", when, w.err)
	}
	if len(w.problems) != len(codes) {
		t.Fatalf("%s: problems %+v, want %v", when, w.problems, codes)
	}
	for i, p := range w.problems {
		if p.Code != codes[i] || p.Service == "" {
			t.Errorf("%s: problem %+v, want code %s and a service", when, p, codes[i])
		}
	}
}

func TestWaitUntilApplied(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		early := w.wait("web", w.Services.Revision()+1)
		early.expect(t, "before the service is there", false)
		w.put(service("web", []string{"10.0.0.1"}))
		early.expect(t, "after it was applied", true)

		// A change without effect on frontends is applied once it is compiled.
		rev := w.Services.Set(service("web", []string{"10.0.0.1"}, func(s *vip.Service) { s.Origin = "x" }))
		w.wait("web", rev).expect(t, "nothing to program", true)

		// An older revision than the newest is already applied.
		w.wait("web", rev-1).expect(t, "older revision", true)
	})
}

func TestWaitReportsWhatTheDataplaneRefused(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1"}, port(443)))
		w.plane.FailKey(sortedFrontends(w.Frontends)[0].Key, errFull)
		rev := w.Services.Set(service("web", []string{"10.0.0.2"}, port(443)))
		w.wait("web", rev).expect(t, "one of two frontends failed", true, vip.CodeDataplane)
	})
}

func TestWaitReportsWhatIsNotGrantedOrSupported(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.allocator.set(func(a *fakeAllocator) { a.capacity = 0 })
		rev := w.Services.Set(service("web", nil, unsupported))
		w.wait("web", rev).expect(t, "nothing granted", true, vip.CodePoolFull, vip.CodeUnsupported)
	})
}

func TestWaitForTheDataplane(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1"}))
		row, _, _ := w.Compiled.Get(key("web"))
		newer := *row.Frontends[0]
		newer.Rev += 1000 // as if the dataplane were late
		row.Frontends = []*FrontendRow{&newer}
		row.ServiceRev++
		w.Compiled.Set(row)
		behind := w.wait("web", row.ServiceRev)
		behind.expect(t, "the dataplane is behind", false)
		applied, _, _ := w.Applied.Get(newer.Value.Key)
		applied.Tried = &newer
		w.Applied.Set(applied)
		behind.expect(t, "the dataplane has caught up", true)
	})
}

func TestWaitUntilGone(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.wait("nobody", Gone).expect(t, "never there", true)
		w.put(service("web", []string{"10.0.0.1"}), service("dns", []string{"10.0.0.1"}, protocol(vip.UDP)))
		tcp, udp := w.wait("web", Gone), w.wait("dns", Gone)
		tcp.expect(t, "still there", false)
		udp.expect(t, "still there", false)
		w.remove("web", "dns")
		tcp.expect(t, "leaving", true)
		udp.expect(t, "gone", true)
		w.pass(time.Hour)
	})
}

// A service with a frontend that takes no new connections is already gone for its clients. Deleting
// it changes no row, so WaitGone waits for no row.
func TestWaitUntilGoneWithNothingLeftToApply(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1"}))
		w.put(service("web", nil))
		wait := w.wait("web", Gone)
		w.remove("web")
		wait.expect(t, "it was draining already", true)
		w.pass(time.Hour)
	})
}

// A caller that waits after the deletion passes the former row.
func TestWaitGoneAfterTheFact(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1"}))
		last, _, _ := w.Compiled.Get(key("web"))
		w.plane.FailKey(last.Frontends[0].Value.Key, errFull)
		w.remove("web")
		problems, err := WaitGone(t.Context(), w.Compiled, w.Applied, key("web"), last)
		if err != nil || len(problems) != 1 || problems[0].Code != vip.CodeDataplane {
			t.Errorf("%v, %v: the dataplane still serves it", problems, err)
		}
	})
}

// A frontend that the dataplane has not removed yet still takes connections.
func TestWaitGoneForTheDataplane(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1"}))
		last, _, _ := w.Compiled.Get(key("web"))
		last.Frontends = slices.Clone(last.Frontends)
		last.Frontends[0].Rev += 1000 // as if the dataplane were late
		w.remove("web")
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if problems, err := WaitGone(context.Background(), w.Compiled, w.Applied, key("web"), last); err != nil || len(problems) > 0 {
				t.Errorf("%v, %v", problems, err)
			}
		}()
		synctest.Wait()
		if table.IsClosed(ended) {
			t.Error("ended while the dataplane is behind")
		}
		w.pass(time.Minute) // the frontend and its applied row are gone
		if !table.IsClosed(ended) {
			t.Fatal("waits for a frontend that is gone")
		}
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		never := w.wait("nobody", 1)
		w.pass(time.Hour)
		if !table.IsClosed(never.done) || !errors.Is(never.err, context.DeadlineExceeded) {
			t.Errorf("ended with %v", never.err)
		}
	})
}
