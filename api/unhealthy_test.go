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

	"github.com/ironvip/ironvip/api/status"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// written contains the tables that the API reads. The tests fill them.
type written struct {
	clock       *table.Clock
	services    *table.Table[vip.ServiceKey, vip.Service]
	allocations *table.Table[vip.ServiceKey, vip.Allocation]
	compiled    *table.Table[vip.ServiceKey, pipeline.Compiled]
	states      *table.Table[vip.BackendKey, vip.BackendState]
	health      *table.Table[vip.BackendKey, vip.BackendHealth]
	passive     *table.Table[vip.PassiveKey, vip.PassiveHealth]
	frontends   *table.Table[vip.FrontendKey, vip.Frontend]
	applied     *table.Table[vip.FrontendKey, reconcile.AppliedFrontend]
	refused     *table.Table[sources.RefusedKey, sources.Refused]
}

func newWritten() *written {
	clock := &table.Clock{}
	return &written{
		clock:       clock,
		services:    table.New(clock, vip.KeyOfService, nil),
		allocations: table.New(clock, vip.KeyOfAllocation, nil),
		compiled:    table.New(clock, pipeline.KeyOfCompiled, nil),
		states:      table.New(clock, vip.KeyOfBackendState, nil),
		health:      table.New(clock, vip.KeyOfBackendHealth, nil),
		passive:     table.New(clock, vip.KeyOfPassiveHealth, nil),
		frontends:   table.New(clock, vip.KeyOfFrontend, nil),
		applied:     table.New(clock, reconcile.KeyOfApplied, nil),
		refused:     table.New(clock, sources.KeyOfRefused, nil),
	}
}

func (w *written) deps() Deps {
	d := idle(pipeline.NewTables(w.clock))
	d.Services, d.Allocations, d.Compiled, d.Overrides, d.Health, d.Passive, d.Frontends, d.Applied, d.Refused = w.services, w.allocations, w.compiled, w.states, w.health, w.passive, w.frontends, w.applied, w.refused
	d.Stats = func() reconcile.Stats { return reconcile.Stats{Synced: true, Wanted: w.frontends.Len()} }
	return d
}

var oneBackend = vip.Backend{Address: netip.MustParseAddr("10.0.0.1"), Port: 80, Weight: 1, State: vip.Ready, Health: vip.Healthy}

func serviceNo(i int) vip.ServiceKey {
	return vip.ServiceKey{Namespace: "default", Name: fmt.Sprintf("s%d", i)}
}

func frontendNo(i int) vip.FrontendKey {
	return vip.FrontendKey{Addr: netip.AddrFrom4([4]byte{192, byte(i >> 16), byte(i >> 8), byte(i)}), Port: 80, Protocol: vip.TCP}
}

// passiveKey returns the key of oneBackend in a service.
func passiveKey(k vip.ServiceKey) vip.PassiveKey {
	return vip.PassiveKey{Service: k, Protocol: vip.TCP, Addr: netip.AddrPortFrom(oneBackend.Address, oneBackend.Port)}
}

// healthy adds service i in a healthy state.
func (w *written) healthy(i int) {
	k, f := serviceNo(i), frontendNo(i)
	wanted := w.services.Put(vip.Service{Key: k, Ports: []vip.Port{{Protocol: vip.TCP, Port: 80}}, Backends: []vip.Backend{oneBackend}})
	w.allocations.Set(vip.Allocation{Asked: &wanted.Value, ServiceRev: wanted.Rev, VIPs: []netip.Addr{f.Addr}})
	made := w.frontends.Put(vip.Frontend{Key: f, Kind: vip.OnVIP, Service: k,
		Backends: []vip.Endpoint{{Addr: netip.AddrPortFrom(oneBackend.Address, 80), Weight: 1}}})
	w.compiled.Set(pipeline.Compiled{Service: &wanted.Value, ServiceRev: wanted.Rev, Frontends: []*pipeline.FrontendRow{made}})
	w.applied.Set(reconcile.AppliedFrontend{Tried: made})
}

// disown removes frontend f, which is now k's, from the compiled rows of other services.
func (w *written) disown(f vip.FrontendKey, k vip.ServiceKey) {
	for other, row := range w.compiled.All() {
		if other != k && slices.ContainsFunc(row.Frontends, func(r *pipeline.FrontendRow) bool { return r.Value.Key == f }) {
			row.Frontends = nil
			w.compiled.Set(row)
		}
	}
}

// nobody is a Registrar without registrations.
type nobody struct{ Registrar }

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
		w := newWritten()
		for i := range n {
			w.healthy(i)
		}
		s := New(w.deps())
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
	if few, many := cost(10), cost(10_000); many > few+200 {
		t.Errorf("among 10,000 services %.0f allocations for a status, among 10 %.0f", many, few)
	}
}

// The metrics of a healthy service include its draining backends.
func TestWhatLeavesAServiceThatIsWellIsCounted(t *testing.T) {
	w := newWritten()
	w.healthy(1)
	w.healthy(2)
	f := vip.Frontend{Key: frontendNo(1), Kind: vip.OnVIP, Service: serviceNo(1), Backends: []vip.Endpoint{{Addr: netip.AddrPortFrom(oneBackend.Address, 80), Weight: 1},
		{Addr: netip.MustParseAddrPort("10.0.0.9:80"), Leaving: vip.InstantOf(time.Unix(1, 0))}}}
	w.applied.Set(reconcile.AppliedFrontend{Tried: w.frontends.Put(f)})
	got, sum := New(w.deps()).unhealthy.tallies()
	want := map[vip.ServiceKey]tally{serviceNo(1): {ready: 1, drain: 1, usable: 1}}
	expect.True(t, maps.Equal(got, want), "%+v, want %+v", got, want)
	expect.Equal(t, sum, tally{ready: 2, drain: 1, usable: 2}, "sum")
}

// The index agrees with a scan after any changes to the tables.
// Slow: it scans all tables after each of many random changes, with the race detector.
func TestUnhealthyEqualsTheTables(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWritten()
		d, patterns := w.deps(), []string(nil)
		d.BackendMetrics = func() []string { return patterns }
		server := New(d)
		s := server.unhealthy
		step := map[string]func(i int, k vip.ServiceKey, f vip.FrontendKey, odd bool){
			"healthy": func(i int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) {
				w.healthy(i)
				w.disown(frontendNo(i), k)
			},
			"service":      func(_ int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) { w.services.Set(vip.Service{Key: k}) },
			"service gone": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) { w.services.Delete(k) },
			"allocated": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) {
				w.allocations.Set(vip.Allocation{Asked: &vip.Service{Key: k}})
			},
			"allocation gone": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) { w.allocations.Delete(k) },
			"compiled": func(_ int, k vip.ServiceKey, f vip.FrontendKey, odd bool) {
				row := pipeline.Compiled{Service: &vip.Service{Key: k}, ServiceRev: 1 << 40}
				if r := w.frontends.Row(f); !odd && (r == nil || r.Value.Service == k) {
					row.Frontends = []*pipeline.FrontendRow{{Value: vip.Frontend{Key: f}}}
				}
				w.compiled.Set(row)
			},
			"compiled gone": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) { w.compiled.Delete(k) },
			"said": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, odd bool) {
				b := oneBackend.Key(k)
				if odd {
					w.states.Set(vip.BackendState{Backend: b, State: vip.Drain})
				} else {
					w.states.Delete(b)
				}
			},
			"frontend": func(_ int, k vip.ServiceKey, f vip.FrontendKey, odd bool) {
				row := vip.Frontend{Key: f, Service: k, Backends: []vip.Endpoint{{Weight: 1}, {Addr: netip.MustParseAddrPort("10.0.0.9:80"), Weight: 1}}}
				if odd {
					row.Backends[1].Leaving = vip.InstantOf(time.Unix(1, 0))
				}
				w.frontends.Set(row)
				w.disown(f, k)
			},
			"observed": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, odd bool) {
				health := vip.Healthy
				if odd {
					health = vip.Unhealthy
				}
				w.health.Set(vip.BackendHealth{Backend: oneBackend.Key(k), Checks: []vip.CheckResult{{Type: vip.CheckTCP, Port: 80, Health: health}}})
			},
			"held": func(i int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) {
				w.health.Set(vip.BackendHealth{Backend: oneBackend.Key(k), Checks: []vip.CheckResult{{Type: vip.CheckTCP, Port: 80, Health: vip.Healthy,
					Since: vip.InstantOf(time.Unix(int64(100+i), 0)), HeldUntil: vip.InstantOf(time.Unix(int64(200+i), 0))}}})
			},
			"panic": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, odd bool) {
				if service, _, ok := w.services.Get(k); ok {
					service.PanicThreshold = uint8(50 * count(odd))
					w.services.Set(service)
				}
			},
			"ejected": func(i int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) {
				health := vip.Ejected
				if i%3 == 0 {
					health = vip.Healthy
				}
				w.passive.Set(vip.PassiveHealth{PassiveKey: passiveKey(k), Health: health})
			},
			"ejection gone": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) { w.passive.Delete(passiveKey(k)) },
			"observed gone": func(_ int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) { w.health.Delete(oneBackend.Key(k)) },
			"unchecked": func(i int, k vip.ServiceKey, _ vip.FrontendKey, _ bool) {
				w.healthy(i)
				w.disown(frontendNo(i), k)
				service, _, _ := w.services.Get(k)
				service.Backends = []vip.Backend{oneBackend}
				service.Backends[0].Health = 0
				wanted := w.services.Put(service)
				row, _, _ := w.compiled.Get(k)
				row.Service, row.ServiceRev = &wanted.Value, wanted.Rev
				w.compiled.Set(row)
			},
			"frontend gone": func(_ int, _ vip.ServiceKey, f vip.FrontendKey, _ bool) { w.frontends.Delete(f) },
			"applied": func(_ int, _ vip.ServiceKey, f vip.FrontendKey, odd bool) {
				row := reconcile.AppliedFrontend{Tried: &table.Row[vip.Frontend]{Value: vip.Frontend{Key: f}, Rev: w.frontends.Revision()}}
				if odd {
					row.Problem = &vip.Problem{Code: vip.CodeDataplane}
				}
				w.applied.Set(row)
			},
			"contested": func(_ int, _ vip.ServiceKey, f vip.FrontendKey, _ bool) {
				row := w.frontends.Row(f)
				if row != nil {
					w.applied.Set(reconcile.AppliedFrontend{Tried: row, Warning: &vip.Problem{Code: vip.CodeContested}})
				}
			},
			"other source": func(i int, k vip.ServiceKey, _ vip.FrontendKey, odd bool) {
				if service, _, ok := w.services.Get(k); ok {
					service.Source = fmt.Sprint("source ", count(odd))
					w.services.Set(service)
				}
			},
			"chosen": func(i int, k vip.ServiceKey, _ vip.FrontendKey, odd bool) {
				if patterns = []string{"other/*", "default/" + k.Name}; odd {
					patterns = []string{"*/s[12]"}
				}
			},
			"applied gone": func(_ int, _ vip.ServiceKey, f vip.FrontendKey, _ bool) { w.applied.Delete(f) },
		}
		names := slices.Sorted(maps.Keys(step))
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, 3).Draw(t, "service")
			step[rapid.SampledFrom(names).Draw(t, "op")](i, serviceNo(i), frontendNo(rapid.IntRange(0, 3).Draw(t, "frontend")), rapid.Bool().Draw(t, "odd"))
			if rapid.IntRange(0, 3).Draw(t, "ask") > 0 {
				continue
			}
			held := map[vip.ServiceKey]bool{}
			want := standing{services: w.services.Len(), states: map[status.State]int{}}
			for k, service := range w.services.All() {
				want.backends += len(service.Backends)
				in := s.tables.Input(k, time.Time{})
				if state := status.Of(in).State; state != status.Healthy {
					want.states[state]++
				}
				for _, b := range service.Backends {
					observed, _ := in.Observed(&b)
					ready := in.StateOf(&b) == vip.Ready
					want.down += count(observed == vip.Unhealthy && ready)
					want.ejected += count(observed == vip.Ejected && ready)
					if row, _, _ := w.health.Get(b.Key(k)); ready && b.Health != vip.Unhealthy && observed != vip.Ejected && len(row.Checks) > 0 && row.Checks[0].Held() {
						c := row.Checks[0]
						held[k] = true
						if want.held++; want.held == 1 || want.since.After(c.Since) {
							want.since = c.Since
						}
						want.until = max(want.until, c.HeldUntil)
					}
				}
				if row, _, _ := w.compiled.Get(k); len(service.Backends) == 1 && service.PanicThreshold > 0 && in.StateOf(&service.Backends[0]) == vip.Ready && in.Unhealthy(&service.Backends[0], "") &&
					slices.ContainsFunc(row.Frontends, func(f *pipeline.FrontendRow) bool { return w.frontends.Row(f.Value.Key) != nil }) {
					want.panics = append(want.panics, k)
				}
			}
			slices.SortFunc(want.panics, vip.ServiceKey.Compare)
			if got := s.standing(); !reflect.DeepEqual(got, want) {
				t.Fatalf("%+v, want %+v", got, want)
			}
			wantTallies, wantSum, kinds := map[vip.ServiceKey]tally{}, tally{}, map[kind]int{}
			for k := range w.services.All() {
				said, _ := server.service(k)
				one := tally{usable: said.Status.Usable}
				for _, b := range said.Status.Backends {
					one.unhealthy += count(b.Health == vip.Unhealthy.String() && b.State == vip.Ready.String())
					one.ready += count(b.State == vip.Ready.String())
					one.drain += count(b.State == vip.Drain.String())
					one.maint += count(b.State == vip.Maint.String())
				}
				wantSum.ready, wantSum.drain, wantSum.maint = wantSum.ready+one.ready, wantSum.drain+one.drain, wantSum.maint+one.maint
				wantSum.usable, wantSum.unhealthy = wantSum.usable+one.usable, wantSum.unhealthy+one.unhealthy
				for _, f := range s.tables.Input(k, time.Time{}).Frontends {
					one.contested += count(f.Applied != nil && f.Applied.Warning != nil)
				}
				state := status.State(said.Status.State)
				kinds[kind{said.Source, state}]++
				chosen := slices.ContainsFunc(patterns, func(p string) bool { ok, _ := path.Match(p, "default/"+k.Name); return ok })
				healthy := tally{ready: one.ready, usable: one.ready}
				if chosen || held[k] || one != healthy || slices.Contains([]status.State{status.Degraded, status.Down, status.Refused}, state) {
					wantTallies[k] = one
				}
			}
			if got, sum := s.tallies(); !maps.Equal(got, wantTallies) || sum != wantSum {
				t.Fatalf("%v, sum %v, want %v, sum %v", got, sum, wantTallies, wantSum)
			}
			if got := s.states(); !maps.Equal(got, kinds) {
				t.Fatalf("%v, want %v", got, kinds)
			}
			var pending, failed int
			for k := range w.frontends.All() {
				f, _ := s.tables.Frontend(k)
				pending += count(f.Pending())
				failed += count(!f.Pending() && f.Applied.Problem != nil)
			}
			if got := server.dataplane(); got.Pending != pending || got.Failed != failed {
				t.Fatalf("%d frontends pending and %d failed, want %d and %d", got.Pending, got.Failed, pending, failed)
			}
		}
	})
}

// Before the first full reconcile, nothing follows the states of services, of which a start changes each several times;
// afterwards, the index looks at each once.
func TestTheIndexBeginsAfterTheStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWritten()
		d := w.deps()
		ready := make(chan struct{})
		d.Ready = ready
		s := New(d)
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Run(ctx) }()
		looked := func() int {
			s.unhealthy.mu.Lock()
			defer s.unhealthy.mu.Unlock()
			return len(s.unhealthy.changed) + len(s.unhealthy.published)
		}
		for range 3 {
			w.services.Set(vip.Service{Key: vip.ServiceKey{Namespace: "default", Name: "a"}, Source: "x"})
			time.Sleep(2 * updateInterval)
			synctest.Wait()
			expect.True(t, s.unhealthy.feed == nil, "the index follows the tables before the first full reconcile")
		}
		close(ready)
		synctest.Wait()
		expect.True(t, s.unhealthy.feed != nil, "the index does not follow the tables")
		expect.Equal(t, looked(), 0, "changes that are not published")
		end()
		<-done
	})
}
