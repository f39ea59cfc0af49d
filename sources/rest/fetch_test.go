package rest

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// cutOff delays everything that other hosts write until the test ends. The host's own requests are
// answered.
func (h *host) cutOff(others *host) {
	h.t.Helper()
	over, held := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(held) })
	h.Client.Before(func(c fleettest.Call) error {
		if c.Query.After > 0 && c.Key == "ironvip/v2/log/head" {
			once()
			<-over
		}
		return nil
	})
	h.t.Cleanup(func() {
		h.Client.Before(nil)
		close(over)
	})
	last := spec.Service{Name: "heard-last", Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}}
	others.put(last) // ends the open blocking query
	h.until("its watch is held", func() bool {
		select {
		case <-held:
			return true
		default:
			return false
		}
	})
}

// A host fetches a missing value before it reports it missing, because another host may have just
// acknowledged it.
func TestRecentWriteOfAnotherHostIsNotMissing(t *testing.T) {
	var service, backend = webKey, bkey("10.0.0.1")
	for name, c := range map[string]struct {
		known []string // the backends of the service that the host knows; nil: it does not know the service
		do    func(*host) error
		want  string // expected backends afterwards; "gone" for no service
	}{
		"deletion of a service": {nil, func(h *host) error { return second(h.src.DeleteService(t.Context(), service, nil)) }, "gone"},
		"registration of a backend": {nil, func(h *host) error {
			return third(h.src.PutBackend(t.Context(), service, spec.Backend{Address: "10.0.0.2"}, 0, nil))
		}, "10.0.0.1 10.0.0.2"},
		"deletion of a backend":     {nil, func(h *host) error { return second(h.src.DeleteBackend(t.Context(), backend, nil)) }, ""},
		"deletion of a new backend": {[]string{"10.0.0.9"}, func(h *host) error { return second(h.src.DeleteBackend(t.Context(), backend, nil)) }, ""},
		"a state of a backend":      {nil, func(h *host) error { return second(h.overrides.Set(t.Context(), operator(backend, vip.Drain))) }, "10.0.0.1"},
		"a state of a new backend":  {[]string{"10.0.0.9"}, func(h *host) error { return second(h.overrides.Set(t.Context(), operator(backend, vip.Drain))) }, "10.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			if c.known != nil {
				a.put(web(c.known...))
				b.until("it knows the service", func() bool { _, _, there := b.services.Get(webKey); return there })
			}
			b.cutOff(a)
			a.put(web("10.0.0.1"))
			expect.Succeed(t, c.do(b), "on a host that has not received it")
			b.until("it is as asked for", func() bool {
				row, _, there := b.services.Get(webKey)
				got := "gone"
				if there {
					got = ""
					for i, be := range row.Backends {
						if i > 0 {
							got += " "
						}
						got += be.ID()
					}
				}
				return got == c.want
			})
		})
	}
}

// A missing value costs one read. A heartbeat to a missing value costs none. While the store is
// unavailable, the result is a store error.
func TestMissingIsFetchedOnce(t *testing.T) {
	m := fleettest.NewMemory()
	a := fleetOf(t, m, "a")[0]
	a.put(web("10.0.0.1"))
	nobody, other := bkey("10.0.0.2"), bkey("10.0.0.1")
	other.Service.Name = "other"
	var mu sync.Mutex
	var asked []string
	a.Client.Before(func(c fleettest.Call) error {
		mu.Lock()
		defer mu.Unlock()
		if c.Method == "Get" && strings.HasPrefix(c.Key, "ironvip/v2/tree/") {
			asked = append(asked, c.Key)
		}
		return nil
	})
	defer a.Client.Before(nil)
	for name, c := range map[string]struct {
		do   func() error
		want error
		asks int
	}{
		"deletion of a service": {func() error { return second(a.src.DeleteService(t.Context(), other.Service, nil)) }, registry.ErrNoService, 1},
		"a backend of no service": {func() error {
			return third(a.src.PutBackend(t.Context(), other.Service, spec.Backend{Address: "10.0.0.1"}, 0, nil))
		}, registry.ErrNoService, 1},
		"deletion of a backend":     {func() error { return second(a.src.DeleteBackend(t.Context(), nobody, nil)) }, registry.ErrNoBackend, 1},
		"a state of no service":     {func() error { return second(a.overrides.Set(t.Context(), operator(other, vip.Drain))) }, registry.ErrNoService, 1},
		"a state of no backend":     {func() error { return second(a.overrides.Set(t.Context(), operator(nobody, vip.Drain))) }, registry.ErrNoBackend, 1},
		"a heartbeat of no service": {func() error { return a.src.Heartbeat(t.Context(), other) }, registry.ErrNoService, 0},
		"a heartbeat of no backend": {func() error { return a.src.Heartbeat(t.Context(), nobody) }, registry.ErrNoBackend, 0},
	} {
		mu.Lock()
		asked = nil
		mu.Unlock()
		expect.Is(t, c.do(), c.want, "%s", name)
		mu.Lock()
		expect.Equal(t, len(asked), c.asks, "%s asks for %q", name, asked)
		mu.Unlock()
	}
	a.Client.SetDown(true)
	a.until("it is out of touch", func() bool { return a.Stale() != "" })
	began := time.Now()
	err := second(a.src.DeleteService(t.Context(), other.Service, nil))
	if store := (*registry.StoreError)(nil); !errors.As(err, &store) || store.Unknown {
		t.Errorf("with the store away, after %v: %v", time.Since(began), err)
	}
}

// During a start, a missing service may not have been read yet.
func TestOverrideDuringAStart(t *testing.T) {
	alone := newFixture(t)
	defer alone.stop()
	read := alone.services.Initializer()
	if _, err := alone.overrides.Set(t.Context(), operator(bkey("10.0.0.1"), vip.Drain)); !errors.Is(err, registry.ErrNotRunning) {
		t.Errorf("before every source has synced: %v", err)
	}
	read()
	if _, err := alone.overrides.Set(t.Context(), operator(bkey("10.0.0.1"), vip.Drain)); !errors.Is(err, registry.ErrNoService) {
		t.Errorf("after that: %v", err)
	}

	hosts := fleetOf(t, fleettest.NewMemory(), "a", "b")
	hosts[1].by(func() {
		hosts[0].put(web("10.0.0.1"))
		if _, err := hosts[1].overrides.Set(t.Context(), operator(bkey("10.0.0.1"), vip.Drain)); !errors.Is(err, registry.ErrNotRunning) {
			t.Errorf("before the source runs: %v", err)
		}
	})
	if _, err := hosts[1].overrides.Set(t.Context(), operator(bkey("10.0.0.1"), vip.Drain)); err != nil {
		t.Errorf("once it runs: %v", err)
	}
}

// A service that arrives while the host waits to fetch it is found.
func TestServiceArrivesDuringFetch(t *testing.T) {
	a, b := pair(t)
	unlock := must.Get(b.src.lock(t.Context(), webKey))(t)
	result := make(chan error)
	go func() { result <- second(b.overrides.Set(t.Context(), operator(bkey("10.0.0.1"), vip.Drain))) }()
	b.until("it waits for the name", func() bool {
		return b.src.locks.Users(registry.Key(webKey)) == 2
	})
	a.put(web("10.0.0.1"))
	b.sees("[10.0.0.1 ready]")
	unlock()
	expect.Succeed(t, <-result)
}
