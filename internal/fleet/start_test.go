package fleet_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/internal/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/fleet/fleettest"
	"github.com/ironvip/ironvip/test/bubble"
)

// largeTree fills the store with that many values.
func largeTree(kv *fleettest.Memory, values int) {
	for i := range values {
		kv.Put(fmt.Sprintf("%sa/%d", treePrefix, i), strings.Repeat(fmt.Sprint(i%10), 300))
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
		kv := fleettest.NewMemory()
		largeTree(kv, 2000)
		var reads treeReads
		start := func(n int, of string) (hosts []*fleettest.Host) {
			for i := range n {
				name := fmt.Sprint(of, i)
				kv.Client(name).Before(reads.count)
				hosts = append(hosts, kv.Run(t, fleet.Options{Node: name, Folders: folders}, nil))
			}
			for _, h := range hosts {
				<-h.Folder("a").Ready()
			}
			return hosts
		}
		began := time.Now()
		hosts := start(40, "first")
		if n := reads.take(); n != 1 {
			t.Errorf("40 hosts read the tree %d times", n)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("ready after %v", took)
		}
		time.Sleep(time.Second)
		wantSame(t, kv, hosts...)

		for i := range 50 { // changes, new keys and removals
			e, _, _ := hosts[0].Folder("a").Get(fmt.Sprint(i))
			mustCommit(t, hosts[0], set("a", fmt.Sprint(i), "changed", e.Index), set("b", fmt.Sprint(i), "new", 0))
			e, _, _ = hosts[0].Folder("a").Get(fmt.Sprint(1000 + i))
			mustCommit(t, hosts[0], fleet.Write{Folder: "a", Key: e.Key, Index: e.Index})
			if i == 20 {
				second := start(3, "second")
				if n := reads.take(); n != 0 {
					t.Errorf("hosts read the tree %d times %d entries after the snapshot", n, 2*i)
				}
				synctest.Wait()
				wantSame(t, kv, second...)
			}
		}
		third := start(3, "third")
		if n := reads.take(); n != 1 {
			t.Errorf("hosts read the tree %d times, further from the snapshot than the log reaches back", n)
		}
		time.Sleep(time.Second)
		wantSame(t, kv, third...)
	})
}

// Hosts don't use a snapshot that isn't the tree, or is damaged, and don't wait for one that never
// comes.
func TestSnapshotThatCannotBeUsed(t *testing.T) {
	const at = "ironvip/v2/snapshot/"
	for name, spoil := range map[string]func(t *testing.T, kv *fleettest.Memory, one *fleettest.Host){
		"a value written without the log": func(_ *testing.T, kv *fleettest.Memory, _ *fleettest.Host) { kv.Put(treePrefix+"a/7", "by hand") },
		"one removed without the log":     func(_ *testing.T, kv *fleettest.Memory, _ *fleettest.Host) { kv.Delete(treePrefix + "a/7") },
		"a part is missing":               func(_ *testing.T, kv *fleettest.Memory, _ *fleettest.Host) { kv.Delete(at + "parts/0") },
		"a part is another one's":         func(_ *testing.T, kv *fleettest.Memory, _ *fleettest.Host) { kv.Put(at+"parts/0", "junk") },
		"its description is missing":      func(_ *testing.T, kv *fleettest.Memory, _ *fleettest.Host) { kv.Delete(at + "head") },
		"its description is junk":         func(_ *testing.T, kv *fleettest.Memory, _ *fleettest.Host) { kv.Put(at+"head", "junk") },
		"it has no parts": func(t *testing.T, kv *fleettest.Memory, _ *fleettest.Host) {
			head, _ := kv.Get(at + "head")
			kv.Put(at+"head", strings.Replace(head, `"parts":1`, `"parts":0`, 1))
		},
		"another format": func(t *testing.T, kv *fleettest.Memory, _ *fleettest.Host) {
			head, _ := kv.Get(at + "head")
			kv.Put(at+"head", strings.Replace(head, `"v":1`, `"v":2`, 1))
		},
		"the log is junk":    func(_ *testing.T, kv *fleettest.Memory, _ *fleettest.Host) { kv.Put("ironvip/v2/log/head", "junk") },
		"the log is removed": func(_ *testing.T, kv *fleettest.Memory, _ *fleettest.Host) { kv.Delete("ironvip/v2/log/") },
		"its writer is paused while it holds the lock": func(t *testing.T, kv *fleettest.Memory, _ *fleettest.Host) {
			kv.Delete(at)
			paused := kv.Client("paused")
			paused.Before(func(call fleettest.Call) error {
				if call.Method == "List" && call.Key == treePrefix {
					time.Sleep(time.Hour)
				}
				return nil
			})
			kv.Run(t, fleet.Options{Node: "paused", Folders: folders}, nil)
			time.Sleep(time.Second)
		},
		"its writer is gone and held the lock": func(t *testing.T, kv *fleettest.Memory, _ *fleettest.Host) {
			kv.Delete(at)
			gone := kv.Client("gone")
			gone.Before(func(call fleettest.Call) error {
				if call.Method == "List" && call.Key == treePrefix {
					gone.SetDown(true)
				}
				return nil
			})
			kv.Run(t, fleet.Options{Node: "gone", Folders: folders}, nil)
			time.Sleep(time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				kv := fleettest.NewMemory()
				largeTree(kv, 20)
				one := kv.Start(t, "one", folders, nil)
				mustCommit(t, one, set("b", "x", "1", 0))
				time.Sleep(time.Second)
				spoil(t, kv, one)
				began := time.Now()
				two, three := kv.Run(t, fleet.Options{Node: "two", Folders: folders}, nil), kv.Run(t, fleet.Options{Node: "three", Folders: folders}, nil)
				<-two.Folder("a").Ready()
				<-three.Folder("a").Ready()
				if took := time.Since(began); took > 25*time.Second {
					t.Errorf("ready after %v", took)
				}
				time.Sleep(time.Second)
				wantSame(t, kv, two, three)
				e, _, _ := two.Folder("b").Get("x")
				mustCommit(t, two, set("b", "x", "2", e.Index))
				time.Sleep(time.Second)
				wantSame(t, kv, two, three)
			})
		})
	}
}

// A snapshot that is older than a restored backup of Consul is not joined to the log that the hosts
// have written since.
func TestSnapshotOfAnotherPast(t *testing.T) {
	for _, rebuilt := range []bool{false, true} {
		t.Run(fmt.Sprintf("rebuilt %v", rebuilt), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				kv := fleettest.NewMemory()
				largeTree(kv, 20)
				one := kv.Start(t, "one", folders, nil)
				mustCommit(t, one, set("b", "x", "1", 0))
				time.Sleep(time.Second)
				backup := kv.Snapshot()
				mustCommit(t, one, set("b", "lost", "1", 0))
				time.Sleep(time.Second)
				kv.Restore(backup, rebuilt)
				time.Sleep(time.Minute)
				mustCommit(t, one, set("b", "y", "1", 0))
				two := kv.Start(t, "two", folders, nil)
				time.Sleep(time.Second)
				wantSame(t, kv, one, two)
			})
		})
	}
}

// A host that starts from a snapshot compares its tables with the digests in the log after it.
func TestStartComparesDigests(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		largeTree(kv, 20)
		one := kv.Start(t, "one", folders, nil)
		time.Sleep(6 * time.Minute)
		kv.Put(treePrefix+"a/7", "by hand")
		if err := one.Look(t.Context(), "a", "7"); err != nil { // so the leader's next search finds no change
			t.Fatal(err)
		}
		mustCommit(t, one, set("b", "x", "1", 0))
		time.Sleep(6 * time.Minute)
		wantSame(t, kv, one)
		two := kv.Start(t, "two", folders, nil)
		time.Sleep(time.Minute)
		wantSame(t, kv, two)
	})
}

// A starting host reads the mark of the fleet itself, not that of the snapshot.
func TestStartReadsTheMark(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		largeTree(kv, 20)
		one := kv.Start(t, "one", folders, nil)
		time.Sleep(time.Minute)
		kv.Put(treePrefix+".fleet", `{"v":1,"fleet":"another"}`)
		mustCommit(t, one, set("b", "x", "1", 0))
		two := kv.Start(t, "two", folders, nil)
		time.Sleep(time.Minute)
		if err := two.Reread(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantSame(t, kv, two)
	})
}

// A snapshot's lock whose return failed is given back later.
func TestSnapshotLockIsGivenBack(t *testing.T) {
	const lock = "ironvip/v2/snapshot/lock"
	for _, c := range []string{"lock", "unlock"} {
		t.Run(c, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				kv := fleettest.NewMemory()
				largeTree(kv, 20)
				kv.Start(t, "one", folders, nil)
				time.Sleep(time.Minute)
				head, _ := kv.Get("ironvip/v2/snapshot/head")
				kv.Put("ironvip/v2/snapshot/head", "junk")
				two := kv.Client("two")
				done := false
				two.Before(func(call fleettest.Call) error {
					if done || call.Method != "Txn" || call.Ops[0].Key != lock {
						return nil
					}
					if call.Ops[0].Verb == consulkv.Lock { // another host has just written it
						kv.Put("ironvip/v2/snapshot/head", head)
					}
					if string(call.Ops[0].Verb) == c {
						done = true
						two.LoseAnswers(1)
						if c == "unlock" {
							return fleettest.ErrDown
						}
					}
					return nil
				})
				kv.Start(t, "two", folders, nil)
				time.Sleep(time.Minute)
				if p := kv.Pairs(lock); len(p) != 1 || p[0].Session != "" || !done {
					t.Errorf("the lock is held: %v, %v", p, done)
				}
			})
		})
	}
}
