package fleet_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
)

// A host that has missed a change notices that its tables are not those of the leader, even if the
// leader has never seen what it missed.
func TestDigestsFindADifference(t *testing.T) {
	for name, edit := range map[string]func(kv *fleettest.Memory){
		"a value written": func(kv *fleettest.Memory) { kv.Put(treePrefix+"a/7", "by hand") },
		"a value added":   func(kv *fleettest.Memory) { kv.Put(treePrefix+"b/new", "by hand") },
		"a value removed": func(kv *fleettest.Memory) { kv.Delete(treePrefix + "a/7") },
	} {
		t.Run(name, func(t *testing.T) {
			withOne(t, 20, func(t *testing.T, kv *fleettest.Memory, one *fleettest.Host) {
				time.Sleep(5 * time.Second)
				two := kv.Start(t, "two", folders, nil)
				two.Before(func(call fleettest.Call) error { // never the leader
					if call.Method == "Txn" && call.Ops[0].Key == "ironvip/v2/leader" {
						return fleettest.ErrDown
					}
					return nil
				})
				time.Sleep(5 * time.Second)
				edit(kv)
				three := kv.Start(t, "three", folders, nil)
				for folder, key := range map[string]string{"a": "7", "b": "new"} { // reads it
					must.Succeed(t, three.Look(t.Context(), folder, key))
				}
				one.End()
				time.Sleep(5 * time.Second)
				must.True(t, three.Mine(), "the host that knows the edit is not the leader")
				wantSame(t, kv, three)
				time.Sleep(6 * time.Minute)
				wantSame(t, kv, two, three)
			})
		})
	}
}

// A running host that replaces its tables by a snapshot finds what the leader knew before it became
// the leader: only the digests tell, and they are in the log after the snapshot.
func TestSnapshotBeforeDigests(t *testing.T) {
	withOne(t, 0, func(t *testing.T, kv *fleettest.Memory, one *fleettest.Host) {
		time.Sleep(5 * time.Second)
		two, three := kv.Start(t, "two", folders, nil), kv.Start(t, "three", folders, nil)
		mustCommit(t, one, set("a", "edited", "before", 0))
		time.Sleep(time.Second)
		two.SetDown(true)
		for i := range 100 {
			mustCommit(t, one, set("b", fmt.Sprint(i), "1", 0))
		}
		four := kv.Start(t, "four", folders, nil)     // writes a snapshot
		four.Before(func(call fleettest.Call) error { // never the leader
			if call.Method == "Txn" && call.Ops[0].Key == "ironvip/v2/leader" {
				return fleettest.ErrDown
			}
			return nil
		})
		time.Sleep(5 * time.Second)
		kv.Put(treePrefix+"a/edited", "by hand")
		known, _, _ := three.Folder("a").Get("edited")
		commit(t, three, set("a", "edited", "refused", known.Index)) // Consul refuses it, and the host reads the value
		one.End()
		time.Sleep(5 * time.Second)
		if !three.Mine() || get(three, "a", "edited") != "by hand" {
			t.Fatal("the host that knows the edit is not the leader")
		}
		time.Sleep(7 * time.Minute)
		wantSame(t, kv, three, four)
		var looked atomic.Int32
		two.Before(func(call fleettest.Call) error {
			if call.Key == "ironvip/v2/snapshot/head" {
				looked.Add(1)
			}
			return nil
		})
		two.SetDown(false)
		time.Sleep(20 * time.Second)
		expect.True(t, looked.Load() != 0, "the host has not looked for a snapshot")
		wantSame(t, kv, two)
	})
}

// While nothing changes, the leader doesn't read the tree and nothing is appended to the log.
func TestSearchOfAnUnchangedTree(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		largeTree(kv, 20)
		var reads treeReads
		for _, name := range []string{"one", "two", "three"} {
			kv.Client(name).Before(reads.count)
		}
		hosts := startThree(t, kv)
		mustCommit(t, hosts[0], set("b", "x", "1", 0))
		time.Sleep(10 * time.Minute)
		before, _ := kv.Get("ironvip/v2/log/head")
		reads.take()
		time.Sleep(2 * time.Hour)
		after, _ := kv.Get("ironvip/v2/log/head")
		expect.Equal(t, after, before, "the log went on: %s, then", before)
		expect.Equal(t, reads.take(), 0, "reads of a tree that doesn't change")
		kv.Put(treePrefix+"b/x", "by hand")
		time.Sleep(7 * time.Minute)
		wantSame(t, kv, hosts...)
		expect.Equal(t, reads.take(), 1, "reads of the tree after one change by hand")
	})
}
