package rest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// host is one host of a fleet with a tree and a source.
type host struct {
	*fixture
	*fleettest.Host
	name string
	stop func() // ends the source

	endOverrides func()
}

// join starts a host on a store in memory and waits until its source runs.
func join(t *testing.T, m *fleettest.Memory, name string) *host { return joinBy(t, m, name, nil) }

// joinBy is join through engine instead of the memory's own, unless engine is nil.
func joinBy(t *testing.T, m *fleettest.Memory, name string, engine kv.Store) *host {
	t.Helper()
	h := &host{name: name, fixture: &fixture{t: t, clock: &table.Clock{}}}
	var store *registry.Shared[Record]
	var stored *registry.Shared[overrides.Override]
	h.Host = m.Run(t, fleet.Options{Node: name, Folders: []string{Folder, overrides.Folder}, KV: engine}, func(tree *fleet.Tree) {
		store, stored = Shared(tree), overrides.Shared(tree)
	})
	h.begin(h.Tree, store, stored)
	t.Cleanup(func() { h.end() })
	return h
}

// begin runs a source on registries that hosts share.
func (h *host) begin(of Fleet, store registry.Store[Record], stored registry.Store[overrides.Override]) {
	h.t.Helper()
	h.services = table.New(h.clock, vip.KeyOfService, func(a, b vip.Service) bool { return sameRow(&a, &b) })
	h.states = table.New(h.clock, vip.KeyOfBackendState, nil)
	h.events = event.NewLog(1000, time.Now)
	h.sink = &sink{services: h.services}
	src := must.Get(New(Options{Store: store, Services: h.services, Events: h.events, Fleet: of, Node: h.name}))(h.t)
	h.src = src
	h.overrides = overrides.New(overrides.Options{Store: stored, Table: h.states, Services: h.services, Health: table.New(&table.Clock{}, vip.KeyOfBackendHealth, nil), Fleet: of, Node: h.name, Fetch: src.Fetch, Events: h.events})
	h.endOverrides = scope.Go(h.t, h.overrides.Run)
	h.run()
}

// run starts the source and waits until it runs.
func (h *host) run() {
	h.t.Helper()
	h.stop = scope.Go(h.t, func(ctx context.Context) error { return h.src.Run(ctx, h.sink) })
	h.until("the source runs", h.src.running)
}

// end ends the source and the overrides.
func (h *host) end() {
	h.stop()
	h.endOverrides()
}

// rerun restarts the source, as a resync does.
func (h *host) rerun() {
	h.t.Helper()
	h.by(func() {})
}

// by restarts the source after changing it.
func (h *host) by(change func()) {
	h.t.Helper()
	h.stop()
	change()
	h.run()
}

// die ends the host without notifying the others.
func (h *host) die() {
	h.Client.SetDown(true)
	h.end()
	h.Host.End()
}

// until waits for a condition.
func (h *host) until(what string, is func() bool) {
	h.t.Helper()
	wait.Until(h.t, h.name+": "+what, is)
}

// sees waits until the host has these backends of the web service.
func (h *host) sees(want string) {
	h.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for got := ""; got != want; time.Sleep(time.Millisecond) {
		if got = fmt.Sprint(h.backends()); time.Now().After(deadline) {
			h.t.Fatalf("%s has %s, want %s", h.name, got, want)
		}
	}
}

func everyone(hosts []*host, do func(*host)) {
	for _, h := range hosts {
		do(h)
	}
}

func fleetOf(t *testing.T, m *fleettest.Memory, names ...string) (hosts []*host) {
	for _, name := range names {
		hosts = append(hosts, join(t, m, name))
	}
	return hosts
}

// pair returns two hosts of a fleet.
func pair(t *testing.T) (a, b *host) {
	m := fleettest.NewMemory()
	return join(t, m, "a"), join(t, m, "b")
}

// A service registered through one host is in effect on all. Edits through different hosts are
// combined. A later host has the result.
func TestFleetAgrees(t *testing.T) {
	m := fleettest.NewMemory()
	hosts := fleetOf(t, m, "a", "b", "c")
	first := hosts[0].put(web("10.0.0.1"))
	if first.Action != Created || first.Rev == 0 {
		t.Errorf("put: %+v", first)
	}
	if row, rev, _ := hosts[0].services.Get(webKey); rev != first.Rev || row.Source != Type {
		t.Errorf("in effect on the host it was put to: %+v at %d, not %d", row, rev, first.Rev)
	}
	everyone(hosts, func(h *host) { h.sees("[10.0.0.1 ready]") })
	expect.Equal(t, hosts[1].put(web("10.0.0.1")).Action, Unchanged, "the same through another host: action")
	hosts[1].register("10.0.0.2", 0)
	hosts[2].sees("[10.0.0.1 ready 10.0.0.2 ready]")
	must.Get(hosts[2].src.DeleteBackend(t.Context(), bkey("10.0.0.1"), nil))(t)
	hosts = append(hosts, join(t, m, "d"))
	everyone(hosts, func(h *host) { h.sees("[10.0.0.2 ready]") })
	must.Get(hosts[3].src.DeleteService(t.Context(), webKey, nil))(t)
	everyone(hosts, func(h *host) {
		h.until("the service is gone", func() bool { return h.services.Len() == 0 })
	})
}

// isWrite reports whether a call to the store writes services.
func isWrite(c fleettest.Call) bool {
	return slices.ContainsFunc(c.Ops, func(op kv.Op) bool { return strings.Contains(op.Key, "/tree/"+Folder) })
}

// overtaken runs a write. Before its commit it calls by.
func (h *host) overtaken(write func() error, by func()) error {
	var once sync.Once
	ran := false
	h.Client.Before(func(c fleettest.Call) error {
		if isWrite(c) {
			once.Do(func() { ran = true; by() })
		}
		return nil
	})
	defer h.Client.Before(nil)
	err := write()
	expect.True(h.t, ran, "the store was not asked")
	return err
}

// If two hosts register one name at the same time, one succeeds. The other's error names the first
// host.
func TestOneNameThroughTwoHosts(t *testing.T) {
	hosts := fleetOf(t, fleettest.NewMemory(), "a", "b", "c")
	a, b := hosts[0], hosts[1]
	put := func(s spec.Service) func() error {
		return func() error { _, err := b.src.PutService(t.Context(), Put{Spec: s}); return err }
	}
	var conflict *registry.ConflictError

	err := b.overtaken(put(web("10.0.0.2")), func() { a.put(web("10.0.0.1")) })
	if !errors.As(err, &conflict) || conflict.Node != "a" || conflict.Service != webKey || !strings.Contains(err.Error(), `"a"`) {
		t.Fatalf("the second: %v", err)
	}
	everyone(hosts, func(h *host) { h.sees("[10.0.0.1 ready]") })

	expect.Succeed(t, b.overtaken(put(web("10.0.0.3")), func() { a.put(web("10.0.0.3")) }), "the same through both")
	everyone(hosts, func(h *host) { h.sees("[10.0.0.3 ready]") })

	err = b.overtaken(func() error { _, err := b.src.DeleteService(t.Context(), webKey, nil); return err }, func() { a.put(web("10.0.0.4")) })
	if !errors.As(err, &conflict) || conflict.Node != "a" {
		t.Errorf("a removal of what was replaced: %v", err)
	}
	everyone(hosts, func(h *host) { h.sees("[10.0.0.4 ready]") })

	// Registrations of backends do not count as a put of the service.
	expect.Succeed(t, b.overtaken(put(web()), func() { a.register("10.0.0.9", 0) }), "a service that backends registered with meanwhile")
	everyone(hosts, func(h *host) { h.sees("[10.0.0.9 ready]") })

	// A host that does not know of a removal yet must not report that the backend is unchanged.
	err = b.overtaken(func() error {
		_, _, err := b.src.PutBackend(t.Context(), webKey, spec.Backend{Address: "10.0.0.9"}, 0, nil)
		return err
	}, func() {
		if _, err := a.src.DeleteBackend(t.Context(), bkey("10.0.0.9"), nil); err != nil {
			t.Error(err)
		}
	})
	expect.Succeed(t, err, "a backend that was removed")
	everyone(hosts, func(h *host) { h.sees("[10.0.0.9 ready]") })

	err = b.overtaken(put(web("10.0.0.5")), func() {
		if _, err := a.src.DeleteService(t.Context(), webKey, nil); err != nil {
			t.Error(err)
		}
	})
	if !errors.As(err, &conflict) || !conflict.Removed {
		t.Errorf("a service that was removed: %v", err)
	}

	many := []Put{{Spec: web("10.0.0.6")}, {Spec: spec.Service{Name: "other", Ports: []spec.Port{{Port: spec.PortRange{First: 1}}}}}}
	for i, atomic := range []bool{true, false} {
		var results []Result
		err := b.overtaken(func() (err error) { results, err = b.src.PutServices(t.Context(), many, atomic); return err },
			func() { a.put(web(fmt.Sprintf("10.0.1.%d", i+1))) })
		must.Succeed(t, err)
		if !errors.As(results[0].Err, &conflict) || results[0].Action != Refused || (results[1].Rev != 0) == atomic {
			t.Errorf("many, atomic %v: %+v", atomic, results)
		}
		_, _, there := b.services.Get(vip.ServiceKey{Namespace: "default", Name: "other"})
		expect.True(t, there != atomic, "many, atomic %v: the other is there: %v", atomic, there)
	}
}

// A conflicting value that is gone before the writer can read it does not refuse the write. In
// particular it does not count as unreadable. The value is written and deleted without the log, so
// that the writer must read it.
func TestConflictThatIsGoneIsRetried(t *testing.T) {
	m := fleettest.NewMemory()
	hosts := fleetOf(t, m, "a", "b")
	a, b := hosts[0], hosts[1]
	// passing runs a write that conflicts with a value at key. The value is gone when it is read.
	passing := func(write func() error, key, value string) {
		t.Helper()
		var came, went sync.Once
		var met, left atomic.Bool
		b.Client.Before(func(c fleettest.Call) error {
			for _, op := range c.Ops {
				if strings.HasSuffix(op.Key, key) {
					came.Do(func() { m.Put(op.Key, value); met.Store(true) })
				}
			}
			if met.Load() && c.Method == "Get" && strings.HasSuffix(c.Key, key) {
				went.Do(func() { m.Delete(c.Key); left.Store(true) })
			}
			return nil
		})
		defer b.Client.Before(nil)
		if err := write(); err != nil || !met.Load() || !left.Load() {
			t.Errorf("%s: %v; was in the way: %v; was read: %v", key, err, met.Load(), left.Load())
		}
	}
	// stored returns what the store has at key, which then is deleted.
	stored := func(key string, remove func()) (value string) {
		t.Helper()
		for _, p := range m.Pairs("") {
			if strings.HasSuffix(p.Key, key) {
				value = string(p.Value)
			}
		}
		remove()
		must.True(t, value != "", "nothing is stored at %s", key)
		return value
	}

	const service, state = "/services/default/web", "/states/default/web/10.0.0.1"
	a.put(web("10.0.0.2"))
	b.sees("[10.0.0.2 ready]") // otherwise b could take the service as gone before it has come
	other := stored(service, func() {
		if _, err := a.src.DeleteService(t.Context(), webKey, nil); err != nil {
			t.Error(err)
		}
	})
	b.until("the service is gone", func() bool { _, _, there := b.services.Get(webKey); return !there })
	passing(func() error { _, err := b.src.PutService(t.Context(), Put{Spec: web("10.0.0.1")}); return err }, service, other)
	everyone(hosts, func(h *host) { h.sees("[10.0.0.1 ready]") })

	drained := bkey("10.0.0.1")
	a.override(drained, vip.Maint)
	b.until("the override is there", func() bool { _, _, there := b.states.Get(vip.OverrideKey{BackendKey: drained}); return there })
	other = stored(state, func() { a.override(drained, vip.Ready) })
	b.until("the override is gone", func() bool { _, _, there := b.states.Get(vip.OverrideKey{BackendKey: drained}); return !there })
	passing(func() error { _, err := b.overrides.Set(t.Context(), operator(drained, vip.Drain)); return err }, state, other)
	everyone(hosts, func(h *host) {
		h.until("it drains", func() bool {
			s, _, _ := h.states.Get(vip.OverrideKey{BackendKey: drained})
			return s.State == vip.Drain
		})
	})
}

// afterwards is a registry that calls a function after each Commit, before Commit returns.
type afterwards struct {
	registry.Store[Record]
	do func()
}

func (r afterwards) Commit(ctx context.Context, batches []*registry.Batch[Record]) error {
	err := r.Store.Commit(ctx, batches)
	r.do()
	return err
}

// A new service that another host deletes at once was created. It isn't refused as a name of
// another source.
func TestCreatedAndDeletedAtOnce(t *testing.T) {
	for _, atomic := range []bool{false, true} {
		a, b := pair(t)
		store := a.src.Store
		var once sync.Once
		deleted := func() {
			b.sees("[10.0.0.1 ready]")
			if _, err := b.src.DeleteService(t.Context(), webKey, nil); err != nil {
				t.Error(err)
			}
			a.until("it knows that", func() bool { return store.Version(registry.Key(webKey)) == 0 })
		}
		a.by(func() { a.src.Store = afterwards{store, func() { once.Do(deleted) }} })
		results, err := a.src.PutServices(t.Context(), []Put{{Spec: web("10.0.0.1")}}, atomic)
		if err != nil || results[0].Err != nil || results[0].Action != Created {
			t.Errorf("atomic %v: %+v, %v", atomic, results, err)
		}
		everyone([]*host{a, b}, func(h *host) { h.sees("[]") })
	}
}

// failing is a registry with a store that is unavailable from the nth Commit on.
type failing[V any] struct {
	registry.Store[V]
	nth    int
	before func() // before the first failure
}

func (f *failing[V]) Commit(ctx context.Context, batches []*registry.Batch[V]) error {
	if f.nth--; f.nth == 0 {
		return &registry.StoreError{Err: errors.New("away")}
	}
	f.before()
	return f.Store.Commit(ctx, batches)
}

// If the store becomes unavailable after a part of a write, the error does not state that nothing
// has changed.
func TestStoreAwayAfterPartOfAWrite(t *testing.T) {
	db := web("10.0.0.9")
	db.Name = "db"
	for nth, unknown := range map[int]bool{1: false, 2: true} {
		check := func(what string, err error) {
			t.Helper()
			var store *registry.StoreError
			if !errors.As(err, &store) || store.Unknown != unknown {
				t.Errorf("%s, away at the %d. write: %v", what, nth, err)
			}
		}
		a, b := pair(t)
		b.put(web("10.0.0.1"))
		a.sees("[10.0.0.1 ready]")
		meanwhile := func() { // the host learns of the service with this backend too late
			if _, _, err := b.src.PutBackend(t.Context(), webKey, spec.Backend{Address: "10.0.0.2"}, 0, nil); err != nil {
				t.Error(err)
			}
		}
		a.by(func() { a.src.Store = &failing[Record]{a.src.Store, nth, meanwhile} })
		_, err := a.src.PutServices(t.Context(), []Put{{Spec: web("10.0.0.1")}, {Spec: db}}, false)
		check("two services", err)
	}
}

// No backend is lost when backends register through all hosts at once.
func TestRegistrationsThroughAllHosts(t *testing.T) {
	hosts := fleetOf(t, fleettest.NewMemory(), "a", "b", "c")
	hosts[0].put(web())
	everyone(hosts, func(h *host) { h.sees("[]") })
	const each = 20
	var wg sync.WaitGroup
	for n, h := range hosts {
		for i := range each {
			wg.Go(func() {
				if _, created, err := h.src.PutBackend(t.Context(), webKey, spec.Backend{Address: fmt.Sprintf("10.0.%d.%d", n, i+1)}, time.Minute, nil); err != nil || !created {
					t.Errorf("created %v, %v", created, err)
				}
			})
		}
	}
	wg.Wait()
	everyone(hosts, func(h *host) {
		h.until("all are there", func() bool { return len(h.backends()) == each*len(hosts) })
		for id, life := range h.src.HeartbeatStatuses(webKey) {
			if want := string("abc"[id[5]-'0']); life.Owner != want || life.Due.IsZero() == (want == h.name) {
				t.Errorf("on %s: %s: %+v", h.name, id, life)
			}
		}
	})
}

// fleetBubble runs f with a fleet on a fake clock.
func fleetBubble(t *testing.T, f func(t *testing.T, m *fleettest.Memory, hosts []*host)) {
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		hosts := fleetOf(t, m, "a", "b", "c")
		defer everyone(hosts, func(h *host) { h.end(); h.Host.End() })
		f(t, m, hosts)
	})
}

func TestOwnerCountsForAll(t *testing.T) {
	fleetBubble(t, func(t *testing.T, m *fleettest.Memory, hosts []*host) {
		a, b := hosts[0], hosts[1]
		a.put(web())
		a.register("10.0.0.9", 10*time.Second)
		for range 5 {
			time.Sleep(9 * time.Second)
			must.Succeed(t, a.src.Heartbeat(t.Context(), bkey("10.0.0.9")))
		}
		value, _ := m.Get("ironvip/v2/tree/services/default/web")
		everyone(hosts, func(h *host) { h.sees("[10.0.0.9 ready]") })

		// A heartbeat to another host is one write and changes the owner.
		must.Succeed(t, b.src.Heartbeat(t.Context(), bkey("10.0.0.9")))
		moved, _ := m.Get("ironvip/v2/tree/services/default/web")
		if moved == value || b.src.HeartbeatStatuses(webKey)["10.0.0.9"].Owner != "b" {
			t.Errorf("owner: %+v", b.src.HeartbeatStatuses(webKey))
		}
		for range 5 {
			time.Sleep(9 * time.Second)
			must.Succeed(t, b.src.Heartbeat(t.Context(), bkey("10.0.0.9")))
		}
		now, _ := m.Get("ironvip/v2/tree/services/default/web")
		expect.Equal(t, now, moved, "heartbeats wrote")
		everyone(hosts, func(h *host) { h.sees("[10.0.0.9 ready]") })

		time.Sleep(10 * time.Second)
		synctest.Wait()
		everyone(hosts, func(h *host) { h.sees("[10.0.0.9 unhealthy]") })
		must.Succeed(t, a.src.Heartbeat(t.Context(), bkey("10.0.0.9")))
		everyone(hosts, func(h *host) { h.sees("[10.0.0.9 ready]") })

		time.Sleep(11 * time.Second)
		everyone(hosts, func(h *host) { h.sees("[10.0.0.9 unhealthy]") })
		// Registering again through another host is a heartbeat.
		b.register("10.0.0.9", 10*time.Second)
		everyone(hosts, func(h *host) { h.sees("[10.0.0.9 ready]") })
		time.Sleep(10*time.Second + 61*time.Second)
		everyone(hosts, func(h *host) { h.sees("[]") })
		expect.Is(t, a.src.Heartbeat(t.Context(), bkey("10.0.0.9")), registry.ErrNoBackend, "a heartbeat of the removed one")
		everyone(hosts, func(h *host) {
			kinds := map[string]int{}
			evs, _ := h.events.Since(0)
			for _, e := range evs {
				kinds[e.Kind]++
			}
			if kinds["backend_expired"] != 3 || kinds["backend_alive"] != 2 {
				t.Errorf("%s: events %v", h.name, kinds)
			}
		})
	})
}

// The lapse is in the record, so a restart of the owner does not revert it.
func TestLapseOutlivesItsOwner(t *testing.T) {
	fleetBubble(t, func(t *testing.T, m *fleettest.Memory, hosts []*host) {
		a := hosts[0]
		a.put(web())
		a.register("10.0.0.9", 10*time.Second)
		time.Sleep(11 * time.Second)
		everyone(hosts, func(h *host) { h.sees("[10.0.0.9 unhealthy]") })
		a.end()
		a.Host.End()
		back := join(t, m, "a")
		defer func() { back.end(); back.Host.End() }()
		back.sees("[10.0.0.9 unhealthy]")
		time.Sleep(59 * time.Second)
		everyone(hosts[1:], func(h *host) { h.sees("[10.0.0.9 unhealthy]") })
		time.Sleep(5 * time.Second)
		everyone(hosts[1:], func(h *host) { h.sees("[]") })
	})
}

// A host returns after another host has taken its name. When it could not get its name for the ttl,
// it refuses heartbeats, so that backends send them to the other host. It does not drain backends
// that send heartbeats only to the other host. When it has the name again, it drains a silent
// backend.
func TestHeartbeatsToAHostThatLostItsName(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		one := join(t, m, "a")
		defer func() { one.end(); one.Host.End() }()
		one.put(web())
		one.Client.SetDown(true)
		time.Sleep(20 * time.Second) // its session expires
		two := joinBy(t, m, "a", m.Client("b"))
		one.Client.SetDown(false)
		one.until("it finds the other host", func() bool { return one.Duplicate() != nil })
		time.Sleep(20 * time.Second)
		if one.Duplicate() == nil || two.Duplicate() != nil {
			t.Fatalf("%v, %v", one.Duplicate(), two.Duplicate())
		}
		two.register("10.0.0.8", 10*time.Second)
		two.register("10.0.0.9", 10*time.Second)
		beat := func(h *host, backend string) error { return h.src.Heartbeat(t.Context(), bkey(backend)) }
		for i := range 60 {
			time.Sleep(2 * time.Second)
			for _, backend := range []string{"10.0.0.8", "10.0.0.9"} {
				if backend == "10.0.0.8" && i/10%2 == 0 { // it tries the other host first, for longer than a ttl
					must.Is(t, beat(one, backend), registry.ErrStore, "a heartbeat that the holder of the name doesn't receive")
				}
				must.Succeed(t, beat(two, backend))
			}
		}
		for _, h := range []*host{one, two} {
			h.sees("[10.0.0.8 ready 10.0.0.9 ready]")
			expect.Equal(t, kindsOf(h.events, "backend_expired"), 0, "backends were drained that live")
		}
		two.end()
		two.Host.End()
		for range 30 {
			time.Sleep(2 * time.Second)
			_ = beat(one, "10.0.0.8") // refused until it has its name again
		}
		one.sees("[10.0.0.8 ready 10.0.0.9 unhealthy]")
	})
}

func kindsOf(events *event.Log, kind string) (n int) {
	all, _ := events.Since(0)
	for _, e := range all {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// When the owner is gone, the elected host waits for a full ttl and marks the lapse. A backend that
// reached another host in time stays.
func TestOwnerDies(t *testing.T) {
	fleetBubble(t, func(t *testing.T, m *fleettest.Memory, hosts []*host) {
		a, others := hosts[0], hosts[1:]
		a.put(web())
		const ttl = 2 * time.Minute
		a.register("10.0.0.8", ttl)
		a.register("10.0.0.9", ttl)
		everyone(hosts, func(h *host) { h.sees("[10.0.0.8 ready 10.0.0.9 ready]") })
		time.Sleep(time.Minute) // every host has seen every other
		a.die()
		time.Sleep(ttl) // one ttl after its death; no other host has known about it that long
		everyone(others, func(h *host) { h.sees("[10.0.0.8 ready 10.0.0.9 ready]") })
		must.Succeed(t, others[1].src.Heartbeat(t.Context(), bkey("10.0.0.8")))
		time.Sleep(time.Minute + 30*time.Second)
		everyone(others, func(h *host) { h.sees("[10.0.0.8 ready 10.0.0.9 unhealthy]") })
		if life := others[0].src.HeartbeatStatuses(webKey)["10.0.0.9"]; life.Owner == "a" || !life.Missed {
			t.Errorf("after the lapse: %+v", life)
		}
		must.Succeed(t, others[1].src.Heartbeat(t.Context(), bkey("10.0.0.8")))
		time.Sleep(ttl - time.Second)
		everyone(others, func(h *host) { h.sees("[10.0.0.8 ready]") })
	})
}

// A suspended host has not received the heartbeats that it counts.
func TestSuspendedOwnerGivesTime(t *testing.T) {
	fleetBubble(t, func(t *testing.T, m *fleettest.Memory, hosts []*host) {
		a := hosts[0]
		a.put(web())
		a.register("10.0.0.9", 10*time.Second)
		due := func() time.Time { return a.src.HeartbeatStatuses(webKey)["10.0.0.9"].Due }
		before := due()
		time.Sleep(8 * time.Second)
		a.src.checkDelay(maxDelay - 1)
		if got := due(); !got.Equal(before) {
			t.Errorf("due at %s, was %s", got, before)
		}
		a.src.checkDelay(maxDelay)
		if got := due(); !got.Equal(time.Now().Add(10 * time.Second)) {
			t.Errorf("due in %s", time.Until(got))
		}
		time.Sleep(9 * time.Second)
		everyone(hosts, func(h *host) { h.sees("[10.0.0.9 ready]") })
		time.Sleep(2 * time.Second)
		everyone(hosts, func(h *host) { h.sees("[10.0.0.9 unhealthy]") })
	})
}

// While the store is unavailable, rows stay, writes are refused, and no deadline is handled. No
// other host could receive a heartbeat.
func TestStoreAway(t *testing.T) {
	fleetBubble(t, func(t *testing.T, m *fleettest.Memory, hosts []*host) {
		a := hosts[0]
		a.put(web("10.0.0.1"))
		a.register("10.0.0.9", 10*time.Second)
		everyone(hosts, func(h *host) { h.sees("[10.0.0.1 ready 10.0.0.9 ready]") })
		m.SetDown(true)
		everyone(hosts, func(h *host) {
			h.until("it is stale", func() bool { why, _ := h.src.Store.Stale(); return why != "" })
		})
		ctx := t.Context()
		writes := a.writes(ctx)
		writes["heartbeat to the other"] = func() error { return hosts[1].src.Heartbeat(ctx, bkey("10.0.0.9")) }
		for name, try := range writes {
			var store *registry.StoreError
			if err := try(); !errors.Is(err, registry.ErrStore) || !errors.Is(err, fleet.ErrUnavailable) || !errors.As(err, &store) || store.Unknown {
				t.Errorf("%s: %v", name, err)
			}
		}
		staleFor := func() time.Duration {
			a.src.mu.Lock()
			defer a.src.mu.Unlock()
			return time.Since(a.src.staleSince)
		}
		if err := a.src.Heartbeat(ctx, bkey("10.0.0.9")); err != nil && staleFor() < 10*time.Second {
			t.Errorf("a heartbeat to its owner: %v", err)
		}
		time.Sleep(5 * time.Minute)
		expect.Is(t, a.src.Heartbeat(ctx, bkey("10.0.0.9")), registry.ErrStore, "a heartbeat to an owner that nobody can reach")
		everyone(hosts, func(h *host) { h.sees("[10.0.0.1 ready 10.0.0.9 ready]") })
		m.SetDown(false)
		a.until("it is in touch", func() bool {
			a.src.mu.Lock()
			defer a.src.mu.Unlock()
			return a.src.stale == ""
		})
		time.Sleep(9 * time.Second)
		a.sees("[10.0.0.1 ready 10.0.0.9 ready]")
		time.Sleep(30 * time.Second)
		everyone(hosts, func(h *host) { h.sees("[10.0.0.1 ready 10.0.0.9 unhealthy]") })
		a.put(web("10.0.0.2"))
		everyone(hosts, func(h *host) { h.sees("[10.0.0.2 ready]") })
	})
}

// A write with a lost answer is reported as not confirmed. All hosts agree on its result.
func TestLostAnswer(t *testing.T) {
	fleetBubble(t, func(t *testing.T, m *fleettest.Memory, hosts []*host) {
		b := hosts[1]
		b.Client.Before(func(c fleettest.Call) error {
			if isWrite(c) {
				b.Client.LoseAnswers(1)
				b.Client.Before(func(c fleettest.Call) error {
					if c.Method == "Txn" {
						return fleettest.ErrDown
					}
					return nil
				})
			}
			return nil
		})
		_, err := b.src.PutService(t.Context(), Put{Spec: web("10.0.0.1")})
		var store *registry.StoreError
		if !errors.As(err, &store) || !store.Unknown || !errors.Is(err, fleet.ErrUnavailable) {
			t.Fatalf("a write that nobody confirmed: %v", err)
		}
		b.Client.Before(nil)
		everyone(hosts, func(h *host) { h.sees("[10.0.0.1 ready]") })
		expect.Equal(t, b.put(web("10.0.0.1")).Action, Unchanged, "again: action")
	})
}

// Values that ironvip did not write are reported by key and not changed. They remove nothing that
// is in effect.
func TestJunkInTheFolders(t *testing.T) {
	fleetBubble(t, func(t *testing.T, m *fleettest.Memory, hosts []*host) {
		const at = "ironvip/v2/tree/services/default/"
		a := hosts[0]
		a.put(web("10.0.0.1"))
		good, _ := m.Get(at + "web")
		everyone(hosts, func(h *host) { h.sees("[10.0.0.1 ready]") })
		junk := map[string]string{
			at + "junk":    "#!/bin/sh",
			at + "short":   good[:len(good)/2],
			at + "foreign": strings.Replace(good, `{"v":1,`, `{"v":2,`, 1),
			at + "other":   good, // the value of another service
			"ironvip/v2/tree/states/default/web/10.0.0.1":         `{"v":1,"value":{"state":"asleep","since":"2020-01-01T00:00:00Z"}}`,
			"ironvip/v2/tree/states/default/web/nobody":           `{"v":1,"value":{"state":"drain","since":"2020-01-01T00:00:00Z"}}`,
			"ironvip/v2/tree/states/default/web/010.0.0.1":        "x",
			"ironvip/v2/tree/services/default/web/and/more/of/it": good,
		}
		for key, value := range junk {
			m.Put(key, value)
		}
		m.Put(at+"web", "overwritten")
		time.Sleep(10 * time.Minute) // writes that bypass the tree are found by a full read
		problems := func(h *host) string {
			h.sink.mu.Lock()
			defer h.sink.mu.Unlock()
			return fmt.Sprint(append(slices.Clone(h.sink.problems), h.overrides.Problems()...))
		}
		everyone(hosts, func(h *host) {
			for key := range junk {
				expect.Contains(t, problems(h), key, "%s: no problem names %s", h.name, key)
			}
			h.sees("[10.0.0.1 ready]")
			if h.services.Len() != 1 || h.states.Len() != 0 {
				t.Errorf("%s: %d services, %d states", h.name, h.services.Len(), h.states.Len())
			}
		})
		var conflict *registry.ConflictError
		for name, err := range map[string]error{
			"junk":  second(a.src.PutService(t.Context(), Put{Spec: spec.Service{Name: "junk", Ports: []spec.Port{{Port: spec.PortRange{First: 1}}}}})),
			"web":   second(a.src.PutService(t.Context(), Put{Spec: web("10.0.0.2")})),
			"edit":  third(a.src.PutBackend(t.Context(), webKey, spec.Backend{Address: "10.0.0.2"}, 0, nil)),
			"gone":  second(a.src.DeleteService(t.Context(), webKey, nil)),
			"state": second(a.overrides.Set(t.Context(), operator(bkey("10.0.0.1"), vip.Drain))),
		} {
			if !errors.As(err, &conflict) || !conflict.Unreadable {
				t.Errorf("%s over junk: %v", name, err)
			}
		}
		for key, value := range junk {
			now, _ := m.Get(key)
			expect.Equal(t, now, value, "%s was overwritten", key)
			m.Delete(key)
		}
		m.Delete(at + "web")
		time.Sleep(10 * time.Minute)
		everyone(hosts, func(h *host) {
			h.sees("[]")
			expect.Equal(t, problems(h), "[]", "%s: problems stay", h.name)
		})
		a.put(web("10.0.0.3"))
		everyone(hosts, func(h *host) { h.sees("[10.0.0.3 ready]") })
	})
}

// After invalid data that replaced a registration is removed and the source is resynced, the
// registration is gone, as on a new host.
func TestJunkThatIsRemovedLeavesNothing(t *testing.T) {
	fleetBubble(t, func(t *testing.T, m *fleettest.Memory, hosts []*host) {
		const at, state = "ironvip/v2/tree/services/default/web", "ironvip/v2/tree/states/default/web/10.0.0.1"
		h := hosts[0]
		h.put(web("10.0.0.1"))
		must.Get(h.overrides.Set(t.Context(), operator(bkey("10.0.0.1"), vip.Drain)))(t)
		reread := func() {
			must.Succeed(t, h.Tree.Reread(t.Context()))
		}
		m.Put(at, "junk")
		m.Put(state, "junk")
		reread()
		synctest.Wait()
		if h.services.Len() != 1 || h.states.Len() != 1 {
			t.Fatalf("%d services, %d states are left of what is not removed", h.services.Len(), h.states.Len())
		}
		m.Delete(at)
		m.Delete(state)
		reread()
		h.rerun()
		synctest.Wait()
		if h.services.Len() != 0 || h.states.Len() != 0 {
			t.Errorf("%d services, %d states are left", h.services.Len(), h.states.Len())
		}
	})
}

// A host that starts while the store is unavailable publishes only the reason. Its first full list
// follows when the store is available.
func TestStartWithoutTheStore(t *testing.T) {
	fleetBubble(t, func(t *testing.T, m *fleettest.Memory, hosts []*host) {
		hosts[0].put(web("10.0.0.1"))
		m.Client("late").SetDown(true)
		late := &host{name: "late", fixture: &fixture{t: t, clock: &table.Clock{}}}
		var store *registry.Shared[Record]
		var stored *registry.Shared[overrides.Override]
		late.Host = m.Run(t, fleet.Options{Node: "late", Folders: []string{Folder, overrides.Folder}}, func(tree *fleet.Tree) {
			store, stored = Shared(tree), overrides.Shared(tree)
		})
		defer late.Host.End()
		states := table.New(late.clock, vip.KeyOfBackendState, nil)
		src := must.Get(New(Options{Store: store, Fleet: late.Tree, Node: "late"}))(t)
		late.services = table.New(late.clock, vip.KeyOfService, nil)
		out := &staleSink{sink: sink{services: late.services}}
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { _ = src.Run(ctx, out) })
		run.Go(func() {
			_ = overrides.New(overrides.Options{Store: stored, Table: states, Services: late.services, Health: table.New(&table.Clock{}, vip.KeyOfBackendHealth, nil), Fleet: late.Tree, Node: "late"}).Run(ctx)
		})
		defer run.Wait()
		defer cancel()
		time.Sleep(startTimeout / 2)
		expect.Equal(t, out.why(), "", "stale before any start can be over")
		time.Sleep(10 * time.Second)
		if table.IsClosed(states.Ready()) || out.why() == "" || out.replaced != 0 {
			t.Errorf("states ready, stale %q, %d lists", out.why(), out.replaced)
		}
		_, err := src.PutService(ctx, Put{Spec: web()})
		expect.Is(t, err, registry.ErrNotRunning, "put")
		time.Sleep(time.Minute)
		expect.True(t, table.IsClosed(states.Ready()), "the other sources' services wait for the states for ever")
		m.Client("late").SetDown(false)
		late.sees("[10.0.0.1 ready]")
		synctest.Wait()
		expect.Equal(t, out.why(), "", "still stale")
	})
}

// A host that was in the fleet before starts with its cached state.
func TestStartFromWhatWasLastKnown(t *testing.T) {
	fleetBubble(t, func(t *testing.T, m *fleettest.Memory, hosts []*host) {
		db := must.Get(store.Open(filepath.Join(t.TempDir(), "ironvip.db")))(t)
		defer db.Close()
		start := func() *host {
			h := &host{name: "d", fixture: &fixture{t: t, clock: &table.Clock{}}}
			var store *registry.Shared[Record]
			var stored *registry.Shared[overrides.Override]
			h.Host = m.Run(t, fleet.Options{Node: "d", Folders: []string{Folder, overrides.Folder}, Cache: db}, func(tree *fleet.Tree) {
				store, stored = Shared(tree), overrides.Shared(tree)
			})
			h.begin(h.Tree, store, stored)
			return h
		}
		first := start()
		first.put(web("10.0.0.1"))
		must.Get(first.overrides.Set(t.Context(), operator(bkey("10.0.0.1"), vip.Drain)))(t)
		time.Sleep(time.Minute) // the cache is written later than the changes
		first.end()
		first.Host.End()
		m.Client("d").SetDown(true)
		again := start()
		again.sees("[10.0.0.1 ready]")
		st, _, _ := again.states.Get(vip.OverrideKey{BackendKey: bkey("10.0.0.1")})
		expect.Equal(t, st.State, vip.Drain, "the operator's word")
		_, err := again.src.PutService(t.Context(), Put{Spec: web("10.0.0.2")})
		expect.Is(t, err, fleet.ErrUnavailable, "a write")
		hosts[0].put(web("10.0.0.3"))
		m.Client("d").SetDown(false)
		again.sees("[10.0.0.3 ready]")
		again.end()
		again.Host.End()
	})
}

type staleSink struct {
	sink
	stale string
}

func (k *staleSink) Stale(err error) { k.mu.Lock(); defer k.mu.Unlock(); k.stale = err.Error() }
func (k *staleSink) Fresh()          { k.mu.Lock(); defer k.mu.Unlock(); k.stale = "" }
func (k *staleSink) Replace(list []vip.Service, problems []vip.Problem) {
	k.Fresh()
	k.sink.Replace(list, problems)
}
func (k *staleSink) why() string { k.mu.Lock(); defer k.mu.Unlock(); return k.stale }

// joint records the new services that it should write with their leases.
type joint struct {
	tree   *fleet.Tree
	writes bool
	asked  []string
}

func (j *joint) Commit(ctx context.Context, service vip.Service, b *fleet.Batch) (bool, error) {
	j.asked = append(j.asked, service.Key.Name)
	if !j.writes {
		return false, nil
	}
	return true, j.tree.Commit(ctx, []*fleet.Batch{b})
}

// A new service is written together with its leases, or alone if the LeaseWriter does not do it. Other
// changes are always written alone.
func TestNewServiceIsWrittenJointly(t *testing.T) {
	h := join(t, fleettest.NewMemory(), "a")
	j := &joint{tree: h.Tree}
	h.src.Leases = j
	named := func(name, addr string) Put {
		p := Put{Spec: web(addr)}
		p.Spec.Name = name
		return p
	}
	for _, c := range []struct {
		puts   []Put
		writes bool
		want   Action
		asked  string
	}{
		{[]Put{named("one", "10.0.0.1")}, true, Created, "[one]"},
		{[]Put{named("one", "10.0.0.1")}, true, Unchanged, "[]"},
		{[]Put{named("one", "10.0.0.2")}, true, Updated, "[]"},
		{[]Put{named("two", "10.0.0.1")}, false, Created, "[two]"},
		{[]Put{named("three", "10.0.0.1"), named("four", "10.0.0.1")}, true, Created, "[]"},
	} {
		j.asked, j.writes = nil, c.writes
		results := must.Get(h.src.PutServices(t.Context(), c.puts, false))(t)
		for _, r := range results {
			if r.Err != nil || r.Action != c.want || r.Rev == 0 && r.Action != Unchanged {
				t.Errorf("%+v", r)
			}
		}
		expect.Equal(t, fmt.Sprint(j.asked), c.asked, "asked for")
	}
	if _, err := h.src.DeleteService(t.Context(), vip.ServiceKey{Namespace: "default", Name: "one"}, nil); err != nil || len(j.asked) != 0 {
		t.Errorf("%v, asked for %v", err, j.asked)
	}
}

// override sets a backend's state.
func (h *host) override(b vip.BackendKey, to vip.State) {
	h.t.Helper()
	must.Get(h.overrides.Set(h.t.Context(), operator(b, to)))(h.t)
}
