package fleet_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
)

func elected(hosts ...*fleettest.Host) (mine []string) {
	for _, h := range hosts {
		if h.Mine() {
			mine = append(mine, h.Elected())
		}
	}
	return mine
}

func startThree(t *testing.T, store *fleettest.Memory) []*fleettest.Host {
	var hosts []*fleettest.Host
	for _, name := range []string{"one", "two", "three"} {
		hosts = append(hosts, store.Start(t, name, folders, nil))
		if name == "one" { // is the leader
			synctest.Wait()
		}
	}
	return hosts
}

func TestOneIsElectedAndHandsOver(t *testing.T) {
	withThree(t, func(t *testing.T, store *fleettest.Memory, hosts []*fleettest.Host) {
		time.Sleep(3 * time.Second)
		must.Len(t, elected(hosts...), 1, "elected")
		for end := len(hosts); end > 1; end-- {
			was := hosts[0].Elected()
			i := slices.IndexFunc(hosts, func(h *fleettest.Host) bool { return h.Mine() })
			hosts[i].End()
			hosts = slices.Delete(hosts, i, i+1)
			// A graceful end leaves no lock delay and no session.
			time.Sleep(100 * time.Millisecond)
			got := elected(hosts...)
			if len(got) != 1 || got[0] == was {
				t.Fatalf("after the end of %s: %v", was, got)
			}
			for _, h := range hosts {
				if h.Elected() != got[0] {
					t.Errorf("a host takes %s for elected, %s is", h.Elected(), got[0])
				}
			}
			if store.Sessions() != len(hosts) {
				t.Errorf("%d sessions of %d hosts", store.Sessions(), len(hosts))
			}
		}
	})
}

// A host that ends gives back the leader's key if it may hold it, and otherwise doesn't ask for that.
func TestOnlyTheLeaderUnlocksItsKey(t *testing.T) {
	for name, lose := range map[string]bool{"answered": false, "answer lost": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				store := fleettest.NewMemory()
				var unlocks atomic.Int32
				count := func(h *fleettest.Client) {
					h.Before(func(call fleettest.Call) error {
						for _, op := range call.Ops {
							if op.Verb == kv.Lock && op.Key == "ironvip/v2/leader" && lose {
								h.LoseAnswers(1)
							}
							if op.Verb == kv.Unlock && op.Key == "ironvip/v2/leader" {
								unlocks.Add(1)
							}
						}
						return nil
					})
				}
				for _, name := range []string{"one", "two"} {
					count(store.Client(name))
				}
				one := store.Start(t, "one", folders, nil)
				time.Sleep(500 * time.Millisecond) // it holds the key, and may not know that
				two := store.Start(t, "two", folders, nil)
				time.Sleep(500 * time.Millisecond)
				two.End()
				expect.Equal(t, unlocks.Load(), 0, "unlocks by a host that isn't the leader")
				one.End()
				if _, held := store.Get("ironvip/v2/leader"); unlocks.Load() != 1 || !held {
					t.Errorf("%d unlocks by the leader, the key exists: %v", unlocks.Load(), held)
				}
			})
		})
	}
}

// Two hosts are never elected at the same time, whatever happens to sessions and connections to
// Consul.
func TestNeverTwoElected(t *testing.T) {
	withThree(t, func(t *testing.T, store *fleettest.Memory, hosts []*fleettest.Host) {
		watch := func(d time.Duration) (some int) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				if got := elected(hosts...); len(got) > 1 {
					t.Fatalf("elected: %v", got)
				} else {
					some += len(got)
				}
			}
			return some
		}
		watch(5 * time.Second)
		// When it is disconnected, the elected host ends its leadership before another's begins.
		for _, h := range hosts {
			if h.Mine() {
				h.SetDown(true)
				defer h.SetDown(false)
				break
			}
		}
		watch(40 * time.Second)
		expect.Len(t, elected(hosts...), 1, "a while after the elected host was cut off")
		store.ExpireSessions()
		watch(10 * time.Second)
		store.SetDown(true)
		watch(20 * time.Second)
		expect.Empty(t, elected(hosts...), "with Consul away for longer than a session")
		store.SetDown(false)
		watch(30 * time.Second)
		store.Put("ironvip/v2/leader", "an operator's") // still locked
		store.Delete("ironvip/v2/leader")
		watch(10 * time.Second)
		expect.Len(t, elected(hosts...), 1, "at the end")
	})
}

func TestNodes(t *testing.T) {
	withThree(t, func(t *testing.T, store *fleettest.Memory, hosts []*fleettest.Host) {
		var revision atomic.Uint64
		var problems atomic.Int64
		revision.Store(7)
		hosts[0].SetNode(func() membership.Node {
			return membership.Node{Name: "ignored", Version: "v1", Dataplane: "ipvs", Revision: revision.Load(), Problems: int(problems.Load())}
		})
		store.Put("ironvip/v2/nodes/junk", "no node")
		time.Sleep(10 * time.Second)
		nodes, err := hosts[1].Nodes(t.Context())
		if err != nil || len(nodes) != 3 {
			t.Fatalf("%v, %v", nodes, err)
		}
		if n := nodes[0]; n.Name != "one" || n.Revision != 7 || n.Version != "v1" || n.Index == 0 || n.Updated == 0 {
			t.Errorf("%+v", n)
		}
		leaders := 0
		for _, n := range nodes {
			if n.Elected {
				leaders++
			}
		}
		expect.Equal(t, leaders, 1, "nodes are elected")
		revision.Store(8)
		time.Sleep(6 * time.Second)
		if nodes, _ := hosts[1].Nodes(t.Context()); nodes[0].Revision != 7 {
			t.Errorf("%+v six seconds after a change that isn't published at once", nodes[0])
		}
		problems.Store(1)
		time.Sleep(6 * time.Second)
		if nodes, _ := hosts[1].Nodes(t.Context()); nodes[0].Problems != 1 || nodes[0].Revision != 8 {
			t.Errorf("%+v six seconds after a problem", nodes[0])
		}
		// Without changes, each host of a fleet writes a row every 90 s.
		before := store.Index()
		time.Sleep(10 * time.Minute)
		expect.AtMost(t, store.Index()-before, 25, "writes in 10 minutes of peace")
		leader := slices.IndexFunc(hosts, func(h *fleettest.Host) bool { return h.Mine() })
		expect.Equal(t, hosts[leader].AwayFor("two"), 0, "two is away for")
		if away := hosts[leader].AwayFor("never"); away < 9*time.Minute || away > 11*time.Minute {
			t.Errorf("a host that never was is away for %v", away)
		}
		for i, h := range hosts {
			if away := h.AwayFor("never"); i != leader && away != 0 {
				t.Errorf("host %d isn't the leader, and says that a host is away for %v", i, away)
			}
		}
		gone := []string{"one", "two", "three"}[leader]
		hosts[leader].End()
		time.Sleep(time.Minute)
		leader = slices.IndexFunc(hosts, func(h *fleettest.Host) bool { return h.Mine() })
		if nodes, _ := hosts[leader].Nodes(t.Context()); len(nodes) != 2 {
			t.Errorf("%v after the end of one", nodes)
		}
		if away := hosts[leader].AwayFor(gone); away < 30*time.Second || away > 90*time.Second {
			t.Errorf("away for %v after a minute", away)
		}
		hosts[leader].SetDown(true)
		time.Sleep(time.Hour)
		if away := hosts[leader].AwayFor(gone); away > 2*time.Minute {
			t.Errorf("away for %v while nobody could look", away)
		}
		hosts[leader].SetDown(false)
		time.Sleep(time.Minute)
	})
}

// A host that was killed finds its session in its state and ends it, so that it doesn't compete
// with itself.
func TestRestartAfterKill(t *testing.T) {
	db := open(t)
	bubble.Test(t, func(t *testing.T) {
		store := fleettest.NewMemory()
		first := store.Run(t, fleet.Options{Node: "one", Folders: folders, Cache: db}, nil)
		time.Sleep(3 * time.Second)
		must.True(t, first.Mine(), "alone and not elected")
		first.SetDown(true) // its end can't reach the store
		first.End()
		first.SetDown(false)
		must.Equal(t, store.Sessions(), 1, "sessions")
		second := store.Run(t, fleet.Options{Node: "one", Folders: folders, Cache: db}, nil)
		time.Sleep(5 * time.Second)
		if !second.Mine() || store.Sessions() != 1 {
			t.Errorf("mine %v, %d sessions", second.Mine(), store.Sessions())
		}
	})
}
