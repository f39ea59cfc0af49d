package fleetstore

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/storetest"
)

// host is a store on a tree of its own.
type host struct {
	*Store
	*fleettest.Host
	memory *fleettest.Memory
}

// start makes a host on what is in the memory.
func start(t testing.TB, m *fleettest.Memory, name string) *host {
	h := &host{memory: m}
	var store *Store
	h.Host = m.Start(t, name, Folders(), nil)
	store = New(h.Tree)
	h.Store = store
	return h
}

// fresh waits until a host is in touch with the store.
func fresh(t testing.TB, h *fleet.Tree) {
	t.Helper()
	within := time.After(time.Minute)
	for {
		changed := h.StatusChanged()
		if h.Stale() == "" {
			return
		}
		select {
		case <-changed:
		case <-within:
			t.Fatalf("out of touch: %s", h.Stale())
		}
	}
}

func TestStore(t *testing.T) {
	hosts := map[ipam.Store]*host{}
	n := 0
	open := func(t *testing.T, m *fleettest.Memory) ipam.Store {
		n++
		h := start(t, m, fmt.Sprintf("lb%d", n))
		hosts[h.Store] = h
		return h.Store
	}
	storetest.Run(t, func(t *testing.T) ipam.Store { return open(t, fleettest.NewMemory()) },
		storetest.Reopen(func(t *testing.T, s ipam.Store) ipam.Store {
			hosts[s].End()
			return open(t, hosts[s].memory)
		}),
		storetest.Fault(func(t *testing.T, s ipam.Store) (end func()) {
			hosts[s].memory.SetDown(true)
			return func() {
				hosts[s].memory.SetDown(false)
				fresh(t, hosts[s].Tree)
			}
		}), storetest.InBubbles())
}

func TestStorm(t *testing.T) { stormOnConsul(t, 0) }

// stormOnConsul is the storm of hosts that share a store, on a simulated Consul.
func stormOnConsul(t *testing.T, seed uint64) {
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		hosts := map[int]*host{}
		storetest.Storm{
			Hosts: 3, Steps: 150, Seed: seed, Pause: 300 * time.Millisecond, Timeout: 30 * time.Minute,
			Open: func(t testing.TB, n int) (ipam.Store, func()) {
				hosts[n] = start(t, m, fmt.Sprintf("lb%d", n+1))
				return hosts[n].Store, hosts[n].End
			},
			Trouble: func(n int, r *rand.Rand) {
				switch way := hosts[n].Client; r.IntN(2) {
				case 0:
					way.SetDown(true)
					time.AfterFunc(time.Duration(r.Int64N(int64(5*time.Second))), func() { way.SetDown(false) })
				case 1:
					way.LoseAnswers(1 + r.IntN(3))
				}
			},
			Calm: func() {
				for _, h := range hosts {
					h.SetDown(false)
					h.LoseAnswers(0)
				}
			},
		}.Run(t)
	})
}
