//go:build system

package rest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/fleet/fleettest"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/vip"
)

// joinConsul starts a host on a Consul server.
func joinConsul(t *testing.T, server *consultest.Server, name string) *host {
	t.Helper()
	kv, err := consulkv.New(consulkv.Config{Address: server.URL, Token: server.Token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kv.Close)
	return joinBy(t, fleettest.NewMemory(), name, kv)
}

func TestConsulFleetAgrees(t *testing.T) {
	server := consultest.Start(t, consultest.Options{})
	var hosts []*host
	for _, name := range []string{"a", "b", "c"} {
		hosts = append(hosts, joinConsul(t, server, name))
	}
	a, b := hosts[0], hosts[1]
	a.put(web("10.0.0.1"))
	everyone(hosts, func(h *host) { h.sees("[10.0.0.1 ready]") })
	b.register("10.0.0.9", time.Hour)
	everyone(hosts, func(h *host) { h.sees("[10.0.0.1 ready 10.0.0.9 ready]") })
	b.register("10.0.0.9", 2*time.Second)
	everyone(hosts, func(h *host) { h.sees("[10.0.0.1 ready 10.0.0.9 unhealthy]") })
	if err := a.src.Heartbeat(t.Context(), bkey("10.0.0.9")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.overrides.Set(t.Context(), operator(bkey("10.0.0.1"), vip.Maint)); err != nil {
		t.Fatal(err)
	}
	everyone(hosts, func(h *host) {
		h.until("the state", func() bool { st, _, _ := h.states.Get(bkey("10.0.0.1")); return st.State == vip.Maint })
	})
	if again := hosts[2].put(web("10.0.0.1")); again.Action != Updated {
		t.Errorf("a list without the registered backend: %+v", again)
	}
	everyone(hosts, func(h *host) { h.sees("[10.0.0.1 ready]") })
	if again := b.put(web("10.0.0.1")); again.Action != Unchanged {
		t.Errorf("the same: %+v", again)
	}
}

// This is the storm against a real server that is suspended, killed and restarted.
func TestConsulStorm(t *testing.T) {
	server := consultest.Start(t, consultest.Options{})
	var hosts []*host
	for _, name := range []string{"a", "b", "c"} {
		hosts = append(hosts, joinConsul(t, server, name))
	}
	s := newStorm(t, hosts)
	n := 0
	s.run(1, 40, func(r *rand.Rand) {
		switch n++; n % 3 {
		case 0:
			server.Kill()
			time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
			server.Start()
			server.WaitReady()
		default:
			server.Pause()
			time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
			server.Continue()
		}
		time.Sleep(time.Second)
	})
	server.WaitReady()
	hosts = append(hosts, joinConsul(t, server, "d"))
	agreed := time.Now().Add(time.Minute)
	for same := false; !same && time.Now().Before(agreed); time.Sleep(100 * time.Millisecond) {
		same = true
		first := facts(hosts[0])
		for _, h := range hosts {
			if why, _ := h.src.Store.Stale(); why != "" || len(differences(facts(h), first)) > 0 {
				same = false
			}
		}
	}
	s.check(hosts)
}
