package trouble

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/status"
	"github.com/ironvip/ironvip/api/status/statustest"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// newIndex returns the index of the tables, without chosen services.
func newIndex(w *statustest.Tables, events *event.Log) *Index {
	tables := w.Readers()
	tables.Revisions = status.NewRevisions(&tables)
	return New(&tables, events, func() []string { return nil })
}

// An event has each bad state of a service, and its end.
func TestEventsOfStates(t *testing.T) {
	w, log := statustest.New(), event.NewLog(100, time.Now)
	index := newIndex(w, log)
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
		w.Overrides.Set(vip.BackendState{Backend: statustest.OneBackend.Key(statustest.ServiceNo(i)), State: state})
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if got := published(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	for i := range 3 {
		w.Healthy(i)
	}
	expect("services that come")
	set(1, vip.Drain)
	expect("a backend drains", "service_degraded s1")
	expect("nothing happens")
	w.Health.Set(vip.BackendHealth{Backend: statustest.OneBackend.Key(statustest.ServiceNo(1)), Checks: []vip.CheckResult{{Health: vip.Unhealthy}}})
	expect("something else changes")
	frontend := statustest.FrontendNo(1)
	row := w.Frontends.Row(frontend)
	w.Frontends.Put(row.Value)
	wanted := row.Value
	wanted.Backends = nil
	w.Frontends.Put(wanted)
	expect("pending for a moment")
	w.Healthy(1)
	w.Health.Delete(statustest.OneBackend.Key(statustest.ServiceNo(1)))
	w.Overrides.Delete(vip.OverrideKey{BackendKey: statustest.OneBackend.Key(statustest.ServiceNo(1))})
	expect("it serves again", "service_healthy s1")
	set(2, vip.Maint)
	w.Overrides.Delete(vip.OverrideKey{BackendKey: statustest.OneBackend.Key(statustest.ServiceNo(2))})
	expect("down between two updates")
	set(0, vip.Drain)
	expect("another", "service_degraded s0")
	w.Services.Delete(statustest.ServiceNo(0))
	expect("it is deleted")
	w.Healthy(0)
	w.Overrides.Delete(vip.OverrideKey{BackendKey: statustest.OneBackend.Key(statustest.ServiceNo(0))})
	expect("it comes back")

	for i := range 50 {
		w.Healthy(100 + i)
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
		w := statustest.New()
		for i := range n {
			w.Healthy(i)
			w.Overrides.Set(vip.BackendState{Backend: statustest.OneBackend.Key(statustest.ServiceNo(i)), State: vip.Drain})
		}
		w.Healthy(n)
		index := newIndex(w, event.NewLog(10, time.Now))
		index.update()
		index.publish()
		changed := vip.BackendState{Backend: statustest.OneBackend.Key(statustest.ServiceNo(n))}
		return testing.AllocsPerRun(20, func() {
			for _, changed.State = range []vip.State{vip.Drain, vip.Ready} {
				w.Overrides.Set(changed)
				index.update()
				index.publish()
			}
		})
	}
	if few, many := cost(10), cost(500); many > 2*few {
		t.Errorf("among 500 services that are down an event costs %.0f allocations, among 10 %.0f", many, few)
	}
}

// A change of one backend of a degraded service costs the same number of allocations whatever the
// number of its backends: it makes no sentence for each of them.
func TestCostOfStatesDoesNotGrowWithBackends(t *testing.T) {
	cost := func(backends int) float64 {
		w := statustest.New()
		w.Fill(1, backends)
		row, _, _ := w.Services.Get(statustest.ServiceNo(0))
		for i := range row.Backends[1:] {
			w.Overrides.Set(vip.BackendState{Backend: row.Backends[i+1].Key(row.Key), State: vip.Drain})
		}
		index := newIndex(w, event.NewLog(100, time.Now))
		states := []vip.State{vip.Ready, vip.Maint}
		return testing.AllocsPerRun(10, func() {
			slices.Reverse(states)
			w.Overrides.Set(vip.BackendState{Backend: row.Backends[1].Key(row.Key), State: states[0]})
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

// The metrics of a healthy service include its draining backends.
func TestWhatLeavesAServiceThatIsWellIsCounted(t *testing.T) {
	w := statustest.New()
	w.Healthy(1)
	w.Healthy(2)
	f := vip.Frontend{Key: statustest.FrontendNo(1), Kind: vip.OnVIP, Service: statustest.ServiceNo(1), Backends: []vip.Endpoint{{Addr: netip.AddrPortFrom(statustest.OneBackend.Address, 80), Weight: 1},
		{Addr: netip.MustParseAddrPort("10.0.0.9:80"), Leaving: vip.InstantOf(time.Unix(1, 0))}}}
	w.Applied.Set(reconcile.AppliedFrontend{Tried: w.Frontends.Put(f)})
	got, sum := newIndex(w, event.NewLog(100, time.Now)).Tallies()
	want := map[vip.ServiceKey]Tally{statustest.ServiceNo(1): {Ready: 1, Drain: 1, Usable: 1}}
	expect.True(t, maps.Equal(got, want), "%+v, want %+v", got, want)
	expect.Equal(t, sum, Tally{Ready: 2, Drain: 1, Usable: 2}, "sum")
}
