package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var folders = []string{"a", "b"}

// withOne, withTwo and withThree run a test in fake time, with hosts on one store in memory. The first host starts in a
// tree with some values.
func withOne(t *testing.T, values int, test func(*testing.T, *fleettest.Memory, *fleettest.Host)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		store := fleettest.NewMemory()
		largeTree(store, values)
		test(t, store, store.Start(t, "one", folders, nil))
	})
}

func withTwo(t *testing.T, test func(t *testing.T, store *fleettest.Memory, one, two *fleettest.Host)) {
	t.Helper()
	withOne(t, 0, func(t *testing.T, store *fleettest.Memory, one *fleettest.Host) {
		test(t, store, one, store.Start(t, "two", folders, nil))
	})
}

func withThree(t *testing.T, test func(*testing.T, *fleettest.Memory, []*fleettest.Host)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		store := fleettest.NewMemory()
		test(t, store, startThree(t, store))
	})
}

func set(folder, key, value string, index uint64) fleet.Write {
	return fleet.Write{Folder: folder, Key: key, Value: []byte(value), Index: index}
}

func commit(t testing.TB, c fleet.Committer, writes ...fleet.Write) *fleet.Batch {
	t.Helper()
	b := &fleet.Batch{Writes: writes}
	must.Succeed(t, c.Commit(t.Context(), []*fleet.Batch{b}), "commit")
	return b
}

func mustCommit(t testing.TB, c fleet.Committer, writes ...fleet.Write) *fleet.Batch {
	t.Helper()
	b := commit(t, c, writes...)
	must.Succeed(t, b.Err, "commit")
	return b
}

func get(h *fleettest.Host, folder, key string) string {
	e, _, ok := h.Folder(folder).Get(key)
	if !ok {
		return ""
	}
	return string(e.Value)
}

func TestCommitIsSeenHereAndThere(t *testing.T) {
	store := fleettest.NewMemory()
	one, two := store.Start(t, "one", folders, nil), store.Start(t, "two", folders, nil)
	b := mustCommit(t, one, set("a", "x", "1", 0), set("b", "y", "2", 0))
	got := get(one, "a", "x") + get(one, "b", "y")
	expect.Equal(t, got, "12", "the writer has %q when Commit returns", got)
	wait.Until(t, "the other host has both", func() bool { return get(two, "a", "x") == "1" && get(two, "b", "y") == "2" })
	e, _, _ := two.Folder("a").Get("x")
	if e.Index != b.Indexes[0] {
		t.Errorf("the writer has index %d, the other %d", b.Indexes[0], e.Index)
	}
	// Writing an equal value again keeps its index.
	again := mustCommit(t, one, set("a", "x", "1", b.Indexes[0]), set("b", "y", "3", b.Indexes[1]))
	if again.Indexes[0] != b.Indexes[0] || again.Indexes[1] == b.Indexes[1] {
		t.Errorf("indexes %v became %v", b.Indexes, again.Indexes)
	}
	wait.Until(t, "the other has the change", func() bool { return get(two, "b", "y") == "3" })
	wantSame(t, store, one, two)
	mustCommit(t, one, set("a", "x", "1", b.Indexes[0]))
	mustCommit(t, two, fleet.Write{Folder: "a", Key: "x", Index: e.Index})
	expect.Equal(t, get(two, "a", "x"), "", "after its removal")
	wait.Until(t, "it is gone", func() bool { return get(one, "a", "x") == "" })
}

// A condition changes nothing. If it isn't met, nothing of its batch happens, and the conflict
// names it.
func TestConditions(t *testing.T) {
	store := fleettest.NewMemory()
	one := store.Start(t, "one", folders, nil)
	x := mustCommit(t, one, set("a", "x", "1", 0)).Indexes[0]
	is := func(key string, index uint64) fleet.Write {
		return fleet.Write{Folder: "a", Key: key, Index: index, Check: true}
	}
	b := mustCommit(t, one, set("b", "y", "1", 0), is("x", x), is("nothing", 0))
	if b.Indexes[0] == 0 || b.Indexes[1] != 0 || b.Indexes[2] != 0 {
		t.Errorf("indexes %v", b.Indexes)
	}
	for name, w := range map[string]fleet.Write{"another version": is("x", x+1), "exists": is("x", 0), "is gone": is("nothing", x)} {
		b := commit(t, one, set("b", "z", "1", 0), w)
		var conflict *fleet.ConflictError
		if !errors.As(b.Err, &conflict) || len(conflict.Writes) != 1 || conflict.Writes[0].Key != w.Key {
			t.Errorf("%s: %v", name, b.Err)
		}
	}
	expect.Equal(t, get(one, "a", "x")+get(one, "b", "y")+get(one, "b", "z"), "11", "the tree has")
	if b := commit(t, one, fleet.Write{Folder: "a", Key: "x", Index: x, Value: []byte("2"), Check: true}); !errors.Is(b.Err, fleet.ErrBadBatch) {
		t.Errorf("a condition with a value: %v", b.Err)
	}
}

func TestConflictNamesWritesAndShowsWhatIsThere(t *testing.T) {
	store := fleettest.NewMemory()
	one, two := store.Start(t, "one", folders, nil), store.Start(t, "two", folders, nil)
	b := mustCommit(t, one, set("a", "x", "1", 0))
	wait.Until(t, "seen", func() bool { return get(two, "a", "x") == "1" })
	two.Before(func(c fleettest.Call) error { // two receives no further changes by itself
		if c.Method == "List" {
			return fleettest.ErrDown
		}
		return nil
	})
	for name, w := range map[string]fleet.Write{
		"creation":    set("a", "x", "2", 0),
		"older index": set("a", "x", "2", b.Indexes[0]-1),
		"removal":     {Folder: "a", Key: "x", Index: b.Indexes[0] - 1},
		"gone":        {Folder: "a", Key: "nothing", Index: b.Indexes[0]},
	} {
		batches := []*fleet.Batch{{Writes: []fleet.Write{w, set("b", name, "", 0)}}, {Writes: []fleet.Write{set("b", name+" alone", "", 0)}}}
		must.Succeed(t, one.Commit(t.Context(), batches))
		var conflict *fleet.ConflictError
		if !errors.As(batches[0].Err, &conflict) || len(conflict.Writes) != 1 || conflict.Writes[0].Key != w.Key {
			t.Errorf("%s: %v", name, batches[0].Err)
		}
		expect.Succeed(t, batches[1].Err, "%s: the batch beside it", name)
		_, there := store.Get("ironvip/v2/tree/b/" + name)
		expect.False(t, there, "%s: half of the batch has happened", name)
	}
}

// A write that expects an older version than this host knows is refused without asking Consul.
func TestOutdatedWritesCostNothing(t *testing.T) {
	withOne(t, 0, func(t *testing.T, store *fleettest.Memory, one *fleettest.Host) {
		old := mustCommit(t, one, set("a", "k", "1", 0)).Indexes[0]
		now := mustCommit(t, one, set("a", "k", "2", old)).Indexes[0]
		time.Sleep(time.Second) // fake time: the host reads its own writes
		synctest.Wait()
		before := one.Counts()
		for what, w := range map[string]fleet.Write{
			"a set": set("a", "k", "3", old), "a creation": set("a", "k", "3", 0), "a removal": {Folder: "a", Key: "k", Index: old}, "a condition": {Folder: "a", Key: "k", Index: old, Check: true},
		} {
			var conflict *fleet.ConflictError
			if b := commit(t, one, w); !errors.As(b.Err, &conflict) || len(conflict.Writes) != 1 {
				t.Errorf("%s with an old version: %v", what, b.Err)
			}
		}
		if after := one.Counts(); after.Txns != before.Txns || after.Reads != before.Reads {
			t.Errorf("refusals have cost %+v, before %+v", after, before)
		}
		mustCommit(t, one, fleet.Write{Folder: "a", Key: "k", Index: now})
		if b := commit(t, one, set("a", "k", "3", now)); b.Err == nil {
			t.Error("a set with the version of a removed value is accepted")
		}
		mustCommit(t, one, set("a", "k", "4", 0))
		expect.Equal(t, get(one, "a", "k"), "4", "the value")
	})
}

func TestUnavailable(t *testing.T) {
	withOne(t, 0, func(t *testing.T, store *fleettest.Memory, one *fleettest.Host) {
		mustCommit(t, one, set("a", "x", "1", 0))
		store.SetDown(true)
		wait.Until(t, "stale", func() bool { return one.Stale() != "" })
		err := one.Commit(t.Context(), []*fleet.Batch{{Writes: []fleet.Write{set("a", "y", "1", 0)}}})
		expect.Is(t, err, fleet.ErrUnavailable, "commit")
		expect.Equal(t, get(one, "a", "x"), "1", "the last known tree is gone")
		if _, err := one.Nodes(t.Context()); !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("nodes: %v", err)
		}
		store.SetDown(false)
		wait.Until(t, "fresh", func() bool { return one.Stale() == "" })
		mustCommit(t, one, set("a", "y", "1", 0))
	})
}

func TestAnswerLost(t *testing.T) {
	withTwo(t, func(t *testing.T, store *fleettest.Memory, one, two *fleettest.Host) {
		one.LoseAnswers(2)
		b := mustCommit(t, one, set("a", "x", "1", 0))
		if get(one, "a", "x") != "1" || b.Indexes[0] == 0 {
			t.Error("the write is not known to its writer")
		}
		wait.Until(t, "seen", func() bool { return get(two, "a", "x") == "1" })
		// If more of them are lost than the retries, the outcome is unknown, and is reported so.
		one.LoseAnswers(100)
		err := one.Commit(t.Context(), []*fleet.Batch{{Writes: []fleet.Write{set("a", "y", "1", 0)}}})
		expect.Is(t, err, fleet.ErrUnavailable, "commit")
		one.LoseAnswers(0)
		for _, h := range []*fleettest.Host{one, two} {
			wait.Until(t, "shows", func() bool { return get(h, "a", "y") == "1" })
		}
		mustCommit(t, one, set("a", "z", "1", 0))
		wait.Until(t, "seen", func() bool { return get(two, "a", "z") == "1" })
	})
}

func TestManyBatchesArePacked(t *testing.T) {
	withTwo(t, func(t *testing.T, store *fleettest.Memory, one, two *fleettest.Host) {
		batches := make([]*fleet.Batch, 1000)
		for i := range batches {
			batches[i] = &fleet.Batch{Writes: []fleet.Write{set("a", fmt.Sprint(i), "v", 0)}}
		}
		var sent atomic.Int32 // the host's session has its own transactions
		one.Before(func(c fleettest.Call) error {
			if slices.ContainsFunc(c.Ops, func(op kv.Op) bool { return strings.HasPrefix(op.Key, treePrefix) }) {
				sent.Add(1)
			}
			return nil
		})
		must.Succeed(t, one.Commit(t.Context(), batches))
		for i, b := range batches {
			if b.Err != nil || b.Indexes[0] == 0 {
				t.Fatalf("batch %d: %v", i, b.Err)
			}
		}
		if n := sent.Load(); n > 12 { // 1,000 / 112, with a margin for one that is half full
			t.Errorf("%d transactions for 1,000 batches of one write", n)
		}
		wait.Until(t, "all there", func() bool { return two.Folder("a").Len() == 1000 })
	})
}

func TestCommitHonoursContext(t *testing.T) {
	store := fleettest.NewMemory()
	one := store.Start(t, "one", folders, nil)
	ctx, cancel := context.WithCancel(t.Context())
	one.Before(func(c fleettest.Call) error {
		if c.Method == "Txn" {
			cancel()
			return fleettest.ErrDown
		}
		return nil
	})
	err := one.Commit(ctx, []*fleet.Batch{{Writes: []fleet.Write{set("a", "x", "1", 0)}}})
	expect.Is(t, err, context.Canceled)
}

// Two callers write one key: the second one's conflict is reported when the conflicting value is in
// the tables.
func TestCallersOfOneKeyGoOneAfterTheOther(t *testing.T) {
	withOne(t, 0, func(t *testing.T, store *fleettest.Memory, one *fleettest.Host) {
		hold, sent := make(chan struct{}), make(chan struct{})
		first := sync.OnceFunc(func() { close(sent) })
		one.Before(func(c fleettest.Call) error {
			if c.Method == "Txn" {
				for _, op := range c.Ops {
					if op.Key == treePrefix+"b/first" {
						first()
					}
				}
				<-hold
				time.Sleep(20 * time.Millisecond) // time to look at the tables in between
			}
			return nil
		})
		results := make(chan string, 3)
		for i, w := range []fleet.Write{set("b", "first", "", 0), set("a", "x", "1", 0), set("a", "x", "2", 0)} {
			go func() {
				b := &fleet.Batch{Writes: []fleet.Write{w}}
				err := one.Commit(context.Background(), []*fleet.Batch{b})
				var conflict *fleet.ConflictError
				switch {
				case err != nil:
					results <- err.Error()
				case errors.As(b.Err, &conflict):
					results <- "met " + get(one, w.Folder, w.Key)
				default:
					results <- "wrote " + get(one, w.Folder, w.Key)
				}
			}()
			if i == 0 { // the others wait together behind the first
				<-sent
			}
		}
		close(hold)
		got := map[string]bool{<-results: true, <-results: true, <-results: true}
		if !got["wrote "] || !(got["wrote 1"] && got["met 1"] || got["wrote 2"] && got["met 2"]) {
			t.Errorf("%v", got)
		}
	})
}

func TestBadBatches(t *testing.T) {
	store := fleettest.NewMemory()
	one := store.Start(t, "one", folders, nil)
	var many, gone []fleet.Write
	for i := range fleet.MaxBatch + 1 {
		many = append(many, set("a", fmt.Sprint(i), "", 0))
		if i <= fleet.MaxBatch/2 {
			gone = append(gone, fleet.Write{Folder: "a", Key: fmt.Sprint(i), Index: 1})
		}
	}
	for name, writes := range map[string][]fleet.Write{
		"none":           nil,
		"folder":         {set("c", "x", "", 0)},
		"empty key":      {set("a", "", "", 0)},
		"slash":          {set("a", "x/", "", 0)},
		"control":        {set("a", "x\n", "", 0)},
		"long key":       {set("a", strings.Repeat("x", fleet.MaxKey+1), "", 0)},
		"twice":          {set("a", "x", "1", 0), set("a", "x", "2", 0)},
		"removes none":   {{Folder: "a", Key: "x"}},
		"too many":       many,
		"removes many":   gone,
		"too large":      {set("a", "x", strings.Repeat("x", fleet.MaxBatchBytes), 0)},
		"large together": {set("a", "x", strings.Repeat("x", fleet.MaxBatchBytes/2), 0), set("a", "y", strings.Repeat("x", fleet.MaxBatchBytes/2), 0)},
	} {
		good := &fleet.Batch{Writes: []fleet.Write{set("b", name, "", 0)}}
		bad := &fleet.Batch{Writes: writes}
		if err := one.Commit(t.Context(), []*fleet.Batch{bad, good}); err != nil || good.Err != nil || !errors.Is(bad.Err, fleet.ErrBadBatch) {
			t.Errorf("%s: %v; %v; %v", name, err, bad.Err, good.Err)
		}
	}
	// The largest permitted value, and the maximum of both limits.
	mustCommit(t, one, set("a", "large", strings.Repeat("\x01", fleet.MaxBatchBytes-6), 0))
	b := mustCommit(t, one, many[:fleet.MaxBatch]...)
	for i := range gone {
		gone[i].Index = b.Indexes[i]
	}
	mustCommit(t, one, gone[:fleet.MaxBatch/2]...)
}
