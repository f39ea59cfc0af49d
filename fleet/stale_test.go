package fleet_test

import (
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
)

// The server that answers a host's blocking queries gets no more writes, and still answers. The
// host notices that with the next row that it publishes, and reads from Consul's leader.
func TestServerThatStaysBehind(t *testing.T) {
	withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
		mustCommit(t, hosts[0], set("a", "x", "0", 0))
		time.Sleep(12 * time.Minute) // the leader appends nothing more
		hosts[1].SetBehind(true)
		time.Sleep(6 * time.Minute) // the held query ends meanwhile; the next one is held by that server
		var reads treeReads
		hosts[1].Before(reads.count)
		for i := 1; i < 20; i++ {
			e, _, _ := hosts[0].Folder("a").Get("x")
			mustCommit(t, hosts[0], set("a", "x", fmt.Sprint(i), e.Index))
		}
		must.Equal(t, get(hosts[1], "a", "x"), "0", "the host doesn't use the server that is behind")
		time.Sleep(100 * time.Second)
		wantSame(t, kv, hosts...)
		e, _, _ := hosts[0].Folder("a").Get("x")
		mustCommit(t, hosts[0], set("a", "x", "soon", e.Index))
		time.Sleep(time.Second)
		wantSame(t, kv, hosts...)
		expect.Equal(t, reads.take(), 0, "reads of the whole tree")
	})
}

// A host that finds out that the server for its blocking queries is behind asks Consul's leader who
// is the leader of the fleet, too.
func TestServerThatStaysBehindHidesNoLeader(t *testing.T) {
	withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
		time.Sleep(12 * time.Minute) // the leader appends nothing more
		i := slices.IndexFunc(hosts, func(h *fleettest.Host) bool { return h.Mine() })
		leader, other, behind := hosts[i], hosts[(i+1)%3], hosts[(i+2)%3]
		behind.SetBehind(true)
		time.Sleep(6 * time.Minute) // the held queries end meanwhile; the next ones are held by that server
		leader.End()
		mustCommit(t, other, set("a", "x", "1", 0))
		time.Sleep(110 * time.Second)
		if got, want := behind.Elected(), other.Elected(); got != want {
			t.Errorf("leader %q, not %q, which says that it leads: %v", got, want, other.Mine())
		}
	})
}

// Answers that are minutes old never take a host back.
func TestOldAnswersNeverTakeAHostBack(t *testing.T) {
	withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
		two := hosts[1]
		mustCommit(t, hosts[0], set("a", "x", "1", 0))
		time.Sleep(time.Minute)
		two.SetBehind(true)
		next, last := 2, 1
		for range 40 {
			e, _, _ := hosts[0].Folder("a").Get("x")
			mustCommit(t, hosts[0], set("a", "x", strconv.Itoa(next), e.Index))
			next++
			if next%3 == 0 { // it writes too, and is ahead of that server
				e, _, _ := two.Folder("b").Get("own")
				b := &fleet.Batch{Writes: []fleet.Write{set("b", "own", fmt.Sprint(next), e.Index)}}
				if err := two.Commit(t.Context(), []*fleet.Batch{b}); err != nil || b.Err != nil {
					t.Fatal(err, b.Err)
				}
			}
			if next%10 == 0 {
				two.SetBehind(true) // now at another old state
			}
			for range 20 {
				time.Sleep(time.Second)
				now, err := strconv.Atoi(get(two, "a", "x"))
				if err != nil || now < last {
					t.Fatalf("x is %q after it was %d", get(two, "a", "x"), last)
				}
				last = now
			}
		}
		two.SetBehind(false)
		time.Sleep(2 * time.Minute)
		wantSame(t, kv, hosts...)
	})
}

// After a restart of all of Consul's servers, the new leader answers before it has applied its log.
// Such answers have no effect, also on hosts that read the leader only.
func TestLeaderThatHasNotAppliedItsLog(t *testing.T) {
	withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
		two := hosts[1]
		mustCommit(t, hosts[0], set("a", "x", "1", 0))
		time.Sleep(time.Minute)
		applied := kv.Frozen()
		e, _, _ := hosts[0].Folder("a").Get("x")
		mustCommit(t, hosts[0], set("a", "x", "2", e.Index))
		time.Sleep(time.Second)
		_, revision, _ := two.Folder("a").Get("x")
		var replaced atomic.Int32
		two.Before(func(call fleettest.Call) error {
			if call.Key == "ironvip/v2/snapshot/head" || call.Key == treePrefix {
				replaced.Add(1)
			}
			return nil
		})
		for range 5 {
			two.SetReplaying(applied)
			two.SetDown(true)
			time.Sleep(time.Second)
			two.SetDown(false)
			time.Sleep(2 * time.Second)
		}
		two.SetReplaying(nil)
		time.Sleep(time.Minute)
		wantSame(t, kv, hosts...)
		_, now, _ := two.Folder("a").Get("x")
		expect.Equal(t, now, revision, "x was written by an old answer")
		n := replaced.Load()
		expect.Equal(t, n, 0, "the tree was read %d times", n)
	})
}

// Tables that are replaced by a snapshot of the tree and the log after it never show the values of
// the snapshot alone.
func TestReplacedTablesShowNothingOlder(t *testing.T) {
	withOne(t, 0, func(t *testing.T, kv *fleettest.Memory, one *fleettest.Host) {
		for _, key := range []string{"changed", "removed"} {
			mustCommit(t, one, set("a", key, "1", 0))
		}
		time.Sleep(time.Minute)
		two := kv.Start(t, "two", folders, nil) // there is a snapshot now
		time.Sleep(time.Minute)
		commit := func(w fleet.Write) {
			e, _, _ := one.Folder("a").Get(w.Key)
			w.Index = e.Index
			mustCommit(t, one, w)
		}
		commit(set("a", "changed", "2", 0))
		commit(fleet.Write{Folder: "a", Key: "removed"})
		commit(set("a", "added", "1", 0))
		time.Sleep(time.Second)
		backup := kv.Snapshot()
		commit(set("a", "lost", "1", 0))
		time.Sleep(time.Second)
		rows := two.Folder("a").Watch()
		defer rows.Close()
		for changes, _ := rows.TryNext(); len(changes) > 0; changes, _ = rows.TryNext() {
		}
		_, changed, _ := two.Folder("a").Get("changed")
		_, added, _ := two.Folder("a").Get("added")
		var parts atomic.Int32
		two.Before(func(call fleettest.Call) error {
			if call.Key == "ironvip/v2/snapshot/parts/0" {
				parts.Add(1)
			}
			return nil
		})
		kv.Restore(backup, false)
		time.Sleep(20 * time.Second)
		wantSame(t, kv, one, two)
		expect.True(t, parts.Load() != 0, "the snapshot was not used")
		for key, revision := range map[string]uint64{"changed": changed, "added": added} {
			_, now, _ := two.Folder("a").Get(key)
			expect.Equal(t, now, revision, "%s was written: revision %d, before", key, now)
		}
		changes, _ := rows.TryNext()
		for _, c := range changes {
			expect.Equal(t, c.Value.Key, "lost", "was written")
		}
	})
}

// The hosts read many changes in a short time with few answers each, in inverse proportion to their
// number. The writers and the leader go on meanwhile.
func TestChangesAreReadTogether(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const (
			fleetSize = 40
			writers   = 10
			seconds   = 1
			rate      = 200 // changes per second
		)
		kv := fleettest.NewMemory()
		var hosts []*fleettest.Host
		for i := range fleetSize {
			hosts = append(hosts, kv.Start(t, fmt.Sprint("host", i), folders, nil))
		}
		time.Sleep(time.Minute) // the leader has counted the hosts
		leader := hosts[0].Elected()
		before := make([]fleettest.Counts, fleetSize)
		for i, h := range hosts {
			before[i] = h.Counts()
		}
		slowest, started := time.Duration(0), time.Now()
		for i := range seconds * rate {
			h := hosts[i%writers]
			key := fmt.Sprint("of", i%writers)
			e, _, _ := h.Folder("a").Get(key)
			began := time.Now()
			mustCommit(t, h, set("a", key, fmt.Sprint(i), e.Index))
			slowest = max(slowest, time.Since(began))
			time.Sleep(time.Second / rate)
		}
		time.Sleep(time.Second)
		wantSame(t, kv, hosts...)
		// One answer per 20 ms, the first ten without a pause, and a segment of the ring or two for
		// each.
		most := int(time.Since(started)/(20*time.Millisecond)) + 20
		for i, h := range hosts[writers:] {
			cost := less(h.Counts(), before[writers+i])
			if cost.Held > most || cost.Reads > 2*most {
				t.Errorf("a host has read %d changes with %d answers and %d other reads", seconds*rate, cost.Held, cost.Reads)
			}
		}
		expect.AtMost(t, slowest, time.Second, "a commit took")
		for _, h := range hosts {
			if h.Elected() != leader || h.Stale() != "" {
				t.Errorf("leader %s, then %s; stale %q", leader, h.Elected(), h.Stale())
			}
		}
	})
}

// Old answers of a server that is behind don't change who is the leader.
func TestOldAnswersDontChangeTheLeader(t *testing.T) {
	withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
		time.Sleep(time.Minute)
		leader := hosts[slices.IndexFunc(hosts, func(h *fleettest.Host) bool { return h.Mine() })]
		leader.SetBehind(true)
		kv.Start(t, "four", folders, nil)
		kv.Start(t, "five", folders, nil)
		time.Sleep(time.Minute) // the leader has published how many hosts there are
		changed := leader.Changed()
		leader.SetDown(true)
		leader.SetDown(false)
		time.Sleep(time.Minute)
		select {
		case <-changed:
			t.Error("the leader has changed")
		default:
		}
	})
}
