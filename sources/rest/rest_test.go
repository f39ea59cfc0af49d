package rest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sink is a Sink that writes to a table, like the supervisor without other sources.
type sink struct {
	services *table.Table[vip.ServiceKey, vip.Service]
	mu       sync.Mutex
	replaced int
	puts     int
	problems []vip.Problem
	aside    func(vip.ServiceKey) bool // reports names that another source has
}

func (k *sink) Replace(list []vip.Service, problems []vip.Problem) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.replaced++
	k.problems = problems
	named := map[vip.ServiceKey]bool{}
	for _, s := range list {
		named[s.Key] = true
		k.services.Set(s)
	}
	for key := range maps.Collect(k.services.All()) {
		if !named[key] {
			k.services.Delete(key)
		}
	}
}

func (k *sink) Put(list ...vip.Service) (revs []uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.puts++
	for _, s := range list {
		if k.aside != nil && k.aside(s.Key) {
			k.services.Delete(s.Key)
			revs = append(revs, 0)
			continue
		}
		revs = append(revs, k.services.Set(s))
	}
	return revs
}

func (k *sink) holdAside(what func(vip.ServiceKey) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.aside = what
}

func (k *sink) Delete(keys ...vip.ServiceKey) {
	for _, key := range keys {
		k.services.Delete(key)
	}
}
func (k *sink) Problems(problems []vip.Problem) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.problems = problems
}
func (*sink) Stale(error) {}
func (*sink) Fresh()      {}

// breakable is a Store that counts writes and can make them fail.
type breakable[V any] struct {
	registry.Bucket[V]
	mu     sync.Mutex
	err    error
	writes int
}

func (b *breakable[V]) Batch(fill func(*store.Tx[V])) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return b.err
	}
	b.writes++
	return b.Bucket.Batch(fill)
}

func (b *breakable[V]) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

func (b *breakable[V]) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.writes
}

type fixture struct {
	t         *testing.T
	db        *store.DB
	clock     *table.Clock
	store     *breakable[Record]
	stored    *breakable[overrides.Override] // overrides
	overrides *overrides.Overrides
	services  *table.Table[vip.ServiceKey, vip.Service]
	states    *table.Table[vip.OverrideKey, vip.BackendState]
	events    *event.Log
	sink      *sink
	src       *Source
	stop      func()
}

func newFixture(t *testing.T) *fixture {
	db := must.Get(store.Open(filepath.Join(t.TempDir(), "ironvip.db")))(t)
	t.Cleanup(func() { db.Close() })
	f := &fixture{t: t, db: db, clock: &table.Clock{}}
	f.start()
	return f
}

// start creates and runs a source on the fixture's disk. Everything else is new.
func (f *fixture) start() {
	f.t.Helper()
	f.store = &breakable[Record]{Bucket: store.NewBucket[Record](f.db, "rest")}
	f.stored = &breakable[overrides.Override]{Bucket: store.NewBucket[overrides.Override](f.db, "states")}
	f.services = table.New(f.clock, vip.KeyOfService, func(a, b vip.Service) bool { return sameRow(&a, &b) })
	f.states = table.New(f.clock, vip.KeyOfBackendState, nil)
	f.events = event.NewLog(100, time.Now)
	f.sink = &sink{services: f.services}
	src := must.Get(New(Options{Store: local(f.t, f.store), Services: f.services, Events: f.events}))(f.t)
	f.src = src
	f.overrides = overrides.New(overrides.Options{Store: local(f.t, f.stored), Table: f.states, Services: f.services, Health: table.New(&table.Clock{}, vip.KeyOfBackendHealth, nil), Fetch: src.Fetch, Events: f.events})
	src.Restore()
	f.overrides.Restore()
	source := scope.Go(f.t, func(ctx context.Context) error { return src.Run(ctx, f.sink) })
	states := scope.Go(f.t, f.overrides.Run)
	for !src.running() {
		time.Sleep(time.Millisecond)
	}
	f.stop = func() { source(); states() }
}

func local[V any](t *testing.T, bucket registry.Bucket[V]) registry.Store[V] {
	t.Helper()
	return must.Get(registry.NewLocal(bucket))(t)
}

func (f *fixture) restart() {
	f.stop()
	f.start()
}

func (f *fixture) put(s spec.Service) Result {
	f.t.Helper()
	r, err := f.src.PutService(f.t.Context(), Put{Spec: s})
	must.Succeed(f.t, err, "put %s", s.Name)
	return r
}

func (f *fixture) register(backend string, ttl time.Duration) {
	f.t.Helper()
	_, _, err := f.src.PutBackend(f.t.Context(), webKey, spec.Backend{Address: backend}, ttl, nil)
	must.Succeed(f.t, err, "register %s", backend)
}

// backends returns the backends in effect as "address state", or "address unhealthy".
func (f *fixture) backends() (out []string) {
	row, _, _ := f.services.Get(webKey)
	for _, b := range row.Backends {
		state := b.State.String()
		if b.Health == vip.Unhealthy {
			state = b.Health.String()
		}
		out = append(out, b.ID()+" "+state)
	}
	return out
}

var webKey = vip.ServiceKey{Namespace: "default", Name: "web"}

func web(backends ...string) spec.Service {
	s := spec.Service{Name: "web", Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}}
	for _, b := range backends {
		s.Backends = append(s.Backends, spec.Backend{Address: b})
	}
	return s
}

func bkey(address string) vip.BackendKey {
	return vip.BackendKey{Service: webKey, Address: netip.MustParseAddr(address)}
}

func TestPutIsDurableVisibleAndIdempotent(t *testing.T) {
	f := newFixture(t)
	first := f.put(web("10.0.0.1"))
	if first.Action != Created || first.Rev == 0 {
		t.Fatalf("first put: %+v", first)
	}
	again := f.put(web("10.0.0.1"))
	if again.Action != Unchanged || again.Rev != first.Rev || f.store.count() != 1 {
		t.Errorf("the same put again: %s at %d after %d writes; it was at %d", again.Action, again.Rev, f.store.count(), first.Rev)
	}
	other := f.put(web("10.0.0.1", "10.0.0.2"))
	if other.Action != Updated || other.Rev <= first.Rev {
		t.Errorf("a different put: %+v", other)
	}
	f.restart()
	expect.Equal(t, fmt.Sprint(f.backends()), "[10.0.0.1 ready 10.0.0.2 ready]", "after a restart")
	must.Get(f.src.DeleteService(t.Context(), webKey, nil))(t)
	_, err := f.src.DeleteService(t.Context(), webKey, nil)
	expect.Is(t, err, registry.ErrNoService, "second delete")
	f.restart()
	expect.Equal(t, f.services.Len(), 0, "a deleted service came back with a restart")
}

// writes returns each kind of write to a service "web" with the backend 10.0.0.1.
func (f *fixture) writes(ctx context.Context) map[string]func() error {
	return map[string]func() error{
		"create": func() error {
			_, err := f.src.PutService(ctx, Put{Spec: spec.Service{Name: "new", Ports: []spec.Port{{Port: spec.PortRange{First: 1}}}}})
			return err
		},
		"replace": func() error { _, err := f.src.PutService(ctx, Put{Spec: web("10.0.0.2")}); return err },
		"delete":  func() error { _, err := f.src.DeleteService(ctx, webKey, nil); return err },
		"put backend": func() error {
			_, _, err := f.src.PutBackend(ctx, webKey, spec.Backend{Address: "10.0.0.3"}, 0, nil)
			return err
		},
		"delete backend": func() error { _, err := f.src.DeleteBackend(ctx, bkey("10.0.0.1"), nil); return err },
		"state":          func() error { _, err := f.overrides.Set(ctx, operator(bkey("10.0.0.1"), vip.Drain)); return err },
	}
}

func TestStoreFailureChangesNothing(t *testing.T) {
	f := newFixture(t)
	f.put(web("10.0.0.1"))
	f.register("10.0.0.9", time.Minute)
	before, rev, _ := f.services.Get(webKey)
	full := fmt.Errorf("%w: %w", store.ErrUnavailable, syscall.ENOSPC)
	f.store.fail(full)
	f.stored.fail(full)
	for name, try := range f.writes(t.Context()) {
		err := try()
		if !errors.Is(err, registry.ErrStore) || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s on a full disk: %v", name, err)
		}
	}
	if after, now, _ := f.services.Get(webKey); now != rev || !sameRow(&before, &after) || f.services.Len() != 1 || f.states.Len() != 0 {
		t.Errorf("something changed: %+v", after)
	}
	expect.Succeed(t, f.src.Heartbeat(t.Context(), bkey("10.0.0.9")), "a heartbeat without a disk")
	f.store.fail(nil)
	f.put(web("10.0.0.2"))
}

func TestPutAndRegisteredBackends(t *testing.T) {
	none := []spec.Backend{}
	for _, c := range []struct {
		name string
		put  spec.Service
		want string
		ttls int
	}{
		{"without the key keeps the registered", web(), "[10.0.0.8 ready 10.0.0.9 ready]", 1},
		{"a list replaces them all", web("10.0.0.2"), "[10.0.0.2 ready]", 0},
		{"one that is listed keeps its ttl", web("10.0.0.2", "10.0.0.9"), "[10.0.0.2 ready 10.0.0.9 ready]", 1},
		{"an empty list removes them all", spec.Service{Name: "web", Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}, Backends: none}, "[]", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			f.put(web("10.0.0.1"))
			f.register("10.0.0.8", 0)
			f.register("10.0.0.9", time.Minute)
			f.put(c.put)
			for range 2 {
				expect.Equal(t, fmt.Sprint(f.backends()), c.want, "backends")
				expect.Equal(t, len(f.src.HeartbeatStatuses(webKey)), c.ttls, "backends with a ttl")
				f.restart() // to check what is stored
			}
			f.stop()
		})
	}
}

func TestRefusals(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	f.services.Set(vip.Service{
		Key: vip.ServiceKey{Namespace: "default", Name: "file"}, Source: "static", Origin: "a.toml:1",
		Backends: []vip.Backend{{Address: netip.MustParseAddr("10.0.0.1")}}})
	file := vip.ServiceKey{Namespace: "default", Name: "file"}
	f.put(web("10.0.0.1"))

	var owned *OwnedError
	for name, err := range map[string]error{
		"put":            second(f.src.PutService(ctx, Put{Spec: spec.Service{Name: "file", Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}}})),
		"delete":         second(f.src.DeleteService(ctx, file, nil)),
		"put backend":    third(f.src.PutBackend(ctx, file, spec.Backend{Address: "10.0.0.2"}, 0, nil)),
		"delete backend": second(f.src.DeleteBackend(ctx, vip.BackendKey{Service: file, Address: netip.MustParseAddr("10.0.0.1")}, nil)),
	} {
		if !errors.As(err, &owned) || owned.Source != "static" {
			t.Errorf("%s on a service of another source: %v", name, err)
		}
	}
	ghost := vip.ServiceKey{Namespace: "default", Name: "ghost"}
	for name, c := range map[string]struct{ got, want error }{
		"register with no service":  {third(f.src.PutBackend(ctx, ghost, spec.Backend{Address: "10.0.0.2"}, 0, nil)), registry.ErrNoService},
		"delete without backend":    {second(f.src.DeleteBackend(ctx, bkey("10.0.0.7"), nil)), registry.ErrNoBackend},
		"beat without service":      {f.src.Heartbeat(t.Context(), vip.BackendKey{Service: ghost}), registry.ErrNoService},
		"beat without backend":      {f.src.Heartbeat(t.Context(), bkey("10.0.0.7")), registry.ErrNoBackend},
		"beat of one without ttl":   {f.src.Heartbeat(t.Context(), bkey("10.0.0.1")), nil},
		"state without service":     {second(f.overrides.Set(t.Context(), operator(vip.BackendKey{Service: ghost}, vip.Drain))), registry.ErrNoService},
		"state without backend":     {second(f.overrides.Set(t.Context(), operator(bkey("10.0.0.7"), vip.Drain))), registry.ErrNoBackend},
		"state of another source's": {second(f.overrides.Set(t.Context(), operator(vip.BackendKey{Service: file, Address: netip.MustParseAddr("10.0.0.1")}, vip.Drain))), nil},
	} {
		expect.Is(t, c.got, c.want, name)
	}
	var invalid *registry.InvalidError
	for name, c := range map[string]struct {
		err   error
		field string
	}{
		"bad name":      {second(f.src.PutService(ctx, Put{Spec: spec.Service{Name: "no good", Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}}})), "name"},
		"bad backend":   {third(f.src.PutBackend(ctx, webKey, spec.Backend{Address: "nowhere"}, 0, nil)), "address"},
		"short ttl":     {third(f.src.PutBackend(ctx, webKey, spec.Backend{Address: "10.0.0.2"}, time.Millisecond, nil)), "ttl"},
		"long ttl":      {third(f.src.PutBackend(ctx, webKey, spec.Backend{Address: "10.0.0.2"}, 25*time.Hour, nil)), "ttl"},
		"unknown state": {second(f.overrides.Set(t.Context(), operator(bkey("10.0.0.1"), vip.Terminating))), "state"},
		"no state":      {second(f.overrides.Set(t.Context(), operator(bkey("10.0.0.1"), 0))), "state"},
		"unknown word":  {second(overrides.ParseState("asleep")), "state"},
	} {
		if !errors.As(c.err, &invalid) || invalid.Problems[0].Field != c.field {
			t.Errorf("%s: %v, want a problem with %s", name, c.err, c.field)
		}
	}
	precondition := errors.New("not so")
	if err := second(f.src.PutService(ctx, Put{Spec: web(), Check: func(now vip.Service, rev uint64, exists bool) error {
		if !exists || rev == 0 || now.Key != webKey {
			t.Errorf("check sees %v at %d, %v", now.Key, rev, exists)
		}
		return precondition
	}})); !errors.Is(err, precondition) {
		t.Errorf("a failed check: %v", err)
	}
	f.stop()
	expect.Is(t, second(f.src.PutService(ctx, Put{Spec: web()})), registry.ErrNotRunning, "put to a source that doesn't run")
}

// An unchanged registration is validated too, because the agent's pools may have changed.
func TestUnchangedRegistrationIsValidated(t *testing.T) {
	f := newFixture(t)
	f.put(web())
	f.register("10.0.0.1", time.Minute)
	f.src.Check = func(*spec.Service) []vip.Problem {
		return []vip.Problem{{Code: vip.CodeInvalid, Field: "backends[0].address", Message: "in a pool"}}
	}
	var invalid *registry.InvalidError
	_, _, err := f.src.PutBackend(t.Context(), webKey, spec.Backend{Address: "10.0.0.1"}, time.Minute, nil)
	expect.True(t, errors.As(err, &invalid), "the same registration again: %v", err)
}

func second[T any](_ T, err error) error        { return err }
func third[T, U any](_ T, _ U, err error) error { return err }

// A service of an earlier run can be held aside. A write to it must not report that it is in
// effect.
func TestWriteToHeldAsideServiceIsRefused(t *testing.T) {
	f := newFixture(t)
	f.put(web("10.0.0.1"))
	f.sink.holdAside(func(vip.ServiceKey) bool { return true })
	f.services.Delete(webKey) // as after a restart, before the source that has the name has synced
	for what, err := range map[string]error{
		"the same service":    second(f.src.PutService(t.Context(), Put{Spec: web("10.0.0.1")})),
		"another version":     second(f.src.PutService(t.Context(), Put{Spec: web("10.0.0.2")})),
		"a backend":           third(f.src.PutBackend(t.Context(), webKey, spec.Backend{Address: "10.0.0.3"}, 0, nil)),
		"a backend's removal": second(f.src.DeleteBackend(t.Context(), bkey("10.0.0.1"), nil)),
	} {
		if owned := (*OwnedError)(nil); !errors.As(err, &owned) || owned.Source != "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := f.src.DeleteService(t.Context(), webKey, nil); err != nil {
		t.Errorf("its removal: %v", err)
	}
}

// The supervisor can hold a service aside although no row has its name yet. The source that had the
// name before the restart has not synced.
func TestNameHeldAsideIsRefusedAndForgotten(t *testing.T) {
	f := newFixture(t)
	f.sink.holdAside(func(vip.ServiceKey) bool { return true })
	var owned *OwnedError
	err := second(f.src.PutService(t.Context(), Put{Spec: web("10.0.0.1")}))
	must.True(t, errors.As(err, &owned), "put of a name held aside: %v", err)
	f.restart()
	expect.Equal(t, f.services.Len(), 0, "it is there after a restart")
}

func TestApplyOfManyIsOneWrite(t *testing.T) {
	f := newFixture(t)
	const n = 2_000
	puts := make([]Put, 0, n+2)
	for i := range n {
		puts = append(puts, Put{Spec: spec.Service{Name: fmt.Sprintf("s%d", i), Ports: []spec.Port{{Port: spec.PortRange{First: 80}}},
			Backends: []spec.Backend{{Address: "10.0.0.1"}}}})
	}
	puts = append(puts, Put{Spec: spec.Service{Name: "bad"}}, Put{Spec: spec.Service{Name: "s1", Ports: []spec.Port{{Port: spec.PortRange{First: 81}}}}})

	if _, err := f.src.PutServices(t.Context(), puts, true); err != nil || f.services.Len() != 0 {
		t.Fatalf("an atomic apply with a bad service: %v, %d services", err, f.services.Len())
	}
	results, err := f.src.Propose(t.Context(), puts)
	if err != nil || f.services.Len() != 0 || results[0].Action != Created || results[0].Row.Key.Name != "s0" {
		t.Fatalf("a proposal: %v, %d services, %+v", err, f.services.Len(), results[0])
	}
	results, err = f.src.PutServices(t.Context(), puts, false)
	must.Succeed(t, err)
	if f.services.Len() != n || f.store.count() != 1 || f.sink.puts != 1 {
		t.Errorf("%d services after %d writes and %d puts", f.services.Len(), f.store.count(), f.sink.puts)
	}
	for i, r := range results {
		if want := i < n; (r.Action == Created) != want || (r.Err == nil) != want || (r.Rev != 0) != want {
			t.Fatalf("result %d: %+v", i, r)
		}
	}
	expect.Equal(t, f.src.locks.Len(), 0, "name locks left")
}

// All services together have a bound, whatever adds to them. A write that makes them smaller is never refused.
func TestMaxEndpoints(t *testing.T) {
	f := newFixture(t)
	f.src.MaxEndpoints = 5
	service := func(name string, backends ...string) Put {
		w := spec.Service{Name: name, Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}, Backends: []spec.Backend{}}
		for _, b := range backends {
			w.Backends = append(w.Backends, spec.Backend{Address: b})
		}
		return Put{Spec: w}
	}
	puts := []Put{service("a", "10.0.0.1", "10.0.0.2"), service("b", "10.0.0.1", "10.0.0.2"), service("c", "10.0.0.1", "10.0.0.2"), service("d", "10.0.0.1")}
	actions := func(when string, atomic bool, want ...Action) {
		t.Helper()
		var got []Action
		for _, r := range must.Get(f.src.PutServices(t.Context(), puts, atomic))(t) {
			got = append(got, r.Action)
		}
		expect.SameList(t, got, want, "%s", when)
	}
	if _, err := f.src.PutServices(t.Context(), puts, true); err != nil || f.services.Len() != 0 {
		t.Fatalf("an atomic apply beyond the bound: %v, %d services", err, f.services.Len())
	}
	actions("one by one", false, Created, Created, Refused, Created)
	key := vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: "d"}
	if _, _, err := f.src.PutBackend(t.Context(), key, spec.Backend{Address: "10.0.0.9"}, 0, nil); err == nil || !strings.Contains(err.Error(), "6 ports x backends, more than the 5") {
		t.Errorf("a backend beyond the bound: %v", err)
	}
	// The size that a repeated part of a transaction adds is counted once, and not if it is refused then.
	grown, fails := 0, error(nil)
	c := &change{key: key, grown: &grown, edit: func(now *entry, _ bool) (*entry, error) {
		next := now.edited()
		next.row.Backends = nil
		return next, fails
	}}
	for range 2 {
		must.Get(f.src.apply(c, false))(t)
		expect.Equal(t, grown, -1, "endpoints more")
	}
	fails = errors.New("refused")
	_, err := f.src.apply(c, false)
	expect.Is(t, err, fails)
	expect.Equal(t, grown, 0, "endpoints more, by a refused part")
	f.restart()
	f.src.MaxEndpoints = 3
	puts = []Put{service("a", "10.0.0.1"), service("d", "10.0.0.1", "10.0.0.2"), service("e")}
	actions("after a restart with a smaller bound", false, Updated, Refused, Created)
	must.Get(f.src.DeleteService(t.Context(), vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: "b"}, nil))(t)
	actions("after a deletion", false, Unchanged, Updated, Unchanged)
}

func TestHeartbeats(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.put(web("10.0.0.1"))
		f.register("10.0.0.9", 10*time.Second)
		writes := f.store.count()
		backends := func(when, want string) {
			t.Helper()
			synctest.Wait()
			expect.Equal(t, fmt.Sprint(f.backends()), want, "%s", when)
		}
		const both, drained = "[10.0.0.1 ready 10.0.0.9 ready]", "[10.0.0.1 ready 10.0.0.9 unhealthy]"
		for range 5 {
			time.Sleep(9 * time.Second)
			must.Succeed(t, f.src.Heartbeat(t.Context(), bkey("10.0.0.9")))
		}
		backends("with heartbeats", both)
		time.Sleep(10*time.Second - 1)
		backends("just before the ttl ends", both)
		time.Sleep(time.Nanosecond)
		backends("at the end of the ttl", drained)
		if l := f.src.HeartbeatStatuses(webKey)["10.0.0.9"]; !l.Missed || !l.Removed.Equal(time.Now().Add(60*time.Second)) {
			t.Errorf("its life: %+v", l)
		}
		time.Sleep(2 * time.Second)
		row, _, _ := f.services.Get(webKey)
		expect.Equal(t, row.Backends[1].Reason.Text(time.Now()), "no heartbeat for 12s (ttl 10s)", "the reason")
		time.Sleep(57 * time.Second)
		must.Succeed(t, f.src.Heartbeat(t.Context(), bkey("10.0.0.9")))
		backends("with a late heartbeat", both)
		if f.store.count() != writes {
			t.Errorf("heartbeats wrote to the disk %d times", f.store.count()-writes)
		}

		f.register("10.0.0.9", 10*time.Second)
		expect.Equal(t, f.store.count(), writes, "registering the same again wrote to the disk")
		time.Sleep(10 * time.Second)
		backends("silent again", drained)
		f.store.fail(errors.New("disk away"))
		time.Sleep(61 * time.Second)
		backends("past its removal, which the store refuses", drained)
		f.store.fail(nil)
		time.Sleep(retryInterval)
		backends("once the store is back", "[10.0.0.1 ready]")
		expect.Is(t, f.src.Heartbeat(t.Context(), bkey("10.0.0.9")), registry.ErrNoBackend, "a heartbeat of the removed one")
		kinds := map[string]int{}
		evs, _ := f.events.Since(0)
		for _, e := range evs {
			kinds[e.Kind]++
		}
		if kinds["backend_expired"] != 2 || kinds["backend_alive"] != 1 || kinds["backend_removed"] != 1 {
			t.Errorf("events: %v", kinds)
		}
		f.restart()
		backends("after a restart", "[10.0.0.1 ready]")
	})
}

// A terminating backend without heartbeats is drained like any other. Otherwise it would receive
// clients when no backend is ready.
func TestTerminatingBackendFallsSilent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.put(web())
		last := spec.Backend{Address: "10.0.0.9", State: vip.Terminating.String()}
		_, _, err := f.src.PutBackend(t.Context(), webKey, last, 10*time.Second, nil)
		must.Succeed(t, err)
		for _, want := range []string{"[10.0.0.9 terminating]", "[10.0.0.9 unhealthy]"} {
			synctest.Wait()
			expect.Equal(t, fmt.Sprint(f.backends()), want)
			time.Sleep(10 * time.Second)
		}
	})
}

func TestRestartGivesAFullTTL(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.put(web())
		f.register("10.0.0.9", 10*time.Second)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		must.Equal(t, fmt.Sprint(f.backends()), "[10.0.0.9 unhealthy]", "before the restart")
		f.restart()
		time.Sleep(9 * time.Second)
		synctest.Wait()
		expect.Equal(t, fmt.Sprint(f.backends()), "[10.0.0.9 ready]", "9 s after the restart")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		expect.Equal(t, fmt.Sprint(f.backends()), "[10.0.0.9 unhealthy]", "11 s after the restart")
	})
}

func TestDamagedAndOutdatedRecordsLeaveTheRest(t *testing.T) {
	f := newFixture(t)
	f.put(web("10.0.0.1"))
	bucket := store.NewBucket[Record](f.db, "rest")
	must.Succeed(t, bucket.Put("default/old", Record{Spec: spec.Service{Name: "old"}}))
	must.Succeed(t, store.NewBucket[int](f.db, "rest").Put("default/odd", 7))
	must.Succeed(t, store.NewBucket[map[string]any](f.db, "states").Put("default/web/10.0.0.1", map[string]any{"state": "asleep", "since": "2026-01-01T00:00:00Z"}))
	f.restart()
	if f.services.Len() != 1 || f.states.Len() != 0 {
		t.Errorf("%d services and %d states restored", f.services.Len(), f.states.Len())
	}
	f.sink.mu.Lock()
	defer f.sink.mu.Unlock()
	if len(f.sink.problems) != 2 || len(f.overrides.Problems()) != 1 {
		t.Errorf("problems: %v, of the overrides %v", f.sink.problems, f.overrides.Problems())
	}
}

// Records of older versions can be read. Older versions can read the records of a single host.
func TestRecordsOfOlderVersions(t *testing.T) {
	f := newFixture(t)
	f.stop()
	old := map[string]any{"spec": map[string]any{"name": "web", "ports": []map[string]any{{"port": 80}},
		"backends": []map[string]any{{"address": "10.0.0.1"}, {"address": "10.0.0.9"}}}, "registered": map[string]string{"10.0.0.9": "30s"}}
	bucket := store.NewBucket[map[string]any](f.db, "rest")
	must.Succeed(t, bucket.Put("default/web", old))
	must.Succeed(t, store.NewBucket[map[string]any](f.db, "states").Put("default/web/10.0.0.1", map[string]any{"state": "drain", "since": "2026-01-01T00:00:00Z"}))
	f.start()
	if got := fmt.Sprint(f.backends()); got != "[10.0.0.1 ready 10.0.0.9 ready]" || len(f.src.HeartbeatStatuses(webKey)) != 1 || f.states.Len() != 1 {
		t.Errorf("%s, lives %v, %d states", got, f.src.HeartbeatStatuses(webKey), f.states.Len())
	}
	f.register("10.0.0.8", time.Minute)
	now, _, err := bucket.Get("default/web")
	if err != nil || len(now) != 2 || now["spec"] == nil || now["registered"] == nil {
		t.Errorf("stored: %v, %v", now, err)
	}
}

// Concurrent writers of one name are serialized, and no write is lost.
func TestConcurrentRegistrations(t *testing.T) {
	f := newFixture(t)
	f.put(web())
	const n = 64
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if _, _, err := f.src.PutBackend(t.Context(), webKey, spec.Backend{Address: fmt.Sprintf("10.0.1.%d", i)}, time.Minute, nil); err != nil {
				t.Error(err)
			}
			if i%2 == 0 {
				if _, err := f.src.DeleteBackend(t.Context(), bkey(fmt.Sprintf("10.0.1.%d", i)), nil); err != nil {
					t.Error(err)
				}
			}
			_ = f.src.Heartbeat(t.Context(), bkey(fmt.Sprintf("10.0.1.%d", i)))
		})
	}
	wg.Wait()
	expect.Equal(t, len(f.backends()), n/2, "backends")
	f.src.mu.Lock()
	defer f.src.mu.Unlock()
	expect.Equal(t, f.src.deadlines.Len(), n/2, "%d deadlines for %d backends", f.src.deadlines.Len(), n/2)
}

// Edits of one service that wait for the disk are one write. Each has its own result. A
// precondition sees the result of earlier edits.
func TestWaitingEditsAreOneWrite(t *testing.T) {
	f := newFixture(t)
	rev := f.put(web("10.0.0.1")).Rev
	writes := f.store.count()
	waiting := func(n int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			f.src.edits.mu.Lock()
			got := len(f.src.edits.waiting[webKey])
			f.src.edits.mu.Unlock()
			if got == n {
				return
			}
			must.False(t, time.Now().After(deadline), "%d edits wait, want %d", got, n)
		}
	}
	var wg sync.WaitGroup
	put := func(ctx context.Context, address string, check Check) *error {
		err := new(error)
		wg.Go(func() { _, _, *err = f.src.PutBackend(ctx, webKey, spec.Backend{Address: address}, 0, check) })
		return err
	}
	f.store.mu.Lock() // the disk is busy
	first := put(t.Context(), "10.0.1.1", nil)
	for held := 0; held != 2; time.Sleep(time.Millisecond) { // one holds the lock, one waits
		f.src.edits.mu.Lock()
		held = 2 - len(f.src.edits.waiting[webKey])
		f.src.edits.mu.Unlock()
		if f.src.locks.Users(registry.Key(webKey)) == 0 {
			held = 0
		}
	}
	const n = 20
	var puts []*error
	for i := range n {
		puts = append(puts, put(t.Context(), fmt.Sprintf("10.0.2.%d", i+1), nil))
	}
	waiting(n)
	var missing error
	wg.Go(func() { _, missing = f.src.DeleteBackend(t.Context(), bkey("10.0.9.9"), nil) })
	waiting(n + 1)
	ctx, cancel := context.WithCancel(t.Context())
	given := put(ctx, "10.0.3.1", nil)
	waiting(n + 2)
	cancel()
	waiting(n + 1)
	outdated := errors.New("outdated")
	checked := put(t.Context(), "10.0.3.2", func(now vip.Service, at uint64, _ bool) error {
		if at == rev || len(now.Backends) != n+2 {
			return fmt.Errorf("the check sees %d backends at %d", len(now.Backends), at)
		}
		return outdated
	})
	waiting(n + 2)
	last := put(t.Context(), "10.0.3.3", nil)
	waiting(n + 3)
	f.store.mu.Unlock()
	wg.Wait()
	for i, err := range append(puts, first, last) {
		expect.Succeed(t, *err, "edit %d", i)
	}
	if !errors.Is(missing, registry.ErrNoBackend) || !errors.Is(*given, context.Canceled) || !errors.Is(*checked, outdated) {
		t.Errorf("a missing one: %v; one given up: %v; one refused: %v", missing, *given, *checked)
	}
	expect.Equal(t, f.store.count()-writes, 3, "writes: the first, those that waited, and the one behind the precondition")
	expect.Equal(t, len(f.backends()), n+3, "backends")
	expect.Equal(t, len(f.src.edits.waiting), 0, "queues left")
}

// Counting a heartbeat does not allocate, and therefore does not write.
func TestHeartbeatAllocatesNothing(t *testing.T) {
	f := newFixture(t)
	f.put(web())
	for i := range 100 {
		f.register(fmt.Sprintf("10.0.0.%d", i+1), time.Minute)
	}
	if n := testing.AllocsPerRun(100, func() {
		must.Succeed(t, f.src.Heartbeat(t.Context(), bkey("10.0.0.9")))
	}); n > 0 {
		t.Errorf("%v allocations a heartbeat", n)
	}
}

// operator is an operator's change of a backend's state.
func operator(backend vip.BackendKey, to vip.State) overrides.Request {
	return overrides.Request{Backend: backend, State: to, Force: true}
}
