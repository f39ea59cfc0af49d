package fleet_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
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

// largeTree fills the store with that many values.
func largeTree(store *fleettest.Memory, values int) {
	for i := range values {
		store.Put(fmt.Sprintf("%sa/%d", treePrefix, i), strings.Repeat(fmt.Sprint(i%10), 300))
	}
}

// treeReads counts the reads of the whole tree by all hosts.
type treeReads struct {
	mu sync.Mutex
	n  int
}

func (r *treeReads) count(call fleettest.Call) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if call.Method == "List" && call.Key == treePrefix {
		r.n++
	}
	return nil
}

func (r *treeReads) take() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.n
	r.n = 0
	return n
}

// Of hosts that start at the same time, one reads the tree. The others read its snapshot, and so do
// later ones while the log reaches back to it.
func TestManyHostsStartWithOneRead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := fleettest.NewMemory()
		largeTree(store, 500)
		var reads treeReads
		start := func(n int, of string) (hosts []*fleettest.Host) {
			for i := range n {
				name := fmt.Sprint(of, i)
				store.Client(name).Before(reads.count)
				hosts = append(hosts, store.Run(t, fleet.Options{Node: name, Folders: folders}, nil))
			}
			for _, h := range hosts {
				<-h.Folder("a").Ready()
			}
			return hosts
		}
		began := time.Now()
		hosts := start(20, "first")
		if n := reads.take(); n != 1 {
			t.Errorf("20 hosts read the tree %d times", n)
		}
		expect.AtMost(t, time.Since(began), 5*time.Second, "ready after")
		time.Sleep(time.Second)
		wantSame(t, store, hosts...)

		for i := range 50 { // changes, new keys and removals
			e, _, _ := hosts[0].Folder("a").Get(fmt.Sprint(i))
			mustCommit(t, hosts[0], set("a", fmt.Sprint(i), "changed", e.Index), set("b", fmt.Sprint(i), "new", 0))
			e, _, _ = hosts[0].Folder("a").Get(fmt.Sprint(100 + i))
			mustCommit(t, hosts[0], fleet.Write{Folder: "a", Key: e.Key, Index: e.Index})
			if i == 20 {
				second := start(3, "second")
				if n := reads.take(); n != 0 {
					t.Errorf("hosts read the tree %d times %d entries after the snapshot", n, 2*i)
				}
				synctest.Wait()
				wantSame(t, store, second...)
			}
		}
		third := start(3, "third")
		if n := reads.take(); n != 1 {
			t.Errorf("hosts read the tree %d times, further from the snapshot than the log reaches back", n)
		}
		time.Sleep(time.Second)
		wantSame(t, store, third...)
	})
}

// Hosts don't use a snapshot that isn't the tree, or is damaged, and don't wait for one that never
// comes.
func TestSnapshotThatCannotBeUsed(t *testing.T) {
	const at = "ironvip/v2/snapshot/"
	for name, spoil := range map[string]func(t *testing.T, store *fleettest.Memory, one *fleettest.Host){
		"a part is missing":          func(_ *testing.T, store *fleettest.Memory, _ *fleettest.Host) { store.Delete(at + "parts/0") },
		"a part is another one's":    func(_ *testing.T, store *fleettest.Memory, _ *fleettest.Host) { store.Put(at+"parts/0", "junk") },
		"its description is missing": func(_ *testing.T, store *fleettest.Memory, _ *fleettest.Host) { store.Delete(at + "head") },
		"its description is junk":    func(_ *testing.T, store *fleettest.Memory, _ *fleettest.Host) { store.Put(at+"head", "junk") },
		"it has no parts": func(t *testing.T, store *fleettest.Memory, _ *fleettest.Host) {
			head, _ := store.Get(at + "head")
			store.Put(at+"head", strings.Replace(head, `"parts":1`, `"parts":0`, 1))
		},
		"another format": func(t *testing.T, store *fleettest.Memory, _ *fleettest.Host) {
			head, _ := store.Get(at + "head")
			store.Put(at+"head", strings.Replace(head, `"v":2`, `"v":1`, 1))
		},
		"the log is junk": func(_ *testing.T, store *fleettest.Memory, _ *fleettest.Host) {
			store.Put("ironvip/v2/log/head", "junk")
		},
		"the log is removed": func(_ *testing.T, store *fleettest.Memory, _ *fleettest.Host) { store.Delete("ironvip/v2/log/") },
		"its writer is paused while it holds the lock": func(t *testing.T, store *fleettest.Memory, _ *fleettest.Host) {
			store.Delete(at)
			paused := store.Client("paused")
			paused.Before(func(call fleettest.Call) error {
				if call.Method == "List" && call.Key == treePrefix {
					time.Sleep(time.Hour)
				}
				return nil
			})
			store.Run(t, fleet.Options{Node: "paused", Folders: folders}, nil)
			time.Sleep(time.Second)
		},
		"its writer is gone and held the lock": func(t *testing.T, store *fleettest.Memory, _ *fleettest.Host) {
			store.Delete(at)
			gone := store.Client("gone")
			gone.Before(func(call fleettest.Call) error {
				if call.Method == "List" && call.Key == treePrefix {
					gone.SetDown(true)
				}
				return nil
			})
			store.Run(t, fleet.Options{Node: "gone", Folders: folders}, nil)
			time.Sleep(time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			withOne(t, 20, func(t *testing.T, store *fleettest.Memory, one *fleettest.Host) {
				mustCommit(t, one, set("b", "x", "1", 0))
				time.Sleep(time.Second)
				spoil(t, store, one)
				began := time.Now()
				two, three := store.Run(t, fleet.Options{Node: "two", Folders: folders}, nil), store.Run(t, fleet.Options{Node: "three", Folders: folders}, nil)
				<-two.Folder("a").Ready()
				<-three.Folder("a").Ready()
				expect.AtMost(t, time.Since(began), 25*time.Second, "ready after")
				time.Sleep(time.Second)
				wantSame(t, store, two, three)
				e, _, _ := two.Folder("b").Get("x")
				mustCommit(t, two, set("b", "x", "2", e.Index))
				time.Sleep(time.Second)
				wantSame(t, store, two, three)
			})
		})
	}
}

// A snapshot that is older than a restored backup of Consul is not joined to the log that the hosts
// have written since.
func TestSnapshotOfAnotherPast(t *testing.T) {
	for _, rebuilt := range []bool{false, true} {
		t.Run(fmt.Sprintf("rebuilt %v", rebuilt), func(t *testing.T) {
			withOne(t, 20, func(t *testing.T, store *fleettest.Memory, one *fleettest.Host) {
				mustCommit(t, one, set("b", "x", "1", 0))
				time.Sleep(time.Second)
				backup := store.Snapshot()
				mustCommit(t, one, set("b", "lost", "1", 0))
				time.Sleep(time.Second)
				store.Restore(backup, rebuilt)
				time.Sleep(time.Minute)
				mustCommit(t, one, set("b", "y", "1", 0))
				two := store.Start(t, "two", folders, nil)
				time.Sleep(time.Second)
				wantSame(t, store, one, two)
			})
		})
	}
}

// A host that starts from a snapshot compares its tables with the digests in the log after it.
func TestStartComparesDigests(t *testing.T) {
	withOne(t, 20, func(t *testing.T, store *fleettest.Memory, one *fleettest.Host) {
		time.Sleep(6 * time.Minute)
		store.Put(treePrefix+"a/7", "by hand")
		if err := one.Look(t.Context(), "a", "7"); err != nil { // so the leader's next search finds no change
			t.Fatal(err)
		}
		mustCommit(t, one, set("b", "x", "1", 0))
		time.Sleep(6 * time.Minute)
		wantSame(t, store, one)
		two := store.Start(t, "two", folders, nil)
		time.Sleep(time.Minute)
		wantSame(t, store, two)
	})
}

// A leader that started from a snapshot soon finds what was removed by hand while no host ran.
func TestStartAfterARemovalByHand(t *testing.T) {
	withOne(t, 20, func(t *testing.T, store *fleettest.Memory, one *fleettest.Host) {
		mustCommit(t, one, set("b", "x", "1", 0))
		time.Sleep(time.Minute)
		one.End()
		store.Delete(treePrefix + "a/7")
		time.Sleep(20 * time.Minute)
		store.ExpireTombstones()
		two, three := store.Start(t, "two", folders, nil), store.Start(t, "three", folders, nil)
		must.True(t, get(two, "a", "7") != "", "it doesn't use the snapshot")
		time.Sleep(35 * time.Second)
		wantSame(t, store, two, three)
	})
}

// A starting host reads the mark of the fleet itself, not that of the snapshot.
func TestStartReadsTheMark(t *testing.T) {
	withOne(t, 20, func(t *testing.T, store *fleettest.Memory, one *fleettest.Host) {
		time.Sleep(time.Minute)
		store.Put(treePrefix+".fleet", `{"v":1,"fleet":"another"}`)
		mustCommit(t, one, set("b", "x", "1", 0))
		two := store.Start(t, "two", folders, nil)
		time.Sleep(time.Minute)
		must.Succeed(t, two.Reread(t.Context()))
		wantSame(t, store, two)
	})
}

// The parts of a former, larger snapshot don't stay in Consul.
func TestSnapshotThatShrinks(t *testing.T) {
	const at = "ironvip/v2/snapshot/"
	bubble.Test(t, func(t *testing.T) {
		store := fleettest.NewMemory()
		random := rand.NewChaCha8([32]byte{}) // can't be compressed
		for i := range 200 {
			value := make([]byte, 5000)
			_, _ = random.Read(value)
			store.Put(fmt.Sprintf("%sa/%d", treePrefix, i), string(value))
		}
		store.Start(t, "one", folders, nil)
		time.Sleep(time.Second)
		must.Equal(t, len(store.Pairs(at+"parts/")), 4, "parts")
		store.Delete(treePrefix + "a/1")
		store.Delete(at + "head")
		store.Put(at+"parts/note", "not a part")
		two := store.Start(t, "two", folders, nil)
		time.Sleep(time.Second)
		var left []string
		for _, p := range store.Pairs(at + "parts/") {
			left = append(left, p.Key)
		}
		slices.Sort(left)
		expect.SameList(t, left, []string{at + "parts/0", at + "parts/1", at + "parts/note"}, "parts")
		store.Client("three").Before(func(call fleettest.Call) error {
			if call.Method == "List" && call.Key == treePrefix {
				t.Error("the snapshot isn't used")
			}
			return nil
		})
		wantSame(t, store, two, store.Start(t, "three", folders, nil))
	})
}

// A snapshot's lock whose return failed is given back later, and so is one that was taken without an
// answer.
func TestSnapshotLockIsGivenBack(t *testing.T) {
	const head = "ironvip/v2/snapshot/head"
	for _, verb := range []kv.Verb{kv.Lock, kv.Unlock} {
		t.Run(string(verb), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				store := fleettest.NewMemory()
				largeTree(store, 20)
				store.Start(t, "one", folders, nil)
				time.Sleep(time.Minute)
				store.Put(head, "junk")
				two := store.Client("two")
				var done atomic.Bool // the client's calls run at the same time
				two.Before(func(call fleettest.Call) error {
					if done.Load() || call.Method != "Txn" {
						return nil
					}
					if last := call.Ops[len(call.Ops)-1]; last.Key != head || last.Verb != verb {
						return nil
					}
					done.Store(true)
					if verb == kv.Unlock {
						return fleettest.ErrDown
					}
					two.LoseAnswers(1)
					return nil
				})
				store.Start(t, "two", folders, nil)
				time.Sleep(time.Minute)
				p := store.Pairs(head)
				if len(p) != 1 || p[0].Session != "" || !strings.Contains(string(p[0].Value), `"parts":1`) || !done.Load() {
					t.Errorf("%s, locked by %q; %v", p[0].Value, p[0].Session, done.Load())
				}
			})
		})
	}
}

// A host that finds no snapshot doesn't replace the one that another host has written meanwhile.
func TestSnapshotWrittenMeanwhile(t *testing.T) {
	const head = "ironvip/v2/snapshot/head"
	bubble.Test(t, func(t *testing.T) {
		store := fleettest.NewMemory()
		largeTree(store, 20)
		store.Start(t, "one", folders, nil)
		time.Sleep(time.Minute)
		written, _ := store.Get(head)
		store.Delete(head)
		var reads treeReads
		store.Client("two").Before(func(call fleettest.Call) error {
			if call.Method == "Txn" && call.Ops[len(call.Ops)-1].Key == head {
				store.Put(head, written)
			}
			return reads.count(call)
		})
		two := store.Start(t, "two", folders, nil)
		time.Sleep(time.Second)
		wantSame(t, store, two)
		n := reads.take()
		expect.Equal(t, n, 0, "the host has read the tree %d times", n)
	})
}

// calls counts the calls of a host, by what they ask for.
type calls struct {
	mu sync.Mutex
	of map[string]int
}

func (c *calls) count(call fleettest.Call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]int{}
	}
	what := call.Method + " " + strings.TrimPrefix(call.Key, "ironvip/v2/")
	if call.Query.After > 0 {
		what += " held"
	}
	for _, op := range call.Ops {
		what += fmt.Sprint(op.Verb, " ", strings.TrimPrefix(op.Key, "ironvip/v2/"), ";")
	}
	c.of[what]++
	return nil
}

func (c *calls) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.of
	c.of = nil
	return of
}

// A start costs Consul a session, one transaction, and a few reads of single keys. Nothing that
// another host does while it starts wakes a host, except for the snapshot that all wait for.
func TestStartCosts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := fleettest.NewMemory()
		largeTree(store, 100)
		reading, begun := make(chan struct{}), make(chan struct{})
		store.Client("first").Before(func(call fleettest.Call) error {
			if call.Method == "List" && call.Key == treePrefix {
				close(begun)
				<-reading
			}
			return nil
		})
		store.Run(t, fleet.Options{Node: "first", Folders: folders}, nil)
		<-begun
		synctest.Wait()
		seen := map[string]*calls{}
		var hosts []*fleettest.Host
		start := func(name string) *fleettest.Host {
			seen[name] = &calls{}
			store.Client(name).Before(seen[name].count)
			return store.Run(t, fleet.Options{Node: name, Identity: membership.Identity{ID: "id-" + name}, Folders: folders}, nil)
		}
		for i := range 20 {
			hosts = append(hosts, start(fmt.Sprint("h", i)))
			synctest.Wait()
		}
		close(reading)
		for _, h := range hosts {
			<-h.Folder("a").Ready()
		}
		synctest.Wait()
		want := func(name string, more map[string]int) {
			t.Helper()
			want := map[string]int{
				"Txn get-or-empty hosts/id-" + name + ";get-or-empty nodes/" + name + ";": 1,
				"NewSession ": 1,
				"Txn lock hosts/id-" + name + ";lock nodes/" + name + ";": 1,
				"Get leader": 1, "Get leader held": 1,
				"Get snapshot/head": 1,
				"Txn get-or-empty tree/.fleet;get-or-empty log/head;": 1,
				"Get snapshot/parts/0":                                1,
				"Get log/head held":                                   1,
			}
			maps.Copy(want, more)
			got := seen[name].take()
			expect.True(t, maps.Equal(got, want), "%s: %v, not %v", name, got, want)
		}
		for name := range seen {
			want(name, map[string]int{"Get snapshot/head held": 1})
		}
		last := start("last")
		<-last.Folder("a").Ready()
		synctest.Wait()
		want("last", nil)
		wantSame(t, store, append(hosts, last)...)
	})
}

// A host that starts from a snapshot learns what was written by hand since then from the leader's search.
func TestStartAfterAWriteByHand(t *testing.T) {
	withOne(t, 20, func(t *testing.T, store *fleettest.Memory, one *fleettest.Host) {
		mustCommit(t, one, set("b", "x", "1", 0))
		time.Sleep(time.Minute)
		store.Put(treePrefix+"a/7", "by hand")
		store.Delete(treePrefix + "a/8")
		two := store.Start(t, "two", folders, nil)
		time.Sleep(6 * time.Minute)
		wantSame(t, store, one, two)
	})
}
