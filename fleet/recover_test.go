package fleet_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

func wantSame(t *testing.T, kv *fleettest.Memory, hosts ...*fleettest.Host) {
	t.Helper()
	for i, h := range hosts {
		if err := same(h.Tree, kv.Pairs(treePrefix), treePrefix); err != nil || h.Stale() != "" {
			t.Errorf("host %d: %v; stale %q", i, err, h.Stale())
		}
	}
}

// A snapshot is restored: the trees follow it back, whatever the hosts do at that moment, and
// continue.
func TestSnapshotRestored(t *testing.T) {
	for _, rebuilt := range []bool{false, true} {
		for _, disconnected := range []bool{false, true} {
			t.Run(fmt.Sprintf("rebuilt %v, disconnected %v", rebuilt, disconnected), func(t *testing.T) {
				withTwo(t, func(t *testing.T, kv *fleettest.Memory, one, two *fleettest.Host) {
					var last [2]uint64
					put := func(h *fleettest.Host, key string, i int) {
						e, _, _ := h.Folder("a").Get(key)
						b := mustCommit(t, h, set("a", key, fmt.Sprint(i), e.Index))
						last[i%2] = b.Indexes[0]
					}
					mustCommit(t, one, set("a", "old", "kept", 0))
					for i := range 5 {
						put(one, "x", i)
					}
					time.Sleep(time.Second)
					snapshot := kv.Snapshot()
					for i := range 7 {
						put(one, "x", 10+i)
						put(one, "later", i)
					}
					e, _, _ := one.Folder("a").Get("old")
					mustCommit(t, one, fleet.Write{Folder: "a", Key: "old", Index: e.Index})
					time.Sleep(time.Second)
					wantSame(t, kv, one, two)
					if disconnected { // two receives nothing until others have written again
						two.SetDown(true)
						synctest.Wait()
					}
					kv.Restore(snapshot, rebuilt)
					time.Sleep(time.Second)
					if get(one, "a", "old") != "kept" || get(one, "a", "later") != "" {
						t.Errorf("one has not followed: old %q, later %q", get(one, "a", "old"), get(one, "a", "later"))
					}
					for i := range 9 {
						put(one, "x", 20+i)
						put(one, "other", i)
					}
					two.SetDown(false)
					time.Sleep(20 * time.Second)
					wantSame(t, kv, one, two)
					put(two, "x", 30)
					synctest.Wait()
					wantSame(t, kv, one, two)
				})
			})
		}
	}
}

// An older full read that is in progress doesn't undo a commit, whether it adds to the known rows
// or replaces them.
func TestCommitDuringFullReading(t *testing.T) {
	for name, cause := range map[string]func(*fleettest.Memory){
		"adding":    func(kv *fleettest.Memory) { kv.Put("ironvip/v2/log/head", "?") },
		"replacing": func(kv *fleettest.Memory) { kv.Delete("ironvip/v2/log/head") },
	} {
		t.Run(name, func(t *testing.T) {
			withOne(t, 0, func(t *testing.T, kv *fleettest.Memory, one *fleettest.Host) {
				old := mustCommit(t, one, set("a", "old", "1", 0), set("a", "changed", "1", 0))
				time.Sleep(20 * time.Second)
				// Each answer takes 1 s: the check of the log, then the log and the tree.
				one.SetLate(time.Second)
				time.Sleep(20 * time.Second)
				cause(kv)
				for i := range 40 {
					time.Sleep(100 * time.Millisecond)
					if i == 24 {
						mustCommit(t, one, set("a", "new", "1", 0), set("a", "changed", "2", old.Indexes[1]), fleet.Write{Folder: "a", Key: "old", Index: old.Indexes[0]})
					}
					if i >= 24 && (get(one, "a", "new") != "1" || get(one, "a", "changed") != "2" || get(one, "a", "old") != "") {
						t.Fatalf("%d ms after the commit: new %q, changed %q, old %q", 100*(i-24), get(one, "a", "new"), get(one, "a", "changed"), get(one, "a", "old"))
					}
				}
				one.SetLate(0)
				time.Sleep(20 * time.Second)
				wantSame(t, kv, one)
			})
		})
	}
}

// A restored snapshot is also detected after hours without changes, when the log may have no
// entries, however much of the time of the blocking queries is over.
func TestSnapshotRestoredInPeace(t *testing.T) {
	for quiet := 40*time.Minute + 10*time.Second; quiet < 45*time.Minute; quiet += 30 * time.Second {
		withOne(t, 0, func(t *testing.T, kv *fleettest.Memory, one *fleettest.Host) {
			time.Sleep(time.Minute)
			snapshot := kv.Snapshot()
			mustCommit(t, one, set("a", "x", "1", 0))
			time.Sleep(quiet)
			kv.Restore(snapshot, false)
			time.Sleep(time.Second)
			wantSame(t, kv, one)
		})
	}
}

// A snapshot is restored while a host holds no query for the log. Consul doesn't answer the next one, so
// the host notices by its query for the leader's key.
func TestSnapshotRestoredBetweenQueries(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		one, two := kv.Start(t, "one", folders, nil), kv.Start(t, "two", folders, nil)
		old := mustCommit(t, one, set("a", "x", "1", 0))
		time.Sleep(time.Second)
		snapshot := kv.Snapshot()
		two.After(func(c fleettest.Call) {
			if c.Key == "ironvip/v2/log/head" && c.Query.After > 0 {
				time.Sleep(50 * time.Millisecond)
			}
		})
		mustCommit(t, one, set("a", "x", "2", old.Indexes[0]))
		synctest.Wait()
		kv.Restore(snapshot, false)
		time.Sleep(time.Second)
		wantSame(t, kv, one, two)
	})
}

// The same while hosts hold neither of the two queries: they have just been woken by a write. They notice
// once they renew their sessions, which are over.
func TestSnapshotRestoredBetweenAllQueries(t *testing.T) {
	withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
		mustCommit(t, hosts[0], set("a", "x", "before", 0))
		backup := kv.Snapshot()
		mustCommit(t, hosts[0], set("a", "later", "1", 0))
		time.Sleep(time.Second)
		kv.Put(treePrefix+"a/edited", "by hand")
		kv.Restore(backup, true)
		time.Sleep(20 * time.Second)
		wantSame(t, kv, hosts...)
	})
}

// Manual writes that bypass the log are found by the next full read, and at once by a writer
// that conflicts with them.
func TestWrittenWithoutTheLog(t *testing.T) {
	withOne(t, 0, func(t *testing.T, kv *fleettest.Memory, one *fleettest.Host) {
		mustCommit(t, one, set("a", "x", "1", 0), set("a", "y", "1", 0))
		kv.Put(treePrefix+"a/x", "operator")
		kv.Delete(treePrefix + "a/y")
		e, _, _ := one.Folder("a").Get("x")
		expect.True(t, commit(t, one, set("a", "x", "2", e.Index)).Err != nil, "the operator's value is overwritten")
		expect.Equal(t, get(one, "a", "x"), "operator", "after the conflict")
		time.Sleep(7 * time.Minute)
		wantSame(t, kv, one)
	})
}

// Keys below the prefix that are not ironvip's are left alone.
func TestForeignKeysAreLeftAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		foreign := []string{treePrefix + "other/x", treePrefix + "a/dir/", treePrefix + "a/\x01", treePrefix + "loose",
			"ironvip/v2/log/loose", "ironvip/v2/nodes/bad", "ironvip/v2/other/x", "ironvip/loose", "ironvip/v1/tree/a/b"}
		one := kv.Start(t, "one", folders, nil)
		for _, key := range foreign {
			kv.Put(key, "{junk")
		}
		time.Sleep(7 * time.Minute)
		mustCommit(t, one, set("a", "x", "1", 0))
		time.Sleep(7 * time.Minute)
		for _, key := range foreign {
			got, _ := kv.Get(key)
			expect.Equal(t, got, "{junk", "%q was touched", key)
			kv.Delete(key)
		}
		expect.Empty(t, one.Problems(), "problems")
		wantSame(t, kv, one)
	})
}

// advises reports whether a disconnected host gives this advice.
func advises(h *fleettest.Host, what string) bool {
	_, advice, _ := h.StaleSince()
	return strings.Contains(advice, what)
}

// An answer without the fleet's mark is not an empty tree. Another fleet's mark is not followed
// until an operator confirms it.
func TestTreeThatIsNotOurs(t *testing.T) {
	withOne(t, 0, func(t *testing.T, kv *fleettest.Memory, one *fleettest.Host) {
		mustCommit(t, one, set("a", "x", "1", 0))
		mark, _ := kv.Get(treePrefix + ".fleet")
		kv.Delete("ironvip/")
		time.Sleep(10 * time.Minute)
		if get(one, "a", "x") != "1" || !advises(one, "consul kv put") {
			t.Errorf("%q, stale %q", get(one, "a", "x"), one.Stale())
		}
		// A new host accepts the content as a new fleet.
		two := kv.Start(t, "two", folders, nil)
		mustCommit(t, two, set("a", "y", "2", 0))
		time.Sleep(10 * time.Minute)
		if get(one, "a", "x") != "1" || get(one, "a", "y") != "" || !strings.Contains(one.Stale(), "is the tree of fleet") || !advises(one, "consul kv put") {
			t.Errorf("stale %q", one.Stale())
		}
		two.End()
		kv.Put(treePrefix+".fleet", mark)
		time.Sleep(time.Minute)
		wantSame(t, kv, one)
		kv.Put(treePrefix+".fleet", `{"v":2}`)
		time.Sleep(10 * time.Minute)
		if !strings.Contains(one.Stale(), "version 2") || advises(one, "consul") {
			t.Errorf("stale %q", one.Stale())
		}
	})
}

// An agent that starts while Consul is away begins with the last known tree.
func TestStartWithoutConsul(t *testing.T) {
	db := open(t)
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		options := fleet.Options{Node: "one", Folders: folders, Cache: db}
		first := kv.Run(t, options, nil)
		<-first.Folder("a").Ready()
		for i := range 3 {
			mustCommit(t, first, set("a", fmt.Sprint(i), "v", 0))
		}
		e, _, _ := first.Folder("a").Get("1")
		mustCommit(t, first, fleet.Write{Folder: "a", Key: "1", Index: e.Index})
		first.End()
		kv.Put(treePrefix+"a/late", "v")
		kv.Delete(treePrefix + "a/0")

		kv.SetDown(true)
		second := kv.Run(t, options, nil)
		began := time.Now()
		<-second.Folder("a").Ready()
		expect.Equal(t, time.Since(began), fleet.GracePeriod, "ready after")
		if second.Folder("a").Len() != 2 || get(second, "a", "0") != "v" || second.Stale() == "" {
			t.Errorf("%d values, stale %q", second.Folder("a").Len(), second.Stale())
		}
		err := second.Commit(t.Context(), []*fleet.Batch{{Writes: []fleet.Write{set("a", "n", "v", 0)}}})
		expect.True(t, err != nil, "a write on an old view")
		kv.SetDown(false)
		time.Sleep(40 * time.Second)
		wantSame(t, kv, second)
		second.End()

		// The cache has the content of the tree, after removals too.
		kv.SetDown(true)
		third := kv.Run(t, options, nil)
		<-third.Folder("a").Ready()
		expect.Succeed(t, same(third.Tree, kv.Pairs(treePrefix), treePrefix))
		third.End()
		kv.SetDown(false)
		kv.Delete(treePrefix + "a/2")
		fourth := kv.Run(t, options, nil) // reads soon that it is removed
		<-fourth.Folder("a").Ready()
		time.Sleep(40 * time.Second)
		fourth.End()
		kv.SetDown(true)
		fifth := kv.Run(t, options, nil)
		<-fifth.Folder("a").Ready()
		expect.Succeed(t, same(fifth.Tree, kv.Pairs(treePrefix), treePrefix))
		fifth.End()
		// Without a cache there is no state to begin with.
		last := kv.Run(t, fleet.Options{Node: "last", KV: kv.Client("one"), Folders: folders}, nil)
		time.Sleep(time.Hour)
		select {
		case <-last.Folder("a").Ready():
			t.Error("ready with nothing")
		default:
		}
	})
}

// The backoff grows to ten seconds, so that an unavailable Consul isn't overloaded.
func TestBackOff(t *testing.T) {
	withOne(t, 0, func(t *testing.T, kv *fleettest.Memory, one *fleettest.Host) {
		time.Sleep(time.Minute)
		one.SetDown(true)
		time.Sleep(time.Minute)
		before := one.Counts()
		time.Sleep(10 * time.Minute)
		n := less(one.Counts(), before)
		if calls := n.Reads + n.Held + n.Txns + n.Sessions; calls > 10*60 || calls < 60 {
			t.Errorf("%+v in 10 minutes", n)
		}
		one.SetDown(false)
		time.Sleep(11 * time.Second)
		wantSame(t, kv, one)
	})
}

// A stalled Consul, where calls hang instead of failing, is detected long before the timeout of the
// blocking query, and Commit doesn't hang with it.
func TestStall(t *testing.T) {
	withOne(t, 0, func(t *testing.T, kv *fleettest.Memory, one *fleettest.Host) {
		time.Sleep(3 * time.Second)
		one.SetSlow(time.Hour)
		began := time.Now()
		err := one.Commit(t.Context(), []*fleet.Batch{{Writes: []fleet.Write{set("a", "x", "1", 0)}}})
		if took := time.Since(began); err == nil || took > 20*time.Second {
			t.Errorf("commit took %v: %v", took, err)
		}
		expect.True(t, one.Stale() != "", "not stale after a commit has hung")
		one.SetSlow(0)
		time.Sleep(time.Minute)
		wantSame(t, kv, one)
		one.SetSlow(time.Hour)
		began = time.Now()
		wait.Until(t, "stale", func() bool { return one.Stale() != "" })
		if took := time.Since(began); took > 22*time.Second { // the next renewal, and what it waits for
			t.Errorf("noticed after %v", took)
		}
		one.SetSlow(0)
		time.Sleep(time.Minute)
		wantSame(t, kv, one)
	})
}

// After a transaction without an answer in time, the tables are stale only until Consul has been
// asked again, even if it was asked just before.
func TestStaleAfterNoAnswer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		one := startThree(t, kv)[0]
		time.Sleep(time.Minute)
		renewed := make(chan struct{}, 1)
		one.Before(func(call fleettest.Call) error {
			if call.Method == "Renew" {
				renewed <- struct{}{}
			}
			return nil
		})
		<-renewed
		began := time.Now()
		<-renewed
		time.Sleep(time.Since(began) - 4800*time.Millisecond)
		one.Before(func(call fleettest.Call) error {
			switch {
			case call.Method == "Renew": // Consul is asked
				return fleettest.ErrDown
			case call.Method == "Txn" && call.Ops[0].Key == "ironvip/v2/log/head":
				time.Sleep(5*time.Second + time.Millisecond)
				return fleettest.ErrDown
			}
			return nil
		})
		must.Is(t, write(t.Context(), one, "x", 1), fleet.ErrNoAnswer)
		one.Before(nil)
		time.Sleep(2 * time.Second)
		expect.Equal(t, one.Stale(), "")
	})
}

// A request to ask Consul isn't lost while the follower waits before its next read.
func TestStaleWhileTheFollowerPauses(t *testing.T) {
	withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
		leader, others := led(hosts)
		one := others[0]
		leader.Before(func(call fleettest.Call) error {
			if call.Method == "Txn" && call.Ops[0].Key == "ironvip/v2/leader" { // doesn't correct the number of hosts
				return fleettest.ErrDown
			}
			return nil
		})
		one.Before(func(call fleettest.Call) error {
			if call.Method == "Txn" && call.Ops[0].Key == "ironvip/v2/log/head" {
				time.Sleep(5*time.Second + time.Millisecond)
				return fleettest.ErrDown
			}
			return nil
		})
		failed := make(chan error, 1)
		go func() { failed <- write(t.Context(), one, "x", 1) }()
		time.Sleep(4 * time.Second)
		kv.Put("ironvip/v2/leader", fmt.Sprintf(`{"node":%q,"hosts":4000}`, leader.Elected())) // two seconds between reads
		time.Sleep(10 * time.Millisecond)
		for n := 1; ; n++ {
			held := one.Counts().Held
			must.Succeed(t, write(t.Context(), leader, "y", n))
			time.Sleep(10 * time.Millisecond)
			if one.Counts().Held == held { // it has read this change, and waits
				break
			}
			if n > 30 {
				t.Fatalf("it doesn't pause, with %d hosts", one.Hosts())
			}
		}
		must.Is(t, <-failed, fleet.ErrNoAnswer)
		time.Sleep(5 * time.Second)
		expect.Equal(t, one.Stale(), "")
	})
}
