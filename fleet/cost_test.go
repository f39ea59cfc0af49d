package fleet_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
)

// One change costs the same calls and bytes on every host, independent of the size of the tree.
func TestChangeCostsTheSameInALargeTree(t *testing.T) {
	const changes = 30
	cost := func(size int) (writer, reader fleettest.Counts) {
		bubble.Test(t, func(t *testing.T) {
			kv := fleettest.NewMemory()
			for i := range size {
				kv.Put(fmt.Sprintf("%sa/%d", treePrefix, i), strings.Repeat("v", 300))
			}
			one, two := kv.Start(t, "one", folders, nil), kv.Start(t, "two", folders, nil)
			time.Sleep(3 * time.Second)
			mustCommit(t, one, set("b", "key", "before", 0))
			synctest.Wait()
			before := [2]fleettest.Counts{one.Counts(), two.Counts()}
			for i := range changes {
				e, _, _ := one.Folder("b").Get("key")
				mustCommit(t, one, set("b", "key", fmt.Sprint(i), e.Index))
				for get(two, "b", "key") != fmt.Sprint(i) {
					time.Sleep(time.Millisecond)
				}
			}
			synctest.Wait()
			writer, reader = less(one.Counts(), before[0]), less(two.Counts(), before[1])
		})
		return writer, reader
	}
	smallW, smallR := cost(10)
	largeW, largeR := cost(2000)
	t.Logf("%d changes: writer %+v, reader %+v", changes, largeW, largeR)
	for _, c := range []struct {
		who          string
		small, large fleettest.Counts
	}{{"writer", smallW, largeW}, {"reader", smallR, largeR}} {
		for _, n := range []struct {
			what         string
			small, large int
		}{
			{"reads", c.small.Reads, c.large.Reads},
			{"held reads", c.small.Held, c.large.Held},
			{"transactions", c.small.Txns, c.large.Txns},
			{"bytes", c.small.Bytes, c.large.Bytes},
		} {
			if n.large > n.small*5/4+2 { // indexes have more digits in a large tree
				t.Errorf("%s: %d %s in a tree of 10 values, %d in one of 2,000", c.who, n.small, n.what, n.large)
			}
		}
	}
	if largeW.Txns > changes+1 || largeW.Reads > 1 || largeR.Reads > 1 || largeR.Txns > 1 || largeR.Held > changes+2 {
		t.Errorf("more calls than changes: writer %+v, reader %+v", largeW, largeR)
	}
	if each := largeR.Bytes / changes; each > 4*160 { // the log by the size of such an entry
		t.Errorf("a host reads %d bytes for a change", each)
	}
}

func less(a, b fleettest.Counts) fleettest.Counts {
	return fleettest.Counts{Reads: a.Reads - b.Reads, Held: a.Held - b.Held, Txns: a.Txns - b.Txns, Sessions: a.Sessions - b.Sessions, Bytes: a.Bytes - b.Bytes}
}

// The size of the log is bounded, whatever the number and size of writes. The head, which hosts
// watch, has a smaller bound.
func TestLogIsBounded(t *testing.T) {
	withTwo(t, func(t *testing.T, kv *fleettest.Memory, one, two *fleettest.Host) {
		size := func(prefix string) (n, bytes int) {
			pairs := kv.Pairs("ironvip/v2/log/" + prefix)
			for _, p := range pairs {
				bytes += len(p.Value)
			}
			return len(pairs), bytes
		}
		bounded := func(when string) {
			t.Helper()
			if n, bytes := size("head"); n != 1 || bytes > 4<<10 {
				t.Fatalf("%s: %d heads with %d bytes", when, n, bytes)
			}
			if n, bytes := size("ring/"); n > 64 || bytes > 64*48<<10 {
				t.Fatalf("%s: %d entries with %d bytes", when, n, bytes)
			}
		}
		for i := range 100 {
			e, _, _ := one.Folder("a").Get("key")
			mustCommit(t, one, set("a", "key", fmt.Sprint(i), e.Index))
		}
		bounded("small ones")
		for i := range 100 {
			e, _, _ := one.Folder("a").Get("key")
			mustCommit(t, one, set("a", "key", strings.Repeat(fmt.Sprint(i%10), 15<<10), e.Index))
			bounded("large ones")
		}
		txns := one.Counts().Txns
		time.Sleep(10 * time.Minute)
		if n := one.Counts().Txns - txns; n > 9 { // the host refreshes its row every 90 s
			t.Errorf("%d transactions in peace", n)
		}
		// Values that exceed its limit are fetched.
		time.Sleep(time.Second)
		e, _, _ := one.Folder("a").Get("key")
		var fetched atomic.Int32 // a host reads other keys, too: the nodes, and occasionally everything
		kv.Client("two").Before(func(call fleettest.Call) error {
			if call.Method == "Get" && call.Key == treePrefix+"a/key" {
				fetched.Add(1)
			}
			return nil
		})
		mustCommit(t, one, set("a", "key", strings.Repeat("L", 200<<10), e.Index))
		time.Sleep(time.Second)
		kv.Client("two").Before(nil)
		if got := get(two, "a", "key"); len(got) != 200<<10 {
			t.Errorf("the other host has %d bytes", len(got))
		}
		expect.Equal(t, fetched.Load(), 1, "reads for one large value")
		bounded("a value that is fetched")
		e, _, _ = one.Folder("a").Get("key")
		mustCommit(t, one, set("a", "key", "small", e.Index))
		one.End()
		time.Sleep(3 * time.Hour)
		if got := get(two, "a", "key"); got != "small" || two.Stale() != "" {
			t.Errorf("%.10q, stale %q", got, two.Stale())
		}
	})
}
