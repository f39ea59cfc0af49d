package proxy

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// ended records which connections an earlier dataplane was asked to end.
type ended struct {
	mu  sync.Mutex
	got []netip.AddrPort
}

func (e *ended) end(_ vip.FrontendKey, addr netip.AddrPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.got = append(e.got, addr)
}

func (e *ended) take() []netip.AddrPort {
	e.mu.Lock()
	defer e.mu.Unlock()
	got := e.got
	e.got = nil
	return got
}

// Connections of an earlier dataplane count for the drain, the scheduler and the limits of their
// backend, and they end when it is removed, and only then.
func TestRelayedConnections(t *testing.T) {
	a, b := tcpBackend(t, "127.0.0.1", named("a")), tcpBackend(t, "127.0.0.1", named("b"))
	var e ended
	p := newTarget(t, Options{EndRelayed: e.end})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.Relayed(key, a, 3) // before the frontend exists
	spec := onVIP(key, vip.LeastConnection, a, b)
	p.must(spec)
	expect.Equal(t, p.open(key, a), 3, "connections")
	for range 3 {
		c := dial(t, key)
		defer c.Close()
		expect.Equal(t, c.line(t), "b", "the backend with fewer connections")
	}
	p.Relayed(key, a, 1)
	expect.Equal(t, p.open(key, a), 1, "connections")
	if own := p.Own(key); own[a] != 0 || own[b] != 3 {
		t.Errorf("%v of its own", own)
	}
	if keys, final := p.Busy(); len(keys) != 1 || keys[0] != key || final {
		t.Errorf("%v, %v", keys, final)
	}
	p.must(onVIP(key, vip.LeastConnection, b))
	if got := e.take(); len(got) != 1 || got[0] != a {
		t.Errorf("ended: %v, want those to %v", got, a)
	}
	p.must(spec)
	expect.Equal(t, p.open(key, a), 0, "connections after the removal")
	p.Relayed(key, a, 2)
	p.RelayedEnded()
	expect.Equal(t, p.open(key, a), 0, "connections after the end of the earlier dataplane")
	p.Relayed(key, a, 2)
	expect.Equal(t, p.open(key, a), 0, "a late count")
}

// The limits of a service and of a backend include relayed connections.
func TestLimitsIncludeRelayedConnections(t *testing.T) {
	a := tcpBackend(t, "127.0.0.1", named("a"))
	var e ended
	p := newTarget(t, Options{EndRelayed: e.end})
	for name, limit := range map[string]func(*vip.Frontend){
		"service": func(f *vip.Frontend) { r := f.Relay.Get(); r.MaxConnections = 1; f.Relay = vip.RelayOf(r) },
		"backend": func(f *vip.Frontend) { f.Backends[0].MaxConnections = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			key := freeKey(t, "127.96.0.1", vip.TCP)
			spec := onVIP(key, vip.RoundRobin, a)
			spec.Service.Name = name
			limit(spec)
			p.must(spec)
			p.Relayed(key, a, 1)
			wantRefused(t, key)
			p.Relayed(key, a, 0)
			wait.Until(t, "a place", func() bool { return p.open(key, a) == 0 }, nil)
			c := dial(t, key)
			c.line(t)
			c.Close()
		})
	}
}

// Neither the end of the process nor a listener that can't be opened ends the connections of an
// earlier dataplane. The removal of a frontend does.
func TestRelayedConnectionsSurvive(t *testing.T) {
	a := tcpBackend(t, "127.0.0.1", named("a"))
	var e ended
	p := newTarget(t, Options{EndRelayed: e.end})
	taken := freeKey(t, "127.96.0.1", vip.TCP)
	blocker := newTarget(t, Options{})
	blocker.must(onVIP(taken, vip.RoundRobin, a))
	p.Relayed(taken, a, 1)
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: taken, New: onVIP(taken, vip.RoundRobin, a)}}
	if err := p.Apply(t.Context(), batch); err != nil || batch[0].Err == nil {
		t.Fatalf("%v, %v: the port should be taken", err, batch[0].Err)
	}
	expect.Empty(t, e.take(), "a failed listener ended")
	removed, kept := freeKey(t, "127.96.0.2", vip.TCP), freeKey(t, "127.96.0.3", vip.TCP)
	p.must(onVIP(removed, vip.RoundRobin, a))
	p.must(onVIP(kept, vip.RoundRobin, a))
	p.Relayed(removed, a, 1)
	p.Relayed(kept, a, 1)
	batch = []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: removed}}
	if err := p.Apply(t.Context(), batch); err != nil || batch[0].Err != nil {
		t.Fatal(err, batch[0].Err)
	}
	expect.Len(t, e.take(), 1, "a removed frontend ended")
	p.Drain(t.Context())
	must.Succeed(t, p.Close())
	expect.Empty(t, e.take(), "the end of the dataplane ended")
}

// Abort ends the connections to one backend, and no others. Those of an earlier dataplane are ended by that.
func TestAbort(t *testing.T) {
	a, b := tcpBackend(t, "127.0.0.1", named("a")), tcpBackend(t, "127.0.0.1", named("b"))
	var e ended
	p := newTarget(t, Options{EndRelayed: e.end})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, a, b))
	p.Relayed(key, a, 1)
	p.Relayed(key, b, 1)
	open := map[string]*client{}
	for range 2 {
		c := dial(t, key)
		open[c.line(t)] = c
	}
	p.Abort(key, a)
	open["a"].wantReset(t)
	open["b"].echo(t, "after the end of others")
	expect.Empty(t, e.take(), "ended")
	p.Abort(freeKey(t, "127.96.0.9", vip.TCP), a) // not known: no effect
}
