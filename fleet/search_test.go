package fleet_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
)

// hanging is one call of a host that hangs until it is released.
type hanging struct {
	began    chan struct{}
	released chan struct{}
	release  func()
	is       func(fleettest.Call) bool
}

func newHanging(t *testing.T, is func(fleettest.Call) bool) *hanging {
	h := &hanging{began: make(chan struct{}), released: make(chan struct{}), is: is}
	h.release = sync.OnceFunc(func() { close(h.released) })
	t.Cleanup(h.release)
	return h
}

// hang blocks in the first of the calls.
func (h *hanging) hang(call fleettest.Call) {
	if !h.is(call) {
		return
	}
	select {
	case <-h.began:
	default:
		close(h.began)
		<-h.released
	}
}

func readsTree(call fleettest.Call) bool { return call.Method == "List" && call.Key == treePrefix }

// led waits until one of the hosts is the leader, and returns it first.
func led(hosts []*fleettest.Host) (leader *fleettest.Host, others []*fleettest.Host) {
	time.Sleep(time.Minute)
	i := slices.IndexFunc(hosts, func(h *fleettest.Host) bool { return h.Mine() })
	return hosts[i], slices.Delete(slices.Clone(hosts), i, i+1)
}

func remove(h *fleettest.Host, folder, key string) fleet.Write {
	e, _, _ := h.Folder(folder).Get(key)
	return fleet.Write{Folder: folder, Key: key, Index: e.Index}
}

// While the leader's search waits for Consul, the leader still writes. The search then finds what was
// written without the log, and undoes nothing that has happened meanwhile.
func TestWritesDuringASearch(t *testing.T) {
	readsIndex := func(call fleettest.Call) bool { return call.Method == "Level" && call.Key == treePrefix }
	for name, c := range map[string]struct {
		is  func(fleettest.Call) bool
		old bool // the answer is old, otherwise only late
	}{
		"tree, read before": {readsTree, true},
		"tree, read after":  {readsTree, false},
		"index of the tree": {readsIndex, true},
	} {
		t.Run(name, func(t *testing.T) {
			withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
				leader, others := led(hosts)
				other := others[0]
				mustCommit(t, other, set("a", "changed", "old", 0), set("a", "removed", "old", 0), set("a", "kept", "old", 0), set("a", "edited", "old", 0))
				time.Sleep(time.Second)
				call := newHanging(t, c.is)
				if c.old {
					leader.After(call.hang)
				} else {
					leader.Before(func(now fleettest.Call) error { call.hang(now); return nil })
				}
				kv.Put(treePrefix+"a/edited", "by hand")
				kv.Put(treePrefix+"a/new", "by hand")
				kv.Delete(treePrefix + "a/kept")
				<-call.began
				for n := range 40 {
					e, _, _ := other.Folder("a").Get("changed")
					mustCommit(t, other, set("a", "changed", fmt.Sprint(n), e.Index))
					time.Sleep(100 * time.Millisecond)
				}
				mustCommit(t, other, remove(other, "a", "removed"), set("b", "created", "1", 0))
				mustCommit(t, leader, set("b", "own", "1", 0))
				time.Sleep(30 * time.Second)
				if leader.Stale() != "" || get(other, "b", "own") != "1" {
					t.Fatalf("stale %q, or the leader's write is not there", leader.Stale())
				}
				call.release()
				time.Sleep(time.Second)
				wantSame(t, kv, append(others, leader)...)
			})
		})
	}
}

// A search that ends after its host has lost the leadership does no harm: what others have found
// since then stays.
func TestLeadershipLostDuringASearch(t *testing.T) {
	withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
		leader, others := led(hosts)
		mustCommit(t, leader, set("a", "edited", "old", 0), set("a", "removed", "old", 0))
		time.Sleep(time.Second)
		kv.Put(treePrefix+"a/edited", "once")
		kv.Put(treePrefix+"a/found", "by hand")
		call := newHanging(t, readsTree)
		leader.After(call.hang)
		<-call.began
		leader.Before(func(call fleettest.Call) error {
			if call.Method == "Txn" && call.Ops[0].Key == "ironvip/v2/leader" {
				return fleettest.ErrDown
			}
			return nil
		})
		kv.ExpireSessions()
		for len(elected(others...)) != 1 || leader.Mine() {
			time.Sleep(time.Second)
		}
		kv.Put(treePrefix+"a/edited", "twice")
		kv.Delete(treePrefix + "a/removed")
		for _, h := range others {
			must.Succeed(t, h.Reread(t.Context()))
		}
		time.Sleep(time.Second)
		call.release()
		synctest.Wait()
		if get(leader, "a", "edited") != "twice" || get(leader, "a", "removed") != "" || get(leader, "a", "found") != "by hand" || len(leader.Problems()) != 0 {
			t.Errorf("after an old search: %s, problems %v", get(leader, "a", "edited")+", "+get(leader, "a", "removed"), leader.Problems())
		}
		time.Sleep(time.Second)
		wantSame(t, kv, append(others, leader)...)
		time.Sleep(20 * time.Minute)
		wantSame(t, kv, append(others, leader)...)
	})
}

// The result of a search is not used after the tables were replaced: it is about another tree.
func TestSnapshotRestoredDuringASearch(t *testing.T) {
	withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
		leader, others := led(hosts)
		mustCommit(t, leader, set("a", "x", "before", 0))
		backup := kv.Snapshot()
		mustCommit(t, leader, set("a", "later", "1", 0))
		time.Sleep(time.Second)
		kv.Put(treePrefix+"a/edited", "by hand")
		call := newHanging(t, readsTree)
		leader.After(call.hang)
		reread := make(chan error, 1)
		go func() { reread <- leader.Reread(t.Context()) }()
		<-call.began
		kv.Restore(backup, true)
		time.Sleep(20 * time.Second)
		wantSame(t, kv, others...)
		call.release()
		expect.Succeed(t, <-reread)
		wantSame(t, kv, leader)
		time.Sleep(time.Second)
		wantSame(t, kv, append(others, leader)...)
	})
}
