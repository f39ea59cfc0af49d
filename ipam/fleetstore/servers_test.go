//go:build system

package fleetstore

import (
	"fmt"
	"testing"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/consul"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/storetest"
)

// join runs a store against a real server.
func join(t testing.TB, s *consultest.Server, node, prefix string) (store *Store, tree *fleet.Tree, end func()) {
	t.Helper()
	h := fleettest.RunOn(t, consul.Config{Address: s.URL, Token: s.Token}, fleet.Options{Node: node, Prefix: prefix, Folders: Folders()},
		func(tree *fleet.Tree) { store = New(tree) })
	<-store.entries.Ready()
	return store, h.Tree, h.End
}

// joined is what a test may do to a store on a server.
type joined struct {
	tree   *fleet.Tree
	prefix string
	end    func()
}

// Slow: each write to a stopped Consul waits for two seconds, and Consul restarts.
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

func TestReservationAtOnceOnConsul(t *testing.T) {
	server := consultest.Start(t, consultest.Options{Memory: true})
	reserveAtOnce(t, rivals(t, func(name string) ipam.Store {
		store, _, _ := join(t, server, name, "ironvip")
		return store
	}))
}
