//go:build system && long

package rest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet/consul"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/seed"
	"github.com/ironvip/ironvip/test/wait"
)

// joinConsul starts a host on a Consul server.
func joinConsul(t *testing.T, server *consultest.Server, name string) *host {
	t.Helper()
	store := must.Get(consul.New(consul.Config{Address: server.URL, Token: server.Token}))(t)
	t.Cleanup(store.Close)
	return joinBy(t, fleettest.NewMemory(), name, store)
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
	s.run(seed.Of(t), 40, func(r *rand.Rand) {
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
	wait.Within(t, time.Minute, "all hosts agree", func() error {
		first := facts(hosts[0])
		for i, h := range hosts {
			if why, _ := h.src.Store.Stale(); why != "" {
				return fmt.Errorf("host %d is stale: %s", i, why)
			}
			if d := differences(facts(h), first); len(d) > 0 {
				return fmt.Errorf("host %d differs: %v", i, d)
			}
		}
		return nil
	})
	s.check(hosts)
}
