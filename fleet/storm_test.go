package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/wait"
)

// A value of the storm names its write and the one that it replaces, so that the history of a key
// is a chain: "writer-7<writer-3".
func link(id, before string) string { return id + "<" + before }

func unlink(v string) (id, before string) {
	id, before, _ = strings.Cut(v, "<")
	return id, before
}

// history is the results that the storm's writers got.
type history struct {
	mu     sync.Mutex
	acked  map[string]map[string]string // by key: writing -> the one before it
	open   map[string]string            // writings whose outcome is not known -> the one before
	failed map[string]bool              // writings that met a conflict
	n      int
}

func newHistory() *history {
	return &history{acked: map[string]map[string]string{}, open: map[string]string{}, failed: map[string]bool{}}
}

// one performs one random conditional write of one to three keys on a host. It removes nothing, so
// that chains remain complete.
func (h *history) one(ctx context.Context, r *rand.Rand, name string, n int, tree *fleet.Tree, keys int) error {
	b := &fleet.Batch{}
	ids, before, paths := []string{}, []string{}, []string{}
	used := map[string]bool{}
	for range 1 + r.IntN(3) {
		folder, key := folders[r.IntN(len(folders))], fmt.Sprint(r.IntN(keys))
		if used[folder+key] {
			continue
		}
		used[folder+key] = true
		e, _, _ := tree.Folder(folder).Get(key)
		last, _ := unlink(string(e.Value))
		id := fmt.Sprintf("%s-%d-%s%s", name, n, folder, key)
		value := link(id, last)
		if r.IntN(20) == 0 {
			value += strings.Repeat("x", r.IntN(40<<10))
		}
		b.Writes = append(b.Writes, fleet.Write{Folder: folder, Key: key, Index: e.Index, Value: []byte(value)})
		ids, before, paths = append(ids, id), append(before, last), append(paths, folder+"/"+key)
	}
	err := tree.Commit(ctx, []*fleet.Batch{b})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n++
	var conflict *fleet.ConflictError
	for i, id := range ids {
		switch {
		case err != nil:
			h.open[id] = before[i]
		case b.Err == nil:
			if h.acked[paths[i]] == nil {
				h.acked[paths[i]] = map[string]string{}
			}
			h.acked[paths[i]][id] = before[i]
		case errors.As(b.Err, &conflict):
			h.failed[id] = true
		default:
			return fmt.Errorf("batch: %w", b.Err)
		}
	}
	if err != nil && !errors.Is(err, fleet.ErrUnavailable) && ctx.Err() == nil {
		return err
	}
	return nil
}

// check follows each key's chain. Every acknowledged write replaced exactly the one that its writer
// knew, and no two replaced the same one. The present value is the last of them, or a write with an
// unknown outcome.
func (h *history) check(t *testing.T, pairs []kv.Pair, prefix string) {
	t.Helper()
	there := map[string]string{}
	for _, p := range pairs {
		there[strings.TrimPrefix(p.Key, prefix)] = string(p.Value)
	}
	acked := 0
	for path, writings := range h.acked {
		acked += len(writings)
		next := map[string]string{}
		for id, before := range writings {
			other, twice := next[before]
			expect.False(t, twice, "%s: %s and %s both replaced %q", path, id, other, before)
			next[before] = id
			if h.failed[id] {
				t.Errorf("%s: %s is acknowledged and refused", path, id)
			}
		}
		on := map[string]bool{} // the chain, from the present value back to the first
		for id, _ := unlink(there[path]); id != "" && !on[id]; {
			on[id] = true
			if h.failed[id] {
				t.Errorf("%s: %s has happened and was refused", path, id)
			}
			before, ok := writings[id]
			if !ok {
				if before, ok = h.open[id]; !ok {
					t.Errorf("%s: nobody has written %q", path, id)
				}
			}
			id = before
		}
		for id := range writings {
			if !on[id] {
				t.Errorf("%s: %s was acknowledged and is not in the history of what is there", path, id)
			}
		}
	}
	expect.AtLeast(t, acked, h.n/20, "only %d of %d batches' writes were acknowledged: no storm", acked, h.n)
}

// same checks that a tree has exactly the store's content.
func same(tree *fleet.Tree, pairs []kv.Pair, prefix string) error {
	n := 0
	for _, p := range pairs {
		path := strings.TrimPrefix(p.Key, prefix)
		folder, key, ok := strings.Cut(path, "/")
		if !ok {
			continue
		}
		n++
		e, _, ok := tree.Folder(folder).Get(key)
		if !ok || e.Index != p.Index || string(e.Value) != string(p.Value) {
			return fmt.Errorf("%s is %.30q (%d) in the store and %.30q (%d) in the tree", path, p.Value, p.Index, e.Value, e.Index)
		}
	}
	for _, f := range folders {
		n -= tree.Folder(f).Len()
	}
	if n != 0 {
		return fmt.Errorf("the tree has %d values too many", -n)
	}
	return nil
}

const treePrefix = "ironvip/v2/tree/"

// storm runs three random writers on each tree while chaos causes faults. It then ends the faults
// and checks that all trees equal the store, and that the histories of the keys have no gap and no
// fork.
func storm(t *testing.T, seed uint64, rounds int, trees []*fleet.Tree, store func() []kv.Pair, chaos func(context.Context, *rand.Rand), calm func()) {
	h := newHistory()
	var writers, troubles sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i, tree := range trees {
		for w := range 3 {
			writers.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(i*10+w)))
				for n := range rounds {
					if err := h.one(ctx, r, fmt.Sprintf("%d.%d", i, w), n, tree, 12); err != nil {
						t.Error(err)
						return
					}
					pause(ctx, time.Duration(r.IntN(10))*time.Millisecond)
				}
			})
		}
	}
	troubles.Go(func() {
		r := rand.New(rand.NewPCG(seed, 99))
		for ctx.Err() == nil {
			chaos(ctx, r)
		}
	})
	writers.Wait()
	cancel()
	troubles.Wait()
	calm()
	for i, tree := range trees {
		err := errors.New("stale")
		wait.Until(t, fmt.Sprintf("tree %d is the store", i), func() bool {
			if tree.Stale() == "" {
				err = same(tree, store(), treePrefix)
			}
			return err == nil
		})
	}
	h.check(t, store(), treePrefix)
	t.Logf("%d batches, %d writes open, %d refused", h.n, len(h.open), len(h.failed))
}

func TestStorm(t *testing.T) { stormInMemory(t, 1, 30) }

// stormInMemory runs a storm with all kinds of faults, on the store in memory.
func stormInMemory(t *testing.T, seed uint64, rounds int) {
	withThree(t, func(t *testing.T, store *fleettest.Memory, hosts []*fleettest.Host) {
		var trees []*fleet.Tree
		for _, h := range hosts {
			trees = append(trees, h.Tree)
		}
		storm(t, seed, rounds, trees, func() []kv.Pair { return store.Pairs(treePrefix) },
			func(ctx context.Context, r *rand.Rand) { trouble(ctx, r, store, hosts) },
			func() {
				for _, host := range hosts {
					host.SetDown(false)
					host.SetSlow(0)
					host.SetLate(0)
					host.SetBehind(false)
					host.LoseAnswers(0)
					host.Before(nil)
				}
			})
	})
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// trouble causes a fault for a while, and ends it.
func trouble(ctx context.Context, r *rand.Rand, store *fleettest.Memory, hosts []*fleettest.Host) {
	pause := func(d time.Duration) { pause(ctx, d) }
	h := hosts[r.IntN(len(hosts))]
	short := time.Duration(1+r.IntN(30)) * time.Millisecond
	switch r.IntN(11) {
	case 0:
		h.SetDown(true)
		pause(short)
		h.SetDown(false)
	case 1:
		store.SetDown(true)
		pause(short / 3)
		store.SetDown(false)
	case 2, 3:
		h.LoseAnswers(1 + r.IntN(4))
		pause(short)
	case 4:
		h.SetSlow(time.Duration(r.IntN(3)) * time.Millisecond)
		pause(short)
		h.SetSlow(0)
	case 5:
		store.ExpireSessions()
	case 6: // a reader so slow that the log is overwritten before it reads
		h.Before(func(c fleettest.Call) error {
			if c.Method == "List" {
				pause(short * 5)
			}
			return nil
		})
		pause(short * 5)
		h.Before(nil)
	case 8: // answers that are outdated when they arrive
		h.SetLate(time.Duration(1+r.IntN(10)) * time.Millisecond)
		pause(short * 5)
		h.SetLate(0)
	case 9: // a transaction that is late
		arrive := h.Detain()
		pause(short)
		arrive()
	case 10: // a server that gets no more writes answers
		h.SetBehind(true)
		pause(short * 5)
		h.SetBehind(false)
	case 7: // a manual change of the log, or of the snapshot
		if pairs := append(store.Pairs("ironvip/v2/log/"), store.Pairs("ironvip/v2/snapshot/")...); len(pairs) > 0 && r.IntN(4) == 0 {
			store.Delete(pairs[r.IntN(len(pairs))].Key)
		}
		store.Put("ironvip/v2/log/junk", fmt.Sprint(r.Int()))
	}
	pause(short)
}
