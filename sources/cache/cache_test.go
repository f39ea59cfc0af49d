package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// remote is a source that does what the test says.
type remote chan func(sources.Sink) error

func (r remote) Run(ctx context.Context, out sources.Sink) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case do := <-r:
			if err := do(out); err != nil {
				return err
			}
		}
	}
}

func (remote) ShrinkGuard() time.Duration { return 0 }

func row(t *testing.T, name string, backends ...string) vip.Service {
	t.Helper()
	w := spec.Service{Name: name, Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}}
	for _, b := range backends {
		weight := 7
		w.Backends = append(w.Backends, spec.Backend{Address: b, Weight: &weight, State: "drain", Node: "n1",
			Ports: []string{"80/tcp"}, ForZones: []string{"za", "zb"}, ForNodes: []string{"n1"}})
	}
	s, problems := w.Build("consul", "consul:"+name)
	must.Empty(t, problems)
	return s
}

// run is one run of an agent.
type run struct {
	t        *testing.T
	remote   remote
	services *table.Table[vip.ServiceKey, vip.Service]
	statuses *table.Table[string, sources.Status]
	end      func()
}

func start(t *testing.T, db *store.DB) *run {
	t.Helper()
	return startWith(t, store.NewBucket[Row](db, "cache consul"))
}

func startWith(t *testing.T, store Store) *run {
	t.Helper()
	clock := &table.Clock{}
	r := &run{t: t, remote: make(remote), services: table.New(clock, vip.KeyOfService, compile.SameService), statuses: table.New(clock, sources.KeyOfStatus, sources.SameStatus)}
	log := slog.New(slog.DiscardHandler)
	s := New("consul", r.remote, store, r.services, log)
	supervisor := sources.NewSupervisor(sources.Options{Resolver: pipeline.NewResolve(pipeline.ResolveOptions{Services: r.services}), Services: r.services, Statuses: r.statuses, Log: log})
	supervisor.Add("consul", "consul", s)
	supervised, kept := scope.Go(t, supervisor.Run), scope.Go(t, s.Keep)
	r.end = func() { supervised(); kept() }
	return r
}

func (r *run) says(do func(sources.Sink)) {
	r.t.Helper()
	select {
	case r.remote <- func(out sources.Sink) error { do(out); return nil }:
	case <-time.After(time.Minute):
		r.t.Fatal("the source isn't run")
	}
}

// until waits for services of these names.
func (r *run) until(names ...string) {
	r.t.Helper()
	wait.For(r.t, fmt.Sprintf("services %q", names), func() error {
		var there []string
		for key := range r.services.All() {
			there = append(there, key.Name)
		}
		if slices.Sort(there); !slices.Equal(there, names) {
			return fmt.Errorf("the services are %q", there)
		}
		return nil
	})
}

func TestARestartWithoutTheServer(t *testing.T) {
	db := must.Get(store.Open(filepath.Join(t.TempDir(), "ironvip.db")))(t)
	t.Cleanup(func() { _ = db.Close() })
	away := errors.New("connection refused")
	web := row(t, "web", "10.0.0.1", "10.0.0.2")
	web.Assigned, web.VIPs = true, []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	web.Backends[0].Health, web.Backends[1].Health = vip.Unhealthy, vip.Healthy

	first := start(t, db)
	first.says(func(out sources.Sink) { out.Stale(away) }) // there is nothing to cache
	first.says(func(out sources.Sink) { out.Replace([]vip.Service{web, row(t, "api"), row(t, "old")}, nil) })
	first.says(func(out sources.Sink) { out.Delete(row(t, "old").Key); out.Put(row(t, "db", "10.0.0.3")) })
	first.until("api", "db", "web")
	first.end()

	for name, does := range map[string]func(*run){
		"it says so":   func(r *run) { r.says(func(out sources.Sink) { out.Stale(away) }) },
		"it is silent": func(*run) {},
		"it fails":     func(r *run) { r.remote <- func(sources.Sink) error { return away } },
		"more than once": func(r *run) {
			r.says(func(out sources.Sink) { out.Stale(away) })
			r.remote <- func(sources.Sink) error { return away }
			r.says(func(out sources.Sink) { out.Stale(away) })
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			r := start(t, db)
			does(r)
			r.until("api", "db", "web")
			if got, _, _ := r.services.Get(web.Key); !compile.SameService(got, web) || got.Origin != "consul:web" {
				t.Errorf("cached as %+v, was %+v", got, web)
			}
			if got, _, _ := r.services.Get(vip.ServiceKey{Namespace: "default", Name: "db"}); got.Assigned {
				t.Error("a service whose address was not assigned is cached as one whose was")
			}
			for status, _, _ := r.statuses.Get("consul"); status.Stale == ""; status, _, _ = r.statuses.Get("consul") {
				time.Sleep(time.Millisecond)
			}
			r.end()
		})
	}

	// The source's own word counts, and what it doesn't have any more is
	// forgotten. A later run doesn't bring it back.
	r := start(t, db)
	r.says(func(out sources.Sink) { out.Replace([]vip.Service{web}, nil) })
	r.until("web")
	bucket := store.NewBucket[Row](db, "cache consul")
	wait.For(t, "the cached services", func() error {
		all := must.Get(bucket.All())(t)
		if _, whole := all[completeKey]; len(all) != 2 || !whole {
			return fmt.Errorf("%d values are cached", len(all))
		}
		return nil
	})
	r.end()
	r = start(t, db)
	r.says(func(out sources.Sink) { out.Replace([]vip.Service{row(t, "new")}, nil) })
	r.says(func(out sources.Sink) { out.Stale(away) })
	r.until("new")
}

// ready reports whether the services table is, at once.
func (r *run) ready() bool {
	select {
	case <-r.services.Ready():
		return true
	default:
		return false
	}
}

// A source that had no services is known to have none; of one that was never
// answered, or whose cache is damaged, nothing is known.
func TestARestartWithoutTheServerAndWithoutServices(t *testing.T) {
	away := errors.New("connection refused")
	for _, tc := range []struct {
		name  string
		kept  map[string]Row
		err   error
		ready bool
	}{
		{"complete", map[string]Row{completeKey: {}}, nil, true},
		{"never answered", map[string]Row{}, nil, false},
		{"a service that can't be read", map[string]Row{completeKey: {}, "default/web": {}}, nil, false},
		{"damaged", map[string]Row{completeKey: {}}, errors.New("damaged"), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := startWith(t, &counting{rows: tc.kept, err: tc.err})
			r.says(func(out sources.Sink) { out.Stale(away) })
			r.says(func(sources.Sink) {}) // the former word is through
			expect.Equal(t, r.ready(), tc.ready, "ready")
			status, _, _ := r.statuses.Get("consul")
			expect.True(t, status.Stale != "", "not stale: %+v", status)
		})
	}
}

// The cache of a source without services says that it has none.
func TestThatThereAreNoServicesIsCached(t *testing.T) {
	db := must.Get(store.Open(filepath.Join(t.TempDir(), "ironvip.db")))(t)
	t.Cleanup(func() { _ = db.Close() })
	bubble.Test(t, func(t *testing.T) {
		r := start(t, db)
		r.says(func(out sources.Sink) { out.Replace(nil, nil) })
		bucket := store.NewBucket[Row](db, "cache consul")
		wait.Until(t, "the list is cached", func() bool {
			_, complete, err := bucket.Get(completeKey)
			must.Succeed(t, err)
			return complete
		})
		r.end()
		r = start(t, db)
		wait.For(t, "the cache speaks for the source", func() error {
			if status, _, _ := r.statuses.Get("consul"); !strings.Contains(status.Stale, "using cached services") {
				return fmt.Errorf("status %+v", status)
			}
			return nil
		})
		expect.True(t, r.ready(), "not ready")
	})
}

// One change is one write, whatever there is.
func TestAChangeCostsThatChange(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := &counting{rows: map[string]Row{}}
		services := table.New(&table.Clock{}, vip.KeyOfService, compile.SameService)
		s := New("consul", nil, store, services, slog.New(slog.DiscardHandler))
		close(s.answered)
		done := services.Initializer()
		for i := range 1000 {
			r := row(t, fmt.Sprintf("s%d", i))
			services.Set(r)
		}
		other := row(t, "others")
		other.Source = "static"
		services.Set(other)
		done()
		scope.Go(t, s.Keep)
		const complete = 1 // that all is there
		store.until(t, 1000+complete)
		changed := row(t, "s1")
		changed.VIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		services.Set(changed)
		store.until(t, 1001+complete)
	})
}

type counting struct {
	mu      sync.Mutex
	rows    map[string]Row
	err     error
	written int
}

func (c *counting) Keys() ([]string, error) { return slices.Collect(maps.Keys(c.rows)), c.err }

func (c *counting) All() (map[string]Row, error) { return maps.Clone(c.rows), c.err }

func (c *counting) Write(put map[string]Row, remove []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written += len(put) + len(remove)
	return nil
}

func (c *counting) until(t *testing.T, written int) {
	t.Helper()
	wait.For(t, fmt.Sprintf("%d values written", written), func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		must.AtMost(t, c.written, written, "values written")
		if c.written < written {
			return fmt.Errorf("%d written", c.written)
		}
		return nil
	})
}
