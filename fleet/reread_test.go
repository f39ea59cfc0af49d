package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
)

// Manual changes are visible when Reread returns.
func TestReread(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		var values *fleet.Collection[int]
		one := kv.Start(t, "one", folders, func(tree *fleet.Tree) { values = fleet.NewCollection[int](tree, "a", 1, nil) })
		w := must.Get(values.Put("x", 0, 7))(t)
		mustCommit(t, one, w)
		kv.Put(treePrefix+"a/junk's", "junk")
		kv.Delete(treePrefix + "a/x")
		reread := func() {
			t.Helper()
			before := time.Now()
			if err := one.Reread(t.Context()); err != nil || time.Since(before) > time.Second {
				t.Fatalf("%v after %v", err, time.Since(before))
			}
		}
		time.Sleep(time.Second) // a blocking query is in progress
		reread()
		problems := one.Problems()
		if _, ok := values.Get("x"); ok || len(problems) != 1 {
			t.Fatalf("x is there: %v; %v", ok, problems)
		}
		for _, p := range problems {
			if !strings.Contains(p.Hint, "consul kv delete ") || !strings.Contains(p.Hint, "ironvip source resync rest") {
				t.Errorf("%+v", p)
			}
		}
		if want := `consul kv delete '` + treePrefix + `a/junk'\''s'`; !strings.Contains(problems[0].Hint, want) {
			t.Errorf("hint %q lacks %q", problems[0].Hint, want)
		}
		kv.Delete(treePrefix + "a/junk's")
		reread()
		reread() // immediately after another
		expect.Empty(t, one.Problems())
		one.SetDown(true)
		expect.Is(t, one.Reread(t.Context()), fleet.ErrUnavailable, "without Consul")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		one.SetDown(false)
		one.SetSlow(5 * time.Second)
		expect.Is(t, one.Reread(ctx), fleet.ErrUnavailable, "with a slow Consul")
		one.SetSlow(0)
	})
}

// An incomplete read has no effect: neither its content nor what is missing in it.
func TestABrokenReadingChangesNothing(t *testing.T) {
	withOne(t, 0, func(t *testing.T, kv *fleettest.Memory, one *fleettest.Host) {
		rows := one.Folder("a")
		for i := range 20 {
			mustCommit(t, one, fleet.Write{Folder: "a", Key: fmt.Sprintf("x%02d", i), Value: []byte("old")})
		}
		before := rows.Revision()
		for i := range 10 { // bypasses the log
			kv.Put(fmt.Sprintf("%sa/w%02d", treePrefix, i), "new")
			kv.Put(fmt.Sprintf("%sa/x%02d", treePrefix, i), "changed")
			kv.Delete(fmt.Sprintf("%sa/x%02d", treePrefix, 19-i))
		}
		one.SetLate(time.Second)
		go func() {
			time.Sleep(1500 * time.Millisecond) // the log has arrived, and half of the tree
			one.SetDown(true)
		}()
		must.Is(t, one.Reread(t.Context()), fleet.ErrUnavailable)
		if n, now := rows.Len(), rows.Revision(); n != 20 || now != before {
			t.Errorf("%d values, at revision %d, not %d", n, now, before)
		}
		one.SetLate(0)
		one.SetDown(false)
		must.Succeed(t, one.Reread(t.Context()))
		if n := rows.Len(); n != 20 || rows.Row("x00") == nil || string(rows.Row("x00").Value.Value) != "changed" || rows.Row("w00") == nil || rows.Row("x19") != nil {
			t.Errorf("%d values once it has been read", n)
		}
	})
}

// Many problems don't hide one that concerns the whole tree, and are counted.
func TestFirstProblems(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		client := kv.Client("a")
		one := kv.Run(t, fleet.Options{Node: "lb1", Folders: folders, KV: client}, func(tree *fleet.Tree) { fleet.NewCollection[int](tree, "a", 1, nil) })
		time.Sleep(time.Second)
		client.SetDown(true)
		time.Sleep(20 * time.Second)
		host(t, kv, fleet.Options{Node: "lb1"}, "b") // has the name now
		client.SetDown(false)
		for i := range 150 {
			kv.Put(fmt.Sprintf("%sa/%03d", treePrefix, i), "x")
		}
		time.Sleep(2 * time.Minute)
		must.Succeed(t, one.Reread(t.Context()))
		first, all := one.FirstProblems(3)
		if all != 151 || len(first) != 3 || !strings.Contains(first[0].Message, "lb1") || !strings.HasSuffix(first[2].Place, "/a/001") {
			t.Errorf("%d: %v", all, first)
		}
		if listed := one.Problems(); len(listed) != 101 || !strings.HasPrefix(listed[100].Message, "51 more") {
			t.Errorf("%d, the last %v", len(listed), listed[len(listed)-1])
		}
	})
}

// After many keys were written without the log, hosts don't read each of them, and the tree only
// once: they share a snapshot.
func TestManyManualEdits(t *testing.T) {
	withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
		time.Sleep(time.Minute)
		for i := range 3000 { // their names are too large for an entry of the log, and for a transaction
			kv.Put(fmt.Sprintf("%sa/%0100d", treePrefix, i), "v")
		}
		var tooLarge atomic.Bool
		var reads treeReads
		for _, h := range hosts {
			h.Before(func(call fleettest.Call) error {
				for _, op := range call.Ops {
					if len(op.Value) > 256<<10 {
						tooLarge.Store(true)
					}
				}
				return reads.count(call)
			})
		}
		before := hosts[1].Counts()
		must.Succeed(t, hosts[0].Reread(t.Context()))
		mustCommit(t, hosts[0], set("b", "x", "1", 0))
		time.Sleep(time.Minute)
		wantSame(t, kv, hosts...)
		expect.False(t, tooLarge.Load(), "a transaction was too large for Consul")
		if n, cost := reads.take(), less(hosts[1].Counts(), before); n != 2 || cost.Reads > 100 {
			t.Errorf("%d reads of the tree, and a host with %d other reads", n, cost.Reads)
		}
		before = hosts[1].Counts()
		for i := range 200 {
			kv.Put(fmt.Sprintf("%sb/%d", treePrefix, i), "by hand")
		}
		must.Succeed(t, hosts[0].Reread(t.Context()))
		time.Sleep(time.Minute)
		wantSame(t, kv, hosts...)
		if n, cost := reads.take(), less(hosts[1].Counts(), before); n != 1 || cost.Reads < 200 {
			t.Errorf("after fewer edits, %d reads of the tree, and a host with %d other reads", n, cost.Reads)
		}
	})
}

// A leader that can't read the whole tree still follows the log, and writes.
func TestLeaderThatCannotReadTheTree(t *testing.T) {
	withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
		leader, others := led(hosts)
		other := others[0]
		mustCommit(t, other, set("a", "x", "0", 0))
		var failed atomic.Int32
		leader.Before(func(call fleettest.Call) error {
			if call.Method == "List" && call.Key == treePrefix {
				failed.Add(1)
				return fleettest.ErrDown
			}
			return nil
		})
		for n := 1; failed.Load() < 3; n++ {
			time.Sleep(30 * time.Second)
			must.Succeed(t, write(t.Context(), other, "x", n))
		}
		time.Sleep(20 * time.Second)
		wantSame(t, kv, hosts...)
		expect.Succeed(t, write(t.Context(), leader, "y", 1))
	})
}
