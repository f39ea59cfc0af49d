package health

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

// world is a stage whose prober is the test.
type world struct {
	t        *testing.T
	services *table.Table[vip.ServiceKey, vip.Service]
	health   *table.Table[vip.BackendKey, vip.BackendHealth]
	results  *table.Table[probe.Target, probe.Result]
	events   *event.Log
	end      func()

	complete atomic.Int32
	assigned chan struct{}

	mu      sync.Mutex
	origin  probe.Origin // of what is found
	inARow  uint32       // of the results that a test sets
	running map[probe.Target]bool
	calls   int // of Start and Stop
}

func (w *world) Start(t probe.Target, use probe.Use) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	expect.False(w.t, w.running[t], "%s is started twice", t)
	w.running[t] = true
	r := use.Begins
	if r.Health == 0 {
		r = probe.Result{Target: t, Health: vip.Unknown}
	}
	w.results.Set(r)
}

func (w *world) Stop(t probe.Target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	expect.True(w.t, w.running[t], "%s is stopped, and does not run", t)
	delete(w.running, t)
	w.results.Delete(t)
}

func (w *world) Assigned() <-chan struct{} { return w.assigned }

func (w *world) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// begin starts a stage in a bubble.
func begin(t *testing.T, store Store) *world { return beginWith(t, store, nil) }

// inWorld runs a test in a bubble with a stage without a store.
func inWorld(t *testing.T, f func(*testing.T, *world)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) { f(t, begin(t, nil)) })
}

// beginWith starts a stage whose dataplane has paths, if there are allocations.
func beginWith(t *testing.T, store Store, allocations *table.Table[vip.ServiceKey, vip.Allocation]) *world {
	w := &world{t: t, events: event.NewLog(100, time.Now), running: map[probe.Target]bool{}, assigned: make(chan struct{})}
	clock := &table.Clock{}
	rules := Rules{Default: true}
	if allocations != nil {
		rules.Allocations = allocations
	}
	w.services = table.New(clock, vip.KeyOfService, compile.SameService)
	w.health = table.New(clock, vip.KeyOfBackendHealth, compile.SameHealth)
	w.results = probe.NewResults(clock)
	s := New(Options{Rules: rules, Complete: func() { w.complete.Add(1) }, Services: w.services, Health: w.health, Results: w.results, Store: store, Hold: 30 * time.Second, Events: w.events, Prober: w})
	w.end = scope.Go(t, s.Run)
	return w
}

// finds sets the health of the targets at an address, as of now.
func (w *world) finds(address string, health vip.Health, reason string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	found := false
	for t := range w.running {
		if t.Addr.String() == address || t.Addr.Addr().String() == address {
			found = true
			w.results.Set(probe.Result{Target: t, Health: health, Since: vip.InstantOf(time.Now()), Reason: reason, InARow: w.inARow, Origin: w.origin})
		}
	}
	expect.True(w.t, found, "nothing is probed at %s", address)
}

// rows lists the health table.
func (w *world) rows() string {
	synctest.Wait()
	var out []string
	for _, row := range w.health.All() {
		for _, c := range row.Checks {
			word := fmt.Sprintf("%s/%s %s", row.Backend.Service.Name, row.Backend.ID(), c.Health)
			if c.Ports != "" {
				word += " for " + string(c.Ports)
			}
			if c.Held() {
				word += " (held)"
			}
			out = append(out, word)
		}
	}
	slices.SortStableFunc(out, func(a, b string) int { return cmp.Compare(strings.Fields(a)[0], strings.Fields(b)[0]) })
	return strings.Join(out, "; ")
}

func (w *world) expect(when, want string) {
	w.t.Helper()
	expect.Equal(w.t, w.rows(), want, "%s", when)
}

// said returns the events of a kind.
func (w *world) said(kind string) (out []string) {
	synctest.Wait()
	all, _ := w.events.Since(0)
	for _, e := range all {
		if e.Kind == kind {
			out = append(out, e.Service+" "+e.Object+": "+e.Message)
		}
	}
	return out
}

func TestRowsFollowServicesAndResults(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.services.Set(service("web", "http:tcp:80 https:tcp:443", "10.0.0.1"))
		w.expect("before the first probe", "web/10.0.0.1 unknown for http; web/10.0.0.1 unknown for https")
		w.finds("10.0.0.1:80", vip.Healthy, "")
		w.finds("10.0.0.1:443", vip.Unhealthy, "refused")
		w.expect("after it", "web/10.0.0.1 healthy for http; web/10.0.0.1 unhealthy for https")
		if got := w.said("backend_unhealthy"); len(got) != 1 || got[0] != "web 10.0.0.1: health check: 10.0.0.1: refused" {
			t.Errorf("said %q", got)
		}
		if got := w.said("backend_healthy"); len(got) != 0 {
			t.Errorf("said %q of a backend that was never unhealthy", got)
		}
		w.finds("10.0.0.1:443", vip.Healthy, "")
		w.expect("recovered", "web/10.0.0.1 healthy for http; web/10.0.0.1 healthy for https")
		if got := w.said("backend_healthy"); len(got) != 1 || got[0] != "web 10.0.0.1: health check: 10.0.0.1" {
			t.Errorf("said %q", got)
		}
		for _, x := range []struct {
			inARow             uint32
			unhealthy, healthy string
		}{{1, "refused (1 failure)", "10.0.0.1 (1 pass)"}, {3, "refused (3 failures)", "10.0.0.1 (3 passes)"}} {
			time.Sleep(time.Second)
			w.inARow = x.inARow
			w.finds("10.0.0.1:443", vip.Unhealthy, "refused")
			synctest.Wait()
			w.finds("10.0.0.1:443", vip.Healthy, "")
			down, up := w.said("backend_unhealthy"), w.said("backend_healthy")
			if down[len(down)-1] != "web 10.0.0.1: health check: 10.0.0.1: "+x.unhealthy || up[len(up)-1] != "web 10.0.0.1: health check: "+x.healthy {
				t.Errorf("after %d in a row: %q, %q", x.inARow, down, up)
			}
		}
		w.services.Set(service("web", "http:tcp:80 https:tcp:443", "10.0.0.2/http"))
		w.expect("another backend", "web/10.0.0.2 unknown")
		outside := service("web", "http:tcp:80 https:tcp:443", "10.0.0.2/http")
		outside.NotHere = true
		w.services.Set(outside)
		w.expect("outside of the scope", "")
		expect.Empty(t, w.running, "run for others")
		w.services.Set(service("web", "http:tcp:80 https:tcp:443", "10.0.0.2/http"))
		w.expect("served again", "web/10.0.0.2 unknown")
		w.services.Delete(service("web", "").Key)
		w.expect("removed", "")
		expect.Empty(t, w.running, "still run")
	})
}

// Services that share a target share its probe. A change that concerns no check starts and stops
// nothing, and a target that stays in use is not restarted.
func TestEqualProbesRunOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.services.Set(service("web", "http:tcp:80", "10.0.0.1", "10.0.0.2"))
		w.services.Set(service("api", "http:tcp:81>80", "10.0.0.1"))
		synctest.Wait()
		w.finds("10.0.0.1", vip.Unhealthy, "refused")
		w.expect("shared", "api/10.0.0.1 unhealthy; web/10.0.0.1 unhealthy; web/10.0.0.2 unknown")
		if len(w.running) != 2 || w.calls != 2 {
			t.Errorf("%d targets after %d calls", len(w.running), w.calls)
		}
		heavier := service("web", "http:tcp:80", "10.0.0.1", "10.0.0.2")
		heavier.Backends[0].Weight = 7
		w.services.Set(heavier)
		w.services.Set(service("web", "http:tcp:80", "10.0.0.1", "10.0.0.2", "10.0.0.3"))
		w.expect("one more", "api/10.0.0.1 unhealthy; web/10.0.0.1 unhealthy; web/10.0.0.2 unknown; web/10.0.0.3 unknown")
		expect.Equal(t, w.calls, 3, "calls")
		w.services.Delete(service("web", "").Key)
		w.expect("the other service stays", "api/10.0.0.1 unhealthy")
		w.services.Delete(service("api", "").Key)
		w.expect("none", "")
		if len(w.running) != 0 || w.calls != 6 {
			t.Errorf("%d targets after %d calls", len(w.running), w.calls)
		}
	})
}

// If all healthy targets fail at the same time, their traffic is held; then they are unhealthy. A
// failure of one backend, or of all one after the other, is not held. A verdict of other hosts of
// the fleet says nothing about this host's network, even if this host agrees. It ends the hold of a
// target.
func TestHoldIsAboutThisHost(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.services.Set(service("web", "http:tcp:80", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"))
		synctest.Wait()
		found := func(origin probe.Origin, health vip.Health, addresses ...string) {
			w.origin = origin
			for _, a := range addresses {
				w.finds(a, health, "")
			}
			synctest.Wait()
		}
		found(probe.Fleet, vip.Healthy, "10.0.0.1", "10.0.0.2")
		found(probe.Agreed, vip.Healthy, "10.0.0.3", "10.0.0.4")
		found(probe.Fleet, vip.Unhealthy, "10.0.0.1", "10.0.0.2")
		w.expect("the fleet finds failures", "web/10.0.0.1 unhealthy; web/10.0.0.2 unhealthy; web/10.0.0.3 healthy; web/10.0.0.4 healthy")
		found(probe.Own, vip.Unhealthy, "10.0.0.3", "10.0.0.4")
		w.expect("this host finds the rest", "web/10.0.0.1 unhealthy; web/10.0.0.2 unhealthy; web/10.0.0.3 healthy (held); web/10.0.0.4 healthy (held)")
		found(probe.Agreed, vip.Unhealthy, "10.0.0.3")
		w.expect("the fleet finds one, too", "web/10.0.0.1 unhealthy; web/10.0.0.2 unhealthy; web/10.0.0.3 unhealthy; web/10.0.0.4 healthy (held)")
		time.Sleep(31 * time.Second)
		w.expect("after the hold", "web/10.0.0.1 unhealthy; web/10.0.0.2 unhealthy; web/10.0.0.3 unhealthy; web/10.0.0.4 unhealthy")
		found(probe.Fleet, vip.Healthy, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
		found(probe.Agreed, vip.Unhealthy, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
		w.expect("all find failures", "web/10.0.0.1 unhealthy; web/10.0.0.2 unhealthy; web/10.0.0.3 unhealthy; web/10.0.0.4 unhealthy")
	})
}

// A failure of a program of this host says nothing about its network, and is not held.
func TestThisHostIsNotHeld(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		allocations := table.New(&table.Clock{}, vip.KeyOfAllocation, compile.SameAllocation)
		w := beginWith(t, &memory{rows: map[string]Row{}}, allocations)
		lb := service("lb", "http:tcp:80", "127.0.0.1")
		lb.Forward, lb.Check = vip.ForwardHost, &vip.HealthCheck{Type: vip.CheckTCP}
		w.services.Set(lb)
		allocations.Set(vip.Allocation{Asked: &lb, VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}})
		synctest.Wait()
		w.finds("10.96.0.1", vip.Healthy, "")
		w.expect("the program runs", "lb/127.0.0.1 healthy")
		w.finds("10.96.0.1", vip.Unhealthy, "refused")
		w.expect("the program is gone", "lb/127.0.0.1 unhealthy")
		w.end()
	})
}

func TestHold(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.services.Set(service("web", "http:tcp:80", "10.0.0.1", "10.0.0.2"))
		w.services.Set(service("api", "http:tcp:80", "10.0.0.3", "10.0.0.4"))
		synctest.Wait()
		for _, a := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
			w.finds(a, vip.Healthy, "")
		}
		w.finds("10.0.0.4", vip.Unhealthy, "refused") // it never was healthy
		synctest.Wait()
		w.finds("10.0.0.1", vip.Unhealthy, "timeout")
		w.finds("10.0.0.2", vip.Unhealthy, "timeout")
		if got := w.said("backend_unhealthy"); len(got) != 2 || !strings.HasPrefix(got[1], "web 2 backends: ") {
			t.Errorf("said %q", got)
		}
		w.expect("a part", "api/10.0.0.3 healthy; api/10.0.0.4 unhealthy; web/10.0.0.1 unhealthy; web/10.0.0.2 unhealthy")
		time.Sleep(2 * time.Second)
		w.finds("10.0.0.3", vip.Unhealthy, "timeout")
		w.expect("all within a window", "api/10.0.0.3 healthy (held); api/10.0.0.4 unhealthy; web/10.0.0.1 healthy (held); web/10.0.0.2 healthy (held)")
		if got := w.said("health_held"); len(got) != 1 || !strings.HasPrefix(got[0], " 3 targets: all 3 healthy targets") {
			t.Errorf("said %q", got)
		}
		time.Sleep(10 * time.Second)
		w.finds("10.0.0.2", vip.Healthy, "")
		w.expect("one is back", "api/10.0.0.3 healthy (held); api/10.0.0.4 unhealthy; web/10.0.0.1 healthy (held); web/10.0.0.2 healthy")
		time.Sleep(21 * time.Second)
		w.expect("after the hold", "api/10.0.0.3 unhealthy; api/10.0.0.4 unhealthy; web/10.0.0.1 unhealthy; web/10.0.0.2 healthy")
		w.finds("10.0.0.2", vip.Unhealthy, "timeout")
		w.expect("the last one alone", "api/10.0.0.3 unhealthy; api/10.0.0.4 unhealthy; web/10.0.0.1 unhealthy; web/10.0.0.2 unhealthy")
		w.finds("10.0.0.1", vip.Healthy, "")
		w.finds("10.0.0.2", vip.Healthy, "")
		synctest.Wait()
		w.finds("10.0.0.1", vip.Unhealthy, "timeout")
		time.Sleep(8 * time.Second) // longer than a window of 7 s
		w.finds("10.0.0.2", vip.Unhealthy, "timeout")
		w.expect("one after the other", "api/10.0.0.3 unhealthy; api/10.0.0.4 unhealthy; web/10.0.0.1 unhealthy; web/10.0.0.2 unhealthy")
		expect.Len(t, w.said("health_held"), 1, "said")
	})
}

// memory is a Store.
type memory struct {
	mu     sync.Mutex
	rows   map[string]Row
	writes int
	err    error
}

func (m *memory) Write(put map[string]Row, remove []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	m.writes++
	maps.Copy(m.rows, put)
	for _, name := range remove {
		delete(m.rows, name)
	}
	return nil
}

func (m *memory) All() (map[string]Row, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.rows), nil
}

// The knowledge of an earlier run is in the table before the first probe, so that no traffic goes
// to an unhealthy backend after a restart. A hold ends with the agent.
func TestRestart(t *testing.T) {
	store := &memory{rows: map[string]Row{}}
	bubble.Test(t, func(t *testing.T) {
		w := begin(t, store)
		w.services.Set(service("web", "http:tcp:80", "10.0.0.1", "10.0.0.2"))
		w.services.Set(service("dns", "dns:tcp:53", "10.0.0.9"))
		synctest.Wait()
		w.finds("10.0.0.1", vip.Healthy, "")
		w.finds("10.0.0.2", vip.Unhealthy, "refused")
		w.finds("10.0.0.9", vip.Healthy, "")
		synctest.Wait()
		w.end()

		w = begin(t, store)
		known := w.services.Initializer()
		w.expect("at once", "dns/10.0.0.9 healthy; web/10.0.0.1 healthy; web/10.0.0.2 unhealthy")
		w.services.Set(service("web", "http:tcp:80", "10.0.0.1", "10.0.0.2"))
		w.expect("before a probe", "dns/10.0.0.9 healthy; web/10.0.0.1 healthy; web/10.0.0.2 unhealthy")
		known()
		w.expect("without the other service", "web/10.0.0.1 healthy; web/10.0.0.2 unhealthy")
		w.finds("10.0.0.1", vip.Unhealthy, "timeout")
		w.expect("the last healthy one", "web/10.0.0.1 unhealthy; web/10.0.0.2 unhealthy")
		w.end()
		expect.Equal(t, len(store.rows), 2, "stored %v", store.rows)
	})
}

// The result of a program of this host counts after a restart of the agent, if all checks had passed, and not after a boot.
func TestRestartOfThisHost(t *testing.T) {
	lb := service("lb", "http:tcp:80", "127.0.0.1")
	lb.Forward, lb.Check = vip.ForwardHost, &vip.HealthCheck{Type: vip.CheckTCP}
	granted := vip.Allocation{Asked: &lb, VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd96::1")}}
	bubble.Test(t, func(t *testing.T) {
		store := &memory{rows: map[string]Row{}}
		run := func(want string, find ...vip.Health) {
			allocations := table.New(&table.Clock{}, vip.KeyOfAllocation, compile.SameAllocation)
			w := beginWith(t, store, allocations)
			w.services.Set(lb)
			allocations.Set(granted)
			w.expect("at the start", want)
			for i, h := range find {
				w.finds(granted.VIPs[i].String(), h, "refused")
			}
			synctest.Wait()
			w.end()
		}
		run("lb/127.0.0.1 unknown; lb/127.0.0.1 unknown", vip.Healthy, vip.Unhealthy)
		run("lb/127.0.0.1 unknown; lb/127.0.0.1 unknown", vip.Healthy, vip.Healthy)
		run("lb/127.0.0.1 healthy; lb/127.0.0.1 healthy")
		for name, row := range store.rows {
			row.Boot = "another"
			store.rows[name] = row
		}
		run("lb/127.0.0.1 unknown; lb/127.0.0.1 unknown")
	})
}

// With direct routing, targets have the path to their backend from the VIP of its family. They follow
// the VIPs. A service whose VIPs aren't known yet keeps what an earlier run knew.
func TestPathsFollowVIPs(t *testing.T) {
	newAllocations := func() *table.Table[vip.ServiceKey, vip.Allocation] {
		return table.New(&table.Clock{}, vip.KeyOfAllocation, compile.SameAllocation)
	}
	grant := func(s *vip.Service, vips ...string) vip.Allocation {
		a := vip.Allocation{Asked: s}
		for _, v := range vips {
			a.VIPs = append(a.VIPs, netip.MustParseAddr(v))
		}
		return a
	}
	web := service("web", "http:tcp:80", "10.0.0.1", "10.0.0.2", "fd00::1")
	web.Forward = vip.ForwardDirect
	store := &memory{rows: map[string]Row{}}
	bubble.Test(t, func(t *testing.T) {
		running := func(w *world) string {
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			var all []string
			for target := range w.running {
				all = append(all, target.String())
			}
			slices.Sort(all)
			return strings.Join(all, "; ")
		}
		allocations := newAllocations()
		w := beginWith(t, store, allocations)
		w.services.Set(web)
		w.expect("before a VIP", "")
		allocations.Set(grant(&web, "10.96.0.1"))
		w.expect("with a VIP", "web/10.0.0.1 unknown; web/10.0.0.2 unknown")
		expect.Equal(t, running(w), "tcp 10.0.0.1:80 by way of 10.96.0.1; tcp 10.0.0.2:80 by way of 10.96.0.1", "probes")
		allocations.Set(grant(&web, "10.96.0.1", "fd96::1"))
		w.expect("with both families", "web/10.0.0.1 unknown; web/10.0.0.2 unknown; web/fd00::1 unknown")
		expect.Equal(t, w.calls, 3, "a second VIP took %d calls, want only that of the new target", w.calls)
		w.finds("10.0.0.2", vip.Unhealthy, "timeout")
		allocations.Set(grant(&web, "10.96.0.9", "fd96::1"))
		w.expect("with another VIP", "web/10.0.0.1 unknown; web/10.0.0.2 unknown; web/fd00::1 unknown")
		allocations.Delete(web.Key)
		w.expect("while the VIPs are unknown", "web/10.0.0.1 unknown; web/10.0.0.2 unknown; web/fd00::1 unknown")
		w.finds("10.0.0.2", vip.Unhealthy, "timeout")
		synctest.Wait()
		w.end()

		allocations = newAllocations()
		known := allocations.Initializer()
		w = beginWith(t, store, allocations)
		before := "web/10.0.0.1 unknown; web/10.0.0.2 unhealthy; web/fd00::1 unknown"
		w.services.Set(web)
		w.expect("after a restart", before)
		if n := w.complete.Load(); n != 0 || len(w.running) > 0 {
			t.Errorf("complete %d times, %v run", n, w.running)
		}
		allocations.Set(grant(&web, "10.96.0.9", "fd96::1"))
		known()
		w.expect("with the VIPs of before", before)
		expect.Equal(t, w.complete.Load(), 0, "complete before the prober knows its targets")
		close(w.assigned)
		synctest.Wait()
		expect.Equal(t, w.complete.Load(), 1, "calls of Complete")
		w.end()
	})
}

// A service without checks costs the stage the same for any number of backends.
func TestServicesWithoutChecksCostNoMemoryPerBackend(t *testing.T) {
	cost := func(backends int) int {
		clock := &table.Clock{}
		s := New(Options{Services: table.New(clock, vip.KeyOfService, nil), Health: table.New(clock, vip.KeyOfBackendHealth, nil), Results: probe.NewResults(clock), Events: event.NewLog(1, time.Now)})
		service := &vip.Service{Key: vip.ServiceKey{Namespace: "default", Name: "a"}, Check: &vip.HealthCheck{Type: vip.CheckNone}}
		for i := range backends {
			service.Backends = append(service.Backends, vip.Backend{Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), Port: 80, Weight: 1})
		}
		s.update(service, nil)
		w := s.services[service.Key]
		expect.Empty(t, w.of(0), "checks of a backend")
		s.release(w)
		return cap(w.checks)
	}
	expect.Equal(t, cost(200), cost(1), "room for checks")
}
