//go:build system

package consulstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/internal/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/fleet/fleettest"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/storetest"
)

// join runs a store against a real server.
func join(t testing.TB, s *consultest.Server, node, prefix string) (store *Store, tree *fleet.Tree, end func()) {
	t.Helper()
	h := fleettest.RunOn(t, consulkv.Config{Address: s.URL, Token: s.Token}, fleet.Options{Node: node, Prefix: prefix, Folders: Folders()},
		func(tree *fleet.Tree) { store = New(tree) })
	<-store.Ready()
	return store, h.Tree, h.End
}

// joined is what a test may do to a store on a server.
type joined struct {
	tree   *fleet.Tree
	prefix string
	end    func()
}

func TestStoreOnConsul(t *testing.T) {
	server := consultest.Start(t, consultest.Options{})
	all := map[ipam.Store]joined{}
	open := func(t *testing.T, prefix string) ipam.Store {
		s, tree, end := join(t, server, fmt.Sprintf("lb%d", len(all)), prefix)
		all[s] = joined{tree, prefix, end}
		return s
	}
	storetest.Run(t, func(t *testing.T) ipam.Store { return open(t, fmt.Sprintf("test%d", len(all))) },
		storetest.Reopen(func(t *testing.T, s ipam.Store) ipam.Store {
			all[s].end()
			return open(t, all[s].prefix)
		}),
		storetest.Fault(func(t *testing.T, s ipam.Store) (end func()) {
			server := server.For(t)
			server.Stop()
			return func() {
				server.Start()
				server.WaitReady()
				fresh(t, all[s].tree)
			}
		}))
}

// Three hosts on one real server, which stalls at times.
func TestStormOnConsul(t *testing.T) {
	server := consultest.Start(t, consultest.Options{Memory: true})
	var stalls sync.WaitGroup
	defer stalls.Wait()
	storetest.Storm{
		Hosts: 3, Steps: 120, Seed: 1, Pause: 120 * time.Millisecond, Timeout: 2 * time.Minute,
		Open: func(t testing.TB, n int) (ipam.Store, func()) {
			s, _, end := join(t, server, fmt.Sprintf("lb%d", n+1), "ironvip")
			return s, end
		},
		Trouble: func(int, *rand.Rand) {
			server.Pause()
			stalls.Go(func() {
				time.Sleep(time.Second)
				server.Continue()
			})
		},
		Calm: stalls.Wait,
	}.Run(t)
}

// Three hosts get many services at once while the real server stalls repeatedly for longer than a
// transaction may take.
func TestManyServicesOnAStallingConsul(t *testing.T) {
	server := consultest.Start(t, consultest.Options{Memory: true})
	ctx, cancel := context.WithCancel(t.Context())
	var running, asking sync.WaitGroup
	allocators := make([]*ipam.Allocator, 3)
	problems := make([]map[string]int, 3)
	services := manyServices(1500)
	for i := range allocators {
		name := fmt.Sprintf("lb%d", i+1)
		store, _, _ := join(t, server, name, "ironvip")
		a, err := ipam.New(ctx, store, bigPool(), ipam.Options{Clock: &table.Clock{}, Node: name, Leadership: seat(name)})
		if err != nil {
			t.Fatal(err)
		}
		allocators[i], problems[i] = a, map[string]int{}
		running.Go(func() { _ = a.Run(ctx) })
	}
	server.Pause()
	for i, a := range allocators {
		asking.Go(func() { ask(a, services, problems[i]) })
	}
	for range 3 {
		time.Sleep(6 * time.Second)
		server.Continue()
		time.Sleep(50 * time.Millisecond)
		server.Pause()
	}
	server.Continue()
	asking.Wait()
	sameLeases(t, allocators, len(services))
	by := map[string]int{}
	for _, l := range allocators[0].Leases().All() {
		by[l.Holders[0].Node]++
	}
	t.Logf("given by %v; problems %v", by, problems)
	cancel()
	running.Wait()
}

func TestReservationAtOnceOnConsul(t *testing.T) {
	server := consultest.Start(t, consultest.Options{Memory: true})
	reserveAtOnce(t, rivals(t, func(name string) ipam.Store {
		store, _, _ := join(t, server, name, "ironvip")
		return store
	}))
}
