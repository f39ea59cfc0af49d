package overrides

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var webKey = vip.ServiceKey{Namespace: "default", Name: "web"}

func backend(address string) vip.BackendKey {
	return vip.BackendKey{Service: webKey, Address: netip.MustParseAddr(address)}
}

func request(address string, to vip.State) Request {
	return Request{Backend: backend(address), State: to, Author: "root"}
}

// host is one host with overrides and the services table that a test fills.
type host struct {
	*Overrides
	t        *testing.T
	name     string
	services *table.Table[vip.ServiceKey, vip.Service]
	table    *table.Table[vip.OverrideKey, vip.BackendState]
	passive  *table.Table[vip.PassiveKey, vip.PassiveHealth]
	events   *event.Log
	tree     *fleettest.Host // nil: no fleet
	stop     func()
}

func newHost(t *testing.T, name string, clock *table.Clock, o Options) *host {
	h := &host{t: t, name: name, services: table.New(clock, vip.KeyOfService, nil), table: table.New(clock, vip.KeyOfBackendState, nil), events: event.NewLog(100, time.Now)}
	o.Node, o.Services, o.Table, o.Events = name, h.services, h.table, h.events
	o.Health = table.New(&table.Clock{}, vip.KeyOfBackendHealth, nil)
	h.passive = table.New(&table.Clock{}, vip.KeyOfPassiveHealth, nil)
	o.Passive = h.passive
	h.Overrides = New(o)
	return h
}

// start runs the overrides until stop.
func (h *host) start() {
	h.stop = scope.Go(h.t, h.Run)
}

// has sets the backends of the web service.
func (h *host) has(addresses ...string) {
	svc := vip.Service{Key: webKey}
	for _, a := range addresses {
		svc.Backends = append(svc.Backends, vip.Backend{Address: netip.MustParseAddr(a)})
	}
	h.services.Set(svc)
}

func (h *host) set(address string, to vip.State) {
	h.t.Helper()
	if done, err := h.Set(h.t.Context(), request(address, to)); err != nil || done.Rev == 0 {
		h.t.Fatalf("%s: set %s to %s: %+v, %v", h.name, address, to, done, err)
	}
}

// overridden returns the table's rows as "address state".
func (h *host) overridden() string {
	var out []string
	for key, row := range h.table.All() {
		out = append(out, fmt.Sprint(key.ID(), " ", row.Sets()))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func (h *host) expect(when, want string) {
	h.t.Helper()
	synctest.Wait()
	expect.Equal(h.t, h.overridden(), want, "%s: %s has", when, h.name)
}

func (h *host) messages() (out []string) {
	events, _ := h.events.Since(0)
	for _, e := range events {
		out = append(out, e.Message)
	}
	return out
}

// writes counts the writes to a bucket and can make them fail.
type writes struct {
	registry.Bucket[Override]
	mu    sync.Mutex
	done  int
	fails bool
}

func (w *writes) n() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done
}

func (w *writes) fail(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fails = on
}

func (w *writes) Batch(fill func(*store.Tx[Override])) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fails {
		return errors.New("disk full")
	}
	w.done++
	return w.Bucket.Batch(fill)
}

// restarts calls f with a function that starts overrides on one state file. Each call stops the
// previous overrides first.
func restarts(t *testing.T, f func(t *testing.T, db *store.DB, start func() (*host, *writes))) {
	bubble.Test(t, func(t *testing.T) {
		db := must.Get(store.Open(filepath.Join(t.TempDir(), "ironvip.db")))(t)
		defer db.Close()
		last := &host{stop: func() {}}
		defer func() { last.stop() }()
		f(t, db, func() (*host, *writes) {
			t.Helper()
			last.stop()
			disk := &writes{Bucket: store.NewBucket[Override](db, "states")}
			local := must.Get(registry.NewLocal(disk))(t)
			last = newHost(t, "alone", &table.Clock{}, Options{Store: local})
			last.Restore()
			last.start()
			synctest.Wait()
			return last, disk
		})
	})
}

func TestOverridesSurviveRestartsAndAreSwept(t *testing.T) {
	restarts(t, func(t *testing.T, _ *store.DB, start func() (*host, *writes)) {
		h, disk := start()
		h.has("10.0.0.1", "10.0.0.2")
		h.set("10.0.0.1", vip.Maint)
		h.set("10.0.0.2", vip.Maint)
		h.set("10.0.0.2", vip.Ready)
		expect.Equal(t, disk.n(), 3, "writes for 3 changes")
		h.set("10.0.0.2", vip.Ready)
		h.set("10.0.0.1", vip.Maint)
		if disk.n() != 3 {
			t.Errorf("%d writes for changes of nothing", disk.n()-3)
		}
		h, _ = start()
		h.expect("after a restart", "10.0.0.1 maint")
		h.has("10.0.0.2")
		time.Sleep(gracePeriod)
		h.expect("within the grace period", "10.0.0.1 maint")
		h.has("10.0.0.1")
		time.Sleep(2 * gracePeriod)
		h.expect("with the backend back", "10.0.0.1 maint")
		h.has("10.0.0.2")
		time.Sleep(gracePeriod + 2*sweepInterval)
		h.expect("after the grace period", "")
		h, _ = start()
		h.expect("after another restart", "")
	})
}

func TestSetRefuses(t *testing.T) {
	restarts(t, func(t *testing.T, _ *store.DB, start func() (*host, *writes)) {
		h, disk := start()
		synced := h.services.Initializer()
		if _, err := h.Set(t.Context(), request("10.0.0.1", vip.Drain)); !errors.Is(err, registry.ErrNotRunning) {
			t.Errorf("before the sources have synced: %v", err)
		}
		synced()
		if _, err := h.Set(t.Context(), request("10.0.0.1", vip.Drain)); !errors.Is(err, registry.ErrNoService) {
			t.Errorf("without the service: %v", err)
		}
		h.has("10.0.0.2")
		if _, err := h.Set(t.Context(), request("10.0.0.1", vip.Drain)); !errors.Is(err, registry.ErrNoBackend) {
			t.Errorf("without the backend: %v", err)
		}
		var invalid *registry.InvalidError
		for _, to := range []vip.State{0, vip.Terminating} {
			if _, err := h.Set(t.Context(), request("10.0.0.2", to)); !errors.As(err, &invalid) || invalid.Problems[0].Field != "state" {
				t.Errorf("state %v: %v", to, err)
			}
		}
		disk.fail(true)
		if _, err := h.Set(t.Context(), request("10.0.0.2", vip.Drain)); !errors.Is(err, registry.ErrStore) || h.table.Len() != 0 {
			t.Errorf("on a full disk: %v, %d overrides", err, h.table.Len())
		}
	})
}

// A backend that another host has just registered is found.
func TestSetFetchesTheService(t *testing.T) {
	restarts(t, func(t *testing.T, _ *store.DB, start func() (*host, *writes)) {
		h, _ := start()
		h.Fetch = func(context.Context, vip.ServiceKey) error { h.has("10.0.0.1"); return nil }
		h.set("10.0.0.1", vip.Drain)
		h.Fetch = func(context.Context, vip.ServiceKey) error { return registry.ErrNotRunning }
		_, err := h.Set(t.Context(), request("10.0.0.9", vip.Drain))
		expect.Is(t, err, registry.ErrNotRunning, "while the source starts")
	})
}

// Overrides that were set before a host started cause no events, even if the service is already
// known then.
func TestRestoredOverridesMakeNoEvents(t *testing.T) {
	restarts(t, func(t *testing.T, db *store.DB, start func() (*host, *writes)) {
		h, _ := start()
		h.has("10.0.0.1")
		h.set("10.0.0.1", vip.Drain)
		expect.SameList(t, h.messages(), []string{"set to drain by root"}, "events")
		h.stop()
		local := must.Get(registry.NewLocal(store.NewBucket[Override](db, "states")))(t)
		again := newHost(t, "alone", &table.Clock{}, Options{Store: local})
		again.has("10.0.0.1")
		ready := func() bool { return table.IsClosed(again.table.Ready()) }
		expect.False(t, ready(), "the table is ready before it has been restored")
		again.Restore()
		expect.True(t, ready(), "the table is not ready after it has been restored")
		again.expect("at the start", "10.0.0.1 drain")
		expect.Empty(t, again.messages(), "events at the start")
	})
}

func TestStoredValuesThatAreInvalid(t *testing.T) {
	restarts(t, func(t *testing.T, db *store.DB, start func() (*host, *writes)) {
		raw := store.NewBucket[map[string]any](db, "states")
		for key, state := range map[string]string{"default/web/10.0.0.1": "asleep", "default/web/10.0.0.2": "drain", "default/web/nobody": "drain", "default/web/010.0.0.3": "drain", "default": "drain"} {
			must.Succeed(t, raw.Put(key, map[string]any{"state": state, "since": "2026-01-01T00:00:00Z"}))
		}
		h, _ := start()
		h.has("10.0.0.1", "10.0.0.2")
		h.expect("at the start", "10.0.0.2 drain")
		problems := fmt.Sprint(h.Problems())
		if n := len(h.Problems()); n != 4 || !strings.Contains(problems, `default/web/10.0.0.1: stored override: "asleep" is not a state`) {
			t.Errorf("%d problems: %s", n, problems)
		}
		h.set("10.0.0.1", vip.Maint)
		h.expect("after it was set again", "10.0.0.1 maint, 10.0.0.2 drain")
		expect.Equal(t, len(h.Problems()), 3, "problems after one was fixed")
	})
}

// inFleet runs f with hosts that share a store.
func inFleet(t *testing.T, f func(t *testing.T, m *fleettest.Memory, join func(name string) *host)) {
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		var hosts []*host
		defer func() {
			for _, h := range hosts {
				h.stop()
				h.tree.End()
			}
		}()
		f(t, m, func(name string) *host {
			var shared *registry.Shared[Override]
			tree := m.Run(t, fleet.Options{Node: name, Folders: []string{Folder}}, func(tree *fleet.Tree) { shared = Shared(tree) })
			h := newHost(t, name, &table.Clock{}, Options{Store: shared, Fleet: tree.Tree})
			h.tree = tree
			h.start()
			hosts = append(hosts, h)
			synctest.Wait()
			return h
		})
	})
}

func TestOverridesAreShared(t *testing.T) {
	inFleet(t, func(t *testing.T, m *fleettest.Memory, join func(string) *host) {
		hosts := []*host{join("a"), join("b"), join("c")}
		for _, h := range hosts {
			h.has("10.0.0.1")
		}
		a, b, c := hosts[0], hosts[1], hosts[2]
		all := func(want string) {
			t.Helper()
			time.Sleep(time.Second)
			for _, h := range hosts {
				h.expect("everywhere", want)
			}
		}
		a.set("10.0.0.1", vip.Drain)
		all("10.0.0.1 drain")
		b.set("10.0.0.1", vip.Maint)
		all("10.0.0.1 maint")
		c.set("10.0.0.1", vip.Ready)
		all("")
		for _, h := range hosts {
			want := []string{"set to drain by root through node a", "set to maint by root through node b", "set to ready by root through node c"}
			for i := range want {
				want[i] = strings.TrimSuffix(want[i], " through node "+h.name)
			}
			expect.SameList(t, h.messages(), want, "%s has the events", h.name)
		}
		b.set("10.0.0.1", vip.Drain)
		late := join("d")
		late.has("10.0.0.1")
		hosts = append(hosts, late)
		all("10.0.0.1 drain")
		expect.Empty(t, late.messages(), "a host that joins has events of earlier overrides")
		// One hour after its backend is gone, the override is removed by the host through which it
		// was set. If that host is absent, the elected host removes it.
		for _, h := range hosts {
			h.has("10.0.0.2")
		}
		time.Sleep(gracePeriod / 2)
		b.tree.Client.SetDown(true)
		b.stop()
		b.tree.End()
		time.Sleep(2*gracePeriod + 2*sweepInterval)
		hosts = []*host{a, c, late}
		all("")
	})
}

// Setting an override again costs no write. It is still compared with the store, because another
// host may have changed it there.
func TestSetConfirmsWhatIsSet(t *testing.T) {
	inFleet(t, func(t *testing.T, m *fleettest.Memory, join func(string) *host) {
		a := join("a")
		a.has("10.0.0.1")
		var writes atomic.Int32
		a.tree.Client.Before(func(c fleettest.Call) error {
			if slices.ContainsFunc(c.Ops, func(op kv.Op) bool { return strings.Contains(op.Key, "/tree/"+Folder) }) {
				writes.Add(1)
			}
			return nil
		})
		defer a.tree.Client.Before(nil)
		for _, to := range []vip.State{vip.Drain, vip.Drain, vip.Ready, vip.Ready} {
			a.set("10.0.0.1", to)
		}
		expect.Equal(t, writes.Load(), 2, "writes for 2 changes")
		a.tree.Client.Before(nil)
		m.SetDown(true)
		time.Sleep(time.Minute)
		for _, to := range []vip.State{vip.Ready, vip.Drain} {
			var store *registry.StoreError
			if _, err := a.Set(t.Context(), request("10.0.0.1", to)); !errors.As(err, &store) || store.Unknown {
				t.Errorf("%s while the store is away: %v", to, err)
			}
		}
		m.SetDown(false)
	})
}

// An unreadable value is never overwritten. The override from before stays in effect until the
// value is removed.
func TestUnreadableValueIsKept(t *testing.T) {
	inFleet(t, func(t *testing.T, m *fleettest.Memory, join func(string) *host) {
		const at = "ironvip/v2/tree/states/default/web/10.0.0.1"
		a := join("a")
		a.has("10.0.0.1")
		a.set("10.0.0.1", vip.Drain)
		m.Put(at, "junk")
		must.Succeed(t, a.tree.Tree.Reread(t.Context()))
		a.expect("over junk", "10.0.0.1 drain")
		for _, to := range []vip.State{vip.Ready, vip.Drain, vip.Maint} {
			var conflict *registry.ConflictError
			if _, err := a.Set(t.Context(), request("10.0.0.1", to)); !errors.As(err, &conflict) || !conflict.Unreadable {
				t.Errorf("%s over junk: %v", to, err)
			}
		}
		if text, _ := m.Get(at); text != "junk" || len(a.Problems()) != 1 {
			t.Errorf("stored %q, problems %v", text, a.Problems())
		}
		m.Delete(at)
		must.Succeed(t, a.tree.Tree.Reread(t.Context()))
		a.expect("without the junk", "")
		a.set("10.0.0.1", vip.Maint)
		a.expect("set again", "10.0.0.1 maint")
	})
}

func TestParseState(t *testing.T) {
	for text, want := range map[string]vip.State{"ready": vip.Ready, "drain": vip.Drain, "maint": vip.Maint, "terminating": 0, "asleep": 0, "": 0} {
		got, err := ParseState(text)
		var invalid *registry.InvalidError
		if got != want || (want == 0) != errors.As(err, &invalid) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
