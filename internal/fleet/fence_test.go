package fleet_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/internal/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/fleet/fleettest"
	"github.com/ironvip/ironvip/test/bubble"
)

// onCommit calls f before each transaction of a host's Commit, with its number, from 1.
func onCommit(h *fleettest.Host, f func(n int)) {
	n := 0
	h.Before(func(c fleettest.Call) error {
		if len(c.Ops) > 0 && c.Ops[0].Verb == consulkv.Cas {
			n++
			f(n)
		}
		return nil
	})
}

// A write is refused on a retry after an attempt without an answer. That attempt is never applied
// later, even if what it conflicted with has been removed by then.
func TestRefusedIsNotDoneLater(t *testing.T) {
	for name, beside := range map[string][]*fleet.Batch{
		"alone":               nil,
		"with another beside": {{Writes: []fleet.Write{set("b", "y", "beside", 0)}}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				kv := fleettest.NewMemory()
				one, two := kv.Start(t, "one", folders, nil), kv.Start(t, "two", folders, nil)
				mustCommit(t, one, set("a", "before", "1", 0))
				arrive := one.Detain()
				onCommit(one, func(n int) {
					if n == 2 {
						kv.Put(treePrefix+"a/x", "another's")
					}
				})
				b := &fleet.Batch{Writes: []fleet.Write{set("a", "x", "refused", 0)}}
				if err := one.Commit(t.Context(), append(beside, b)); err != nil {
					t.Fatal(err)
				}
				if conflict := (*fleet.ConflictError)(nil); !errors.As(b.Err, &conflict) {
					t.Fatalf("the write that another's was in the way of: %v", b.Err)
				}
				kv.Delete(treePrefix + "a/x")
				if out := arrive(); len(out.Refused) == 0 {
					t.Error("what was refused has happened")
				}
				for _, other := range beside {
					if other.Err != nil || get(one, "b", "y") != "beside" {
						t.Errorf("the batch beside it: %v, and there is %q", other.Err, get(one, "b", "y"))
					}
				}
				one.Before(nil)
				mustCommit(t, one, set("a", "after", "1", 0))
				synctest.Wait()
				if got := get(two, "a", "after"); got != "1" {
					t.Errorf("the other host doesn't follow: %q", got)
				}
			})
		})
	}
}

// The attempt without an answer is applied just before the refusal of the next one is reported: it
// is then reported as done.
func TestDoneBeforeItsRefusalIsReported(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		one, two := kv.Start(t, "one", folders, nil), kv.Start(t, "two", folders, nil)
		mustCommit(t, one, set("a", "before", "1", 0))
		arrive := one.Detain()
		onCommit(one, func(n int) {
			switch n {
			case 2:
				kv.Put(treePrefix+"a/x", "another's")
			case 3:
				kv.Delete(treePrefix + "a/x")
				if out := arrive(); len(out.Refused) > 0 {
					t.Errorf("the detained attempt: %v", out.Refused)
				}
			}
		})
		b := mustCommit(t, one, set("a", "x", "1", 0))
		synctest.Wait()
		wantSame(t, kv, one, two)
		if e, _, _ := one.Folder("a").Get("x"); string(e.Value) != "1" || e.Index != b.Indexes[0] {
			t.Errorf("there is %q of index %d, and the write has %d", e.Value, e.Index, b.Indexes[0])
		}
	})
}

// If the attempt can't be fenced, no result is reported.
func TestRefusalIsNotReportedUnfenced(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		one := kv.Start(t, "one", folders, nil)
		mustCommit(t, one, set("a", "before", "1", 0))
		one.Detain()
		onCommit(one, func(n int) {
			switch n {
			case 2:
				kv.Put(treePrefix+"a/x", "another's")
			case 3:
				one.LoseAnswers(100)
			}
		})
		err := one.Commit(t.Context(), []*fleet.Batch{{Writes: []fleet.Write{set("a", "x", "1", 0)}}})
		if !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("commit: %v", err)
		}
		one.LoseAnswers(0)
		one.Before(nil)
		mustCommit(t, one, set("a", "after", "1", 0))
	})
}
