package fleet_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
)

// onCommit calls f before each transaction of a host's Commit, with its number, from 1.
func onCommit(h *fleettest.Host, f func(n int)) {
	var n atomic.Int32 // a host's calls run at the same time
	h.Before(func(c fleettest.Call) error {
		if len(c.Ops) > 0 && c.Ops[0].Verb == kv.Cas {
			f(int(n.Add(1)))
		}
		return nil
	})
}

// A write is refused on a retry after an attempt without an answer. The first attempt is never
// applied later, even if the conflicting value has been removed by then.
func TestRefusedIsNotDoneLater(t *testing.T) {
	for name, beside := range map[string][]*fleet.Batch{
		"alone":               nil,
		"with another beside": {{Writes: []fleet.Write{set("b", "y", "beside", 0)}}},
	} {
		t.Run(name, func(t *testing.T) {
			withTwo(t, func(t *testing.T, store *fleettest.Memory, one, two *fleettest.Host) {
				mustCommit(t, one, set("a", "before", "1", 0))
				arrive := one.Detain()
				onCommit(one, func(n int) {
					if n == 2 {
						store.Put(treePrefix+"a/x", "another's")
					}
				})
				b := &fleet.Batch{Writes: []fleet.Write{set("a", "x", "refused", 0)}}
				must.Succeed(t, one.Commit(t.Context(), append(beside, b)))
				if conflict := (*fleet.ConflictError)(nil); !errors.As(b.Err, &conflict) {
					t.Fatalf("the write that another's was in the way of: %v", b.Err)
				}
				store.Delete(treePrefix + "a/x")
				expect.True(t, len(arrive().Refused) > 0, "what was refused has happened")
				for _, other := range beside {
					if other.Err != nil || get(one, "b", "y") != "beside" {
						t.Errorf("the batch beside it: %v, and there is %q", other.Err, get(one, "b", "y"))
					}
				}
				one.Before(nil)
				mustCommit(t, one, set("a", "after", "1", 0))
				synctest.Wait()
				expect.Equal(t, get(two, "a", "after"), "1", "the other host doesn't follow")
			})
		})
	}
}

// The attempt without an answer is applied just before the refusal of the next one is reported: it
// is then reported as done.
func TestDoneBeforeItsRefusalIsReported(t *testing.T) {
	withTwo(t, func(t *testing.T, store *fleettest.Memory, one, two *fleettest.Host) {
		mustCommit(t, one, set("a", "before", "1", 0))
		arrive := one.Detain()
		onCommit(one, func(n int) {
			switch n {
			case 2:
				store.Put(treePrefix+"a/x", "another's")
			case 3:
				store.Delete(treePrefix + "a/x")
				expect.Empty(t, arrive().Refused, "the detained attempt")
			}
		})
		b := mustCommit(t, one, set("a", "x", "1", 0))
		synctest.Wait()
		wantSame(t, store, one, two)
		if e, _, _ := one.Folder("a").Get("x"); string(e.Value) != "1" || e.Index != b.Indexes[0] {
			t.Errorf("there is %q of index %d, and the write has %d", e.Value, e.Index, b.Indexes[0])
		}
	})
}

// If the attempt can't be fenced, no result is reported.
func TestRefusalIsNotReportedUnfenced(t *testing.T) {
	withOne(t, 0, func(t *testing.T, store *fleettest.Memory, one *fleettest.Host) {
		mustCommit(t, one, set("a", "before", "1", 0))
		one.Detain()
		onCommit(one, func(n int) {
			switch n {
			case 2:
				store.Put(treePrefix+"a/x", "another's")
			case 3:
				one.LoseAnswers(100)
			}
		})
		err := one.Commit(t.Context(), []*fleet.Batch{{Writes: []fleet.Write{set("a", "x", "1", 0)}}})
		expect.Is(t, err, fleet.ErrUnavailable, "commit")
		one.LoseAnswers(0)
		one.Before(nil)
		mustCommit(t, one, set("a", "after", "1", 0))
	})
}

// An attempt without an answer has succeeded, and others have written since. The log has its outcome, unless they have
// written more entries than the log keeps.
func TestOvertakenWithoutAnAnswer(t *testing.T) {
	for others, known := range map[int]bool{10: true, 100: false} {
		withTwo(t, func(t *testing.T, store *fleettest.Memory, one, two *fleettest.Host) {
			mustCommit(t, one, set("a", "before", "1", 0))
			one.LoseAnswers(1)
			onCommit(one, func(n int) {
				for i := 0; n == 2 && i < others; i++ {
					e, _, _ := two.Folder("a").Get("other")
					mustCommit(t, two, set("a", "other", fmt.Sprint(i), e.Index))
				}
			})
			b := &fleet.Batch{Writes: []fleet.Write{set("a", "x", "1", 0)}}
			err := one.Commit(t.Context(), []*fleet.Batch{b})
			if known && (err != nil || b.Err != nil) || !known && !errors.Is(err, fleet.ErrUnavailable) {
				t.Errorf("%d entries by others: %v, %v", others, err, b.Err)
			}
			one.Before(nil)
			mustCommit(t, one, set("a", "after", "1", 0))
			time.Sleep(time.Minute)
			wantSame(t, store, one, two)
			expect.Equal(t, get(one, "a", "x"), "1", "%d entries by others: the value", others)
		})
	}
}
