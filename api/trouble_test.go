package api

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/api/forwarding"
	apiserver "github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/services"
	"github.com/ironvip/ironvip/api/status"
	"github.com/ironvip/ironvip/api/status/statustest"
	"github.com/ironvip/ironvip/api/trouble"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// depsOf returns the Deps of an agent that has begun, with these tables.
func depsOf(w *statustest.Tables) Deps {
	d := idle(pipeline.NewTables(w.Clock))
	names := d.Tables.Naming
	d.Tables = w.Readers()
	d.Tables.Naming = names
	d.Forwarding.Stats = func() reconcile.Stats { return reconcile.Stats{Synced: true, Wanted: w.Frontends.Len()} }
	return d
}

// nobody is a Registrar without registrations.
type nobody struct{ services.Registrar }

func (nobody) HeartbeatStatuses(vip.ServiceKey) map[string]rest.HeartbeatStatus { return nil }

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A repeated status query allocates nothing for healthy services.
func TestUnhealthyReadsNoHealthyService(t *testing.T) {
	cost := func(n int) float64 {
		w := statustest.New()
		for i := range n {
			w.Healthy(i)
		}
		s := New(depsOf(w))
		ask := func() {
			out := must.Get(s.getStatus(t.Context(), nil))(t)
			want := []string{fmt.Sprintf("%d of %d healthy", n, n), fmt.Sprintf("proxy, in sync: %d services, %d backends, 0 drift", n, n)}
			if got := out.Checks; got[3].Message != want[0] || got[4].Message != want[1] {
				t.Fatalf("%+v", got)
			}
		}
		ask()
		return testing.AllocsPerRun(20, ask)
	}
	if few, many := cost(10), cost(1000); many > few+200 {
		t.Errorf("among 1,000 services %.0f allocations for a status, among 10 %.0f", many, few)
	}
}

// The index agrees with a scan after any changes to the tables.
func TestUnhealthyEqualsTheTables(t *testing.T) {
	server := New(depsOf(statustest.New())) // its routes cost more than a case
	rapid.Check(t, func(t *rapid.T) {
		w := statustest.New()
		patterns := []string(nil)
		server.Deps = depsOf(w)
		server.Tables.Revisions = status.NewRevisions(&server.Tables)
		s := trouble.New(&server.Tables, server.Events, func() []string { return patterns })
		server.forwarding = forwarding.New(apiserver.New(server.Options), &server.Tables, s, server.Forwarding)
		step := map[string]func(i int, k vip.ServiceKey, f vip.FrontendKey, odd bool){
			"healthy": func(i int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) {
				w.Healthy(i)
				w.Disown(statustest.FrontendNo(i), k)
			},
			"service":      func(_ int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) { w.Services.Set(vip.Service{Key: k}) },
			"service gone": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) { w.Services.Delete(k) },
			"allocated": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) {
				w.Allocations.Set(vip.Allocation{Asked: &vip.Service{Key: k}})
			},
			"allocation gone": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) { w.Allocations.Delete(k) },
			"compiled": func(_ int, k vip.ServiceKey, f vip.FrontendKey, odd bool) {
				row := pipeline.Compiled{Service: &vip.Service{Key: k}, ServiceRev: 1 << 40}
				if r := w.Frontends.Row(f); !odd && (r == nil || r.Value.Service == k) {
					row.Frontends = []*pipeline.FrontendRow{{Value: vip.Frontend{Key: f}}}
				}
				w.Compiled.Set(row)
			},
			"compiled gone": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) { w.Compiled.Delete(k) },
			"said": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, odd bool) {
				b := statustest.OneBackend.Key(k)
				if odd {
					w.Overrides.Set(vip.BackendState{Backend: b, State: vip.Drain})
				} else {
					w.Overrides.Delete(vip.OverrideKey{BackendKey: b})
				}
			},
			"frontend": func(_ int, k vip.ServiceKey, f vip.FrontendKey, odd bool) {
				row := vip.Frontend{Key: f, Service: k, Backends: []vip.Endpoint{{Weight: 1}, {Addr: netip.MustParseAddrPort("10.0.0.9:80"), Weight: 1}}}
				if odd {
					row.Backends[1].Leaving = vip.InstantOf(time.Unix(1, 0))
				}
				w.Frontends.Set(row)
				w.Disown(f, k)
			},
			"observed": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, odd bool) {
				health := vip.Healthy
				if odd {
					health = vip.Unhealthy
				}
				w.Health.Set(vip.BackendHealth{Backend: statustest.OneBackend.Key(k), Checks: []vip.CheckResult{{Type: vip.CheckTCP, Port: 80, Health: health}}})
			},
			"held": func(i int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) {
				w.Health.Set(vip.BackendHealth{Backend: statustest.OneBackend.Key(k), Checks: []vip.CheckResult{{Type: vip.CheckTCP, Port: 80, Health: vip.Healthy,
					Since: vip.InstantOf(time.Unix(int64(100+i), 0)), HeldUntil: vip.InstantOf(time.Unix(int64(200+i), 0))}}})
			},
			"panic": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, odd bool) {
				if service, _, ok := w.Services.Get(k); ok {
					service.PanicThreshold = uint8(50 * count(odd))
					w.Services.Set(service)
				}
			},
			"ejected": func(i int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) {
				health := vip.Ejected
				if i%3 == 0 {
					health = vip.Healthy
				}
				w.Passive.Set(vip.PassiveHealth{PassiveKey: statustest.PassiveKey(k), Health: health})
			},
			"ejection gone": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) { w.Passive.Delete(statustest.PassiveKey(k)) },
			"observed gone": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) {
				w.Health.Delete(statustest.OneBackend.Key(k))
			},
			"unchecked": func(i int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) {
				w.Healthy(i)
				w.Disown(statustest.FrontendNo(i), k)
				service, _, _ := w.Services.Get(k)
				service.Backends = []vip.Backend{statustest.OneBackend}
				service.Backends[0].Health = 0
				wanted := w.Services.Put(service)
				row, _, _ := w.Compiled.Get(k)
				row.Service, row.ServiceRev = &wanted.Value, wanted.Rev
				w.Compiled.Set(row)
			},
			"frontend gone": func(_ int, _ vip.ServiceKey, f vip.FrontendKey, _ bool) { w.Frontends.Delete(f) },
			"applied": func(_ int, _ vip.ServiceKey, f vip.FrontendKey, odd bool) {
				row := reconcile.AppliedFrontend{Tried: &table.Row[vip.Frontend]{Value: vip.Frontend{Key: f}, Rev: w.Frontends.Revision()}}
				if odd {
					row.Problem = &vip.Problem{Code: vip.CodeDataplane}
				}
				w.Applied.Set(row)
			},
			"contested": func(_ int, _ vip.ServiceKey, f vip.FrontendKey, _ bool) {
				row := w.Frontends.Row(f)
				if row != nil {
					w.Applied.Set(reconcile.AppliedFrontend{Tried: row, Warning: &vip.Problem{Code: vip.CodeContested}})
				}
			},
			"other source": func(i int, k vip.ServiceKey, _ vip.FrontendKey, odd bool) {
				if service, _, ok := w.Services.Get(k); ok {
					service.Source = fmt.Sprint("source ", count(odd))
					w.Services.Set(service)
				}
			},
			"chosen": func(i int, k vip.ServiceKey, _ vip.FrontendKey, odd bool) {
				if patterns = []string{"other/*", "default/" + k.Name}; odd {
					patterns = []string{"*/s[12]"}
				}
			},
			"applied gone": func(_ int, _ vip.ServiceKey, f vip.FrontendKey, _ bool) { w.Applied.Delete(f) },
		}
		names := slices.Sorted(maps.Keys(step))
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, 3).Draw(t, "service")
			step[rapid.SampledFrom(names).Draw(t, "op")](i, statustest.ServiceNo(i), statustest.FrontendNo(rapid.IntRange(0, 3).Draw(t, "frontend")), rapid.Bool().Draw(t, "odd"))
			if rapid.IntRange(0, 3).Draw(t, "ask") > 0 {
				continue
			}
			held := map[vip.ServiceKey]bool{}
			want := trouble.Standing{Services: w.Services.Len(), States: map[status.State]int{}}
			for k, service := range w.Services.All() {
				want.Backends += len(service.Backends)
				in := server.Tables.Input(k, time.Time{})
				if state := status.Of(in).State; state != status.Healthy {
					want.States[state]++
				}
				for _, b := range service.Backends {
					observed, _ := in.Observed(&b)
					ready := in.StateOf(&b) == vip.Ready
					want.Down += count(observed == vip.Unhealthy && ready)
					want.Ejected += count(observed == vip.Ejected && ready)
					if row, _, _ := w.Health.Get(b.Key(k)); ready && b.Health != vip.Unhealthy && observed != vip.Ejected && len(row.Checks) > 0 && row.Checks[0].Held() {
						c := row.Checks[0]
						held[k] = true
						if want.Held++; want.Held == 1 || want.Since.After(c.Since) {
							want.Since = c.Since
						}
						want.Until = max(want.Until, c.HeldUntil)
					}
				}
				if row, _, _ := w.Compiled.Get(k); len(service.Backends) == 1 && service.PanicThreshold > 0 && in.StateOf(&service.Backends[0]) == vip.Ready && in.Unhealthy(&service.Backends[0], "") &&
					slices.ContainsFunc(row.Frontends, func(f *pipeline.FrontendRow) bool { return w.Frontends.Row(f.Value.Key) != nil }) {
					want.Panics = append(want.Panics, k)
				}
			}
			slices.SortFunc(want.Panics, vip.ServiceKey.Compare)
			if got := s.Standing(); !reflect.DeepEqual(got, want) {
				t.Fatalf("%+v, want %+v", got, want)
			}
			wantTallies, wantSum, kinds := map[vip.ServiceKey]trouble.Tally{}, trouble.Tally{}, map[trouble.Kind]int{}
			for k := range w.Services.All() {
				said, _ := server.services.Service(k)
				one := trouble.Tally{Usable: said.Status.Usable}
				for _, b := range said.Status.Backends {
					one.Unhealthy += count(b.Health == vip.Unhealthy.String() && b.State == vip.Ready.String())
					one.Ready += count(b.State == vip.Ready.String())
					one.Drain += count(b.State == vip.Drain.String())
					one.Maint += count(b.State == vip.Maint.String())
				}
				wantSum.Ready, wantSum.Drain, wantSum.Maint = wantSum.Ready+one.Ready, wantSum.Drain+one.Drain, wantSum.Maint+one.Maint
				wantSum.Usable, wantSum.Unhealthy = wantSum.Usable+one.Usable, wantSum.Unhealthy+one.Unhealthy
				for _, f := range server.Tables.Input(k, time.Time{}).Frontends {
					one.Contested += count(f.Applied != nil && f.Applied.Warning != nil)
				}
				state := status.State(said.Status.State)
				kinds[trouble.Kind{Source: said.Source, State: state}]++
				chosen := slices.ContainsFunc(patterns, func(p string) bool { ok, _ := path.Match(p, "default/"+k.Name); return ok })
				healthy := trouble.Tally{Ready: one.Ready, Usable: one.Ready}
				if chosen || held[k] || one != healthy || slices.Contains([]status.State{status.Degraded, status.Down, status.Refused}, state) {
					wantTallies[k] = one
				}
			}
			if got, sum := s.Tallies(); !maps.Equal(got, wantTallies) || sum != wantSum {
				t.Fatalf("%v, sum %v, want %v, sum %v", got, sum, wantTallies, wantSum)
			}
			if got := s.States(); !maps.Equal(got, kinds) {
				t.Fatalf("%v, want %v", got, kinds)
			}
			var pending, failed int
			for k := range w.Frontends.All() {
				f, _ := server.Tables.Frontend(k)
				pending += count(f.Pending())
				failed += count(!f.Pending() && f.Applied.Problem != nil)
			}
			if got := server.forwarding.State(); got.Pending != pending || got.Failed != failed {
				t.Fatalf("%d frontends pending and %d failed, want %d and %d", got.Pending, got.Failed, pending, failed)
			}
		}
	})
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

// Before the first full reconcile, in which each service changes several times, no event has the state of a service.
func TestTheIndexBeginsAfterTheStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, ready := statustest.New(), make(chan struct{})
		w.Healthy(0)
		w.Overrides.Set(vip.BackendState{Backend: statustest.OneBackend.Key(statustest.ServiceNo(0)), State: vip.Drain})
		d := depsOf(w)
		d.Ready, d.Events = ready, event.NewLog(10, time.Now)
		s := New(d)
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Run(ctx) }()
		for _, want := range []int{0, 1} {
			time.Sleep(3 * time.Second)
			synctest.Wait()
			events, _ := d.Events.Since(0)
			must.Len(t, events, want, "events")
			if want == 0 {
				close(ready)
			}
		}
		end()
		<-done
	})
}
