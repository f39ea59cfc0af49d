package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// An event has each bad state of a service, and its end.
func TestEventsOfStates(t *testing.T) {
	w, log := newWritten(), event.NewLog(100, time.Now)
	index := newUnhealthyIndex(New(w.deps()).tables, log, func() []string { return nil })
	var last uint64
	// published returns the events of an update.
	published := func() (out []string) {
		index.update()
		index.publish()
		events, _ := log.Since(last)
		for _, e := range events {
			last = e.ID
			out = append(out, strings.TrimSpace(e.Kind+" "+e.Service))
			if e.Service != "" && !strings.HasPrefix(e.Message, e.Service+" is "+strings.TrimPrefix(e.Kind, "service_")) {
				t.Errorf("%+v", e)
			}
		}
		return out
	}
	set := func(i int, state vip.State) {
		w.states.Set(vip.BackendState{Backend: oneBackend.Key(serviceNo(i)), State: state})
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if got := published(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	for i := range 3 {
		w.healthy(i)
	}
	expect("services that come")
	set(1, vip.Drain)
	expect("a backend drains", "service_degraded s1")
	expect("nothing happens")
	w.health.Set(vip.BackendHealth{Backend: oneBackend.Key(serviceNo(1)), Checks: []vip.CheckResult{{Health: vip.Unhealthy}}})
	expect("something else changes")
	frontend := frontendNo(1)
	row := w.frontends.Row(frontend)
	w.frontends.Put(row.Value)
	wanted := row.Value
	wanted.Backends = nil
	w.frontends.Put(wanted)
	expect("pending for a moment")
	w.healthy(1)
	w.health.Delete(oneBackend.Key(serviceNo(1)))
	w.states.Delete(oneBackend.Key(serviceNo(1)))
	expect("it serves again", "service_healthy s1")
	set(2, vip.Maint)
	w.states.Delete(oneBackend.Key(serviceNo(2)))
	expect("down between two updates")
	set(0, vip.Drain)
	expect("another", "service_degraded s0")
	w.services.Delete(serviceNo(0))
	expect("it is deleted")
	w.healthy(0)
	w.states.Delete(oneBackend.Key(serviceNo(0)))
	expect("it comes back")

	for i := range 50 {
		w.healthy(100 + i)
		set(100+i, vip.Drain)
	}
	if got := published(); len(got) != maxStateEvents+1 || got[maxStateEvents] != "services_changed" {
		t.Errorf("50 services are down: %q", got)
	}
	if events, _ := log.Since(last - 1); !strings.HasPrefix(events[0].Message, "30 more services") {
		t.Errorf("%+v", events)
	}
}

// The cost of an event doesn't depend on the number of services, also if they are down.
func TestEventsReadOnlyWhatChanged(t *testing.T) {
	cost := func(n int) float64 {
		w := newWritten()
		for i := range n {
			w.healthy(i)
			w.states.Set(vip.BackendState{Backend: oneBackend.Key(serviceNo(i)), State: vip.Drain})
		}
		w.healthy(n)
		index := newUnhealthyIndex(New(w.deps()).tables, event.NewLog(10, time.Now), func() []string { return nil })
		index.update()
		index.publish()
		changed := vip.BackendState{Backend: oneBackend.Key(serviceNo(n))}
		return testing.AllocsPerRun(20, func() {
			for _, changed.State = range []vip.State{vip.Drain, vip.Ready} {
				w.states.Set(changed)
				index.update()
				index.publish()
			}
		})
	}
	if few, many := cost(10), cost(5_000); many > 2*few {
		t.Errorf("among 5,000 services that are down an event costs %.0f allocations, among 10 %.0f", many, few)
	}
}

// A running API publishes the events without a query.
func TestStatesReachTheEvents(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=60")
		decode[v1.Backend](r, "PUT", webPath+"/backends/10.0.0.1:8080/state?force=true", `{"state":"drain"}`, "Prefer: wait=60")
		seen := func(kind string) func() bool {
			return func() bool {
				for _, e := range decode[v1.EventList](r, "GET", v1.PathEvents, "").Items {
					if e.Kind == kind && e.Service == "web" {
						return true
					}
				}
				return false
			}
		}
		wait.Until(t, "the service is down", seen("service_down"))
		decode[v1.Backend](r, "PUT", webPath+"/backends/10.0.0.1:8080/state", `{"state":"ready"}`, "Prefer: wait=60")
		wait.Until(t, "the service serves again", seen("service_healthy"))
	})
}

// A change of one backend of a degraded service costs the same number of allocations whatever the
// number of its backends: it makes no sentence for each of them.
func TestCostOfStatesDoesNotGrowWithBackends(t *testing.T) {
	cost := func(backends int) float64 {
		w := newWritten()
		w.fill(1, backends)
		row, _, _ := w.services.Get(serviceNo(0))
		for i := range row.Backends[1:] {
			w.states.Set(vip.BackendState{Backend: row.Backends[i+1].Key(row.Key), State: vip.Drain})
		}
		index := newUnhealthyIndex(New(w.deps()).tables, event.NewLog(100, time.Now), func() []string { return nil })
		states := []vip.State{vip.Ready, vip.Maint}
		return testing.AllocsPerRun(10, func() {
			slices.Reverse(states)
			w.states.Set(vip.BackendState{Backend: row.Backends[1].Key(row.Key), State: states[0]})
			index.update()
			index.publish()
			if index.published[row.Key] != status.Degraded {
				t.Fatalf("published: %v", index.published)
			}
		})
	}
	if few, many := cost(10), cost(200); many > 1.5*few {
		t.Errorf("%v allocations with 10 backends, %v with 200", few, many)
	}
}
