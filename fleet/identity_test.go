package fleet_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// host starts one agent with its own connection to the store, and returns its events.
func host(t *testing.T, kv *fleettest.Memory, o fleet.Options, connection string) (*fleettest.Host, *fleettest.Client, *event.Log) {
	t.Helper()
	events, client := event.NewLog(100, time.Now), kv.Client(connection)
	o.Folders, o.KV, o.Events = folders, client, events
	return kv.Run(t, o, nil), client, events
}

func kinds(events *event.Log, kind string) (n int) {
	all, _ := events.Since(0)
	for _, e := range all {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

func isReady(h *fleettest.Host) bool {
	select {
	case <-h.Folder("a").Ready():
		return true
	default:
		return false
	}
}

// identity is one of a host called db7.
func identity(id, file string) membership.Identity {
	return membership.Identity{ID: id, File: file, Hostname: "db7", Address: "10.0.0.7"}
}

// A second host with the ID or the name of a live one is refused: it is never ready, writes
// nothing, and its error names the other host and a fix. The first host and a host with another
// name are not affected, and the disputed name is listed once.
func TestSecondTreeIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		second fleet.Options
		says   []string
	}{
		"of the same id and name": {fleet.Options{Node: "lb/1", Identity: identity("id-1", "boot-2:1")},
			[]string{"host id id-1", `node "lb/1" on host db7 (10.0.0.7), started`, "ironvip node new-id", "node.name"}},
		"of the same id": {fleet.Options{Node: "lb2", Identity: identity("id-1", "boot-1:2")},
			[]string{"host id id-1", `node "lb/1" on host db7 (10.0.0.7), started`, "ironvip node new-id"}},
		"of the same name": {fleet.Options{Node: "lb/1", Identity: identity("id-2", "boot-2:1")},
			[]string{`node name "lb/1"`, `node "lb/1" on host db7 (10.0.0.7), started`, "node.name"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				kv := fleettest.NewMemory()
				first, _, events := host(t, kv, fleet.Options{Node: "lb/1", Identity: identity("id-1", "boot-1:1")}, "a")
				third, _, thirdEvents := host(t, kv, fleet.Options{Node: "lb3", Identity: identity("id-3", "boot-3:1")}, "c")
				time.Sleep(time.Second)
				if !first.OwnName() || !isReady(first) || !third.OwnName() || !isReady(third) {
					t.Fatal("the first or the third host is not in the fleet")
				}
				checkThird := func() {
					t.Helper()
					var names []string
					nodes, err := third.Nodes(t.Context())
					for _, n := range nodes {
						names = append(names, n.Name)
					}
					if err != nil || !slices.Equal(names, []string{"lb/1", "lb3"}) {
						t.Fatalf("the third host lists %q, %v", names, err)
					}
					if !third.OwnName() || third.Stale() != "" || len(third.Problems()) != 0 || kinds(thirdEvents, "fleet_name_taken") != 0 {
						t.Fatalf("the third host: own name %v, stale %q, problems %v", third.OwnName(), third.Stale(), third.Problems())
					}
				}
				var writes atomic.Int32
				second, client, _ := host(t, kv, c.second, "b")
				client.Before(func(call fleettest.Call) error {
					if call.Writes() {
						writes.Add(1)
					}
					return nil
				})
				for began := time.Now(); second.Ended() == nil; time.Sleep(100 * time.Millisecond) {
					if isReady(second) || second.OwnName() || time.Since(began) > time.Minute {
						t.Fatalf("not refused after %v: ready %v", time.Since(began), isReady(second))
					}
					if time.Since(began) > 5*time.Second && !strings.Contains(second.Stale(), "waiting up to 45s") {
						t.Fatalf("waits and says %q", second.Stale())
					}
					checkThird()
				}
				checkThird()
				refused, is := errors.AsType[*membership.DuplicateNodeError](second.Ended())
				if !is {
					t.Fatal(second.Ended())
				}
				for _, part := range c.says {
					if !strings.Contains(refused.Error()+"; "+refused.Hint(), part) {
						t.Errorf("%v; %s lacks %q", refused, refused.Hint(), part)
					}
				}
				expect.Equal(t, writes.Load(), 0, "writes by the refused host")
				if !first.OwnName() || first.Stale() != "" || len(first.Problems()) != 0 || kinds(events, "fleet_name_taken") != 0 {
					t.Errorf("the first host: own name %v, stale %q, problems %v", first.OwnName(), first.Stale(), first.Problems())
				}
			})
		})
	}
}

// An earlier run of this host that was killed holds the locks until its session expires. A run
// with the same state file on the same kernel takes over at once. After a reboot, and with a new
// id, it waits for the session to end. No other host is reported.
func TestRestartAfterKillTakesOver(t *testing.T) {
	for name, c := range map[string]struct {
		next   fleet.Options
		within time.Duration
	}{
		"same file, same boot":    {fleet.Options{Node: "lb1", Identity: identity("id-1", "boot-1:1")}, 50 * time.Millisecond},
		"same file, renamed node": {fleet.Options{Node: "lb2", Identity: identity("id-1", "boot-1:1")}, 50 * time.Millisecond},
		"after a reboot":          {fleet.Options{Node: "lb1", Identity: identity("id-1", "boot-2:1")}, 25 * time.Second},
		"reinstalled":             {fleet.Options{Node: "lb1", Identity: identity("id-2", "boot-2:9")}, 25 * time.Second},
		"file not known":          {fleet.Options{Node: "lb1", Identity: identity("id-1", "")}, 25 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			for _, after := range []time.Duration{0, 3 * time.Second, 12 * time.Second, time.Minute} {
				bubble.Test(t, func(t *testing.T) {
					kv := fleettest.NewMemory()
					first, client, _ := host(t, kv, fleet.Options{Node: "lb1", Identity: identity("id-1", "boot-1:1")}, "a")
					time.Sleep(20 * time.Second)
					client.SetDown(true) // its end can't reach the store
					first.End()
					time.Sleep(after)
					next, _, events := host(t, kv, c.next, "b")
					began := time.Now()
					for !isReady(next) && time.Since(began) < time.Minute {
						time.Sleep(time.Millisecond)
					}
					if took := time.Since(began); took > c.within || !next.OwnName() {
						t.Errorf("%v after the kill: ready after %v, own name %v", after, took, next.OwnName())
					}
					time.Sleep(time.Minute)
					if next.Ended() != nil || next.Stale() != "" || kinds(events, "fleet_name_taken") != 0 || !next.Mine() || kv.Sessions() != 1 {
						t.Errorf("a minute later: %v, %q, leader %v, %d sessions", next.Ended(), next.Stale(), next.Mine(), kv.Sessions())
					}
				})
			}
		})
	}
}

// A host whose agent is killed several times, also while it waits for the session of an earlier
// run to expire, never takes one of its runs for another host.
func TestRepeatedKillsReportNoDuplicate(t *testing.T) {
	for name, c := range map[string]struct {
		next   func(run int) membership.Identity
		atOnce bool // each run takes over the locks of the one before
	}{
		"same file, same boot": {func(int) membership.Identity { return identity("id-1", "boot-1:1") }, true},
		"after reboots":        {func(run int) membership.Identity { return identity("id-1", fmt.Sprintf("boot-%d:1", run)) }, false},
		"reinstalled": {func(run int) membership.Identity {
			return identity(fmt.Sprintf("id-%d", run), fmt.Sprintf("boot-1:%d", run))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				kv := fleettest.NewMemory()
				start := func(run int) (*fleettest.Host, *fleettest.Client, *event.Log) {
					return host(t, kv, fleet.Options{Node: "lb1", Identity: c.next(run)}, fmt.Sprint(run))
				}
				h, client, events := start(0)
				watch := func(run int, d time.Duration) {
					t.Helper()
					for range d / (100 * time.Millisecond) {
						time.Sleep(100 * time.Millisecond)
						if h.Ended() != nil || h.Duplicate() != nil || len(h.Problems()) != 0 || kinds(events, "fleet_name_taken") != 0 {
							t.Fatalf("run %d: ended %v, problems %v", run, h.Ended(), h.Problems())
						}
						if c.atOnce && !h.OwnName() {
							t.Fatalf("run %d doesn't take over: %q", run, h.Stale())
						}
					}
				}
				watch(0, 20*time.Second)
				for i, lasts := range []time.Duration{100 * time.Millisecond, 3 * time.Second, 8 * time.Second, 14 * time.Second, time.Minute} {
					client.SetDown(true) // its end can't reach the store
					h.End()
					h, client, events = start(i + 1)
					watch(i+1, lasts)
				}
				if !h.OwnName() || !isReady(h) || !h.Mine() || h.Stale() != "" || kv.Sessions() != 1 {
					t.Errorf("a minute after the last start: own name %v, ready %v, leader %v, %q, %d sessions",
						h.OwnName(), isReady(h), h.Mine(), h.Stale(), kv.Sessions())
				}
			})
		})
	}
}

// A host that was away for longer than its session lives finds its name in use. It keeps its
// tables, reports the other host and writes nothing, until that is gone.
func TestNameIsTakenWhileAway(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		one, client, events := host(t, kv, fleet.Options{Node: "lb1", Identity: identity("id-1", "boot-1:1")}, "a")
		time.Sleep(20 * time.Second)
		mustCommit(t, one, set("a", "x", "1", 0))
		client.SetDown(true)
		time.Sleep(20 * time.Second)
		expect.False(t, one.OwnName(), "the name is its own when its session is over")
		other := membership.Identity{ID: "id-2", File: "boot-2:1", Hostname: "db8", Address: "10.0.0.8"}
		holder := `node "lb1" on host db8 (10.0.0.8), started ` + time.Now().UTC().Format(time.RFC3339)
		two, _, _ := host(t, kv, fleet.Options{Node: "lb1", Identity: other}, "b")
		time.Sleep(2 * time.Second)
		if !two.OwnName() || !isReady(two) {
			t.Fatal("the second has the name to itself and doesn't start")
		}
		client.SetDown(false)
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			must.False(t, one.OwnName(), "the name is its own again")
		}
		refused := one.Duplicate()
		if refused == nil || !strings.Contains(one.Stale(), `node name "lb1" is in use`) || len(one.Problems()) != 1 || kinds(events, "fleet_name_taken") != 1 {
			t.Fatalf("after a minute: %v, %q, %v", refused, one.Stale(), one.Problems())
		}
		if p := one.Problems()[0]; p.Code != vip.CodeNameTaken || !strings.Contains(p.Message, holder) || !strings.Contains(p.Hint, "node.name") {
			t.Errorf("problem %+v, want code %q, message with %s, hint with node.name", p, vip.CodeNameTaken, holder)
		}
		err := one.Commit(t.Context(), []*fleet.Batch{{Writes: []fleet.Write{set("a", "y", "1", 0)}}})
		expect.Is(t, err, fleet.ErrUnavailable, "a write in another host's name")
		if _, there := kv.Get(treePrefix + "a/y"); there || get(one, "a", "x") != "1" {
			t.Error("it wrote, or lost what it knew")
		}
		mustCommit(t, two, set("a", "z", "1", 0))
		time.Sleep(time.Second)
		expect.Equal(t, get(one, "a", "z"), "1", "it doesn't follow the tree")
		if two.Duplicate() != nil || !two.OwnName() || two.Stale() != "" {
			t.Errorf("the holder: %v, %q", two.Problems(), two.Stale())
		}
		two.End()
		time.Sleep(10 * time.Second)
		if !one.OwnName() || one.Stale() != "" || len(one.Problems()) != 0 || kinds(events, "fleet_name_free") != 1 {
			t.Errorf("10 s after the other's end: %v, %q, %v", one.OwnName(), one.Stale(), one.Problems())
		}
		mustCommit(t, one, set("a", "y", "1", 0))
	})
}

// A host that began from its cache, without Consul, and then finds a live host with its id
// continues with its state. It neither writes nor ends.
func TestDuplicateOfAHostThatBeganWithoutConsul(t *testing.T) {
	db := open(t)
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		id := func(file string) membership.Identity { return identity("id-1", file) }
		first, _, _ := host(t, kv, fleet.Options{Node: "lb1", Identity: id("boot-1:1"), Cache: db}, "a")
		time.Sleep(time.Second)
		mustCommit(t, first, set("a", "x", "1", 0))
		time.Sleep(5 * time.Second)
		first.End()
		live, _, _ := host(t, kv, fleet.Options{Node: "lb1", Identity: id("boot-1:1")}, "live")
		time.Sleep(time.Second)
		kv.Client("b").SetDown(true)
		clone, client, _ := host(t, kv, fleet.Options{Node: "lb1", Identity: id("boot-2:1"), Cache: db}, "b")
		time.Sleep(fleet.GracePeriod + time.Second)
		if !isReady(clone) || get(clone, "a", "x") != "1" {
			t.Fatal("without Consul it doesn't begin on its cache")
		}
		client.SetDown(false)
		time.Sleep(2 * time.Minute)
		if clone.Ended() != nil || clone.Duplicate() == nil || get(clone, "a", "x") != "1" || clone.OwnName() {
			t.Errorf("%v, %v, %q", clone.Ended(), clone.Duplicate(), get(clone, "a", "x"))
		}
		err := clone.Commit(t.Context(), []*fleet.Batch{{Writes: []fleet.Write{set("a", "y", "1", 0)}}})
		expect.Is(t, err, fleet.ErrUnavailable, "a write")
		if !live.OwnName() || live.Stale() != "" {
			t.Errorf("the other: %q", live.Stale())
		}
	})
}

// Consul becomes unavailable while a host checks whether the holder of its lock lives: the host
// begins from its cache.
func TestConsulGoesAwayWhileWaiting(t *testing.T) {
	db := open(t)
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		first, client, _ := host(t, kv, fleet.Options{Node: "lb1", Identity: identity("id-1", "boot-1:1"), Cache: db}, "a")
		time.Sleep(time.Second)
		mustCommit(t, first, set("a", "x", "1", 0))
		time.Sleep(5 * time.Second)
		client.SetDown(true)
		first.End()
		next, client, _ := host(t, kv, fleet.Options{Node: "lb1", Identity: identity("id-1", "boot-2:1"), Cache: db}, "b")
		time.Sleep(5 * time.Second)
		must.False(t, isReady(next), "it doesn't wait")
		client.SetDown(true)
		time.Sleep(2*fleet.GracePeriod + time.Second)
		if !isReady(next) || get(next, "a", "x") != "1" {
			t.Errorf("not begun: %q", next.Stale())
		}
		client.SetDown(false)
		time.Sleep(time.Minute)
		if next.Stale() != "" || !next.OwnName() {
			t.Errorf("with Consul: %q", next.Stale())
		}
	})
}

// The hosts take their locks again after a manual removal.
func TestLocksRemovedByHand(t *testing.T) {
	withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
		time.Sleep(5 * time.Second)
		kv.Delete("ironvip/v2/hosts/")
		kv.Delete("ironvip/v2/nodes/")
		time.Sleep(2 * time.Minute)
		for _, h := range hosts {
			if !h.OwnName() || h.Stale() != "" {
				t.Errorf("%v, %q", h.OwnName(), h.Stale())
			}
		}
		for _, prefix := range []string{"hosts/", "nodes/"} {
			for _, p := range kv.Pairs("ironvip/v2/" + prefix) {
				expect.True(t, p.Session != "", "%s is not locked", p.Key)
			}
			n := len(kv.Pairs("ironvip/v2/" + prefix))
			expect.Equal(t, n, 3, "%d locks below %s", n, prefix)
		}
		for _, h := range hosts {
			h.End()
		}
		expect.Empty(t, append(kv.Pairs("ironvip/v2/hosts/"), kv.Pairs("ironvip/v2/nodes/")...), "left at the end")
	})
}

func open(t *testing.T) *store.DB {
	t.Helper()
	db := must.Get(store.Open(t.TempDir() + "/" + store.FileName))(t)
	t.Cleanup(func() { db.Close() })
	return db
}
