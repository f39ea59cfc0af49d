package fleet

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/treelog"
)

const (
	// searchEvery is the time between the leader's searches for what was written without the log,
	// and searchSoon that to the first one after a start from a snapshot: Consul remembers a removal
	// for 15 minutes only. A fifth of it is jitter.
	searchEvery = 5 * time.Minute
	searchSoon  = 20 * time.Second
	// searchAgain is the time after a search that has failed.
	searchAgain = time.Minute
)

// search compares the tables with the whole tree, for what was written without the log, and corrects them.
// The leader, and a host that was asked to search, append what they find to the log for the other hosts.
// The host doesn't follow the log meanwhile, for up to readTimeout with a slow store. It still writes.
//
// A search that fails is repeated later, because the log may be readable. An error says that the tree
// isn't this fleet's.
func (f *follower) search(ctx context.Context, asked []chan error) (verdict, error) {
	t, leads := f.tree, f.tree.Mine()
	defer t.lookUp()()
	t.mu.Lock()
	high, differed := t.high, !t.compared.differs.IsZero()
	t.compared.differs = time.Time{} // digests that arrive from now on may know more
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	w, logged, err := t.readDifference(ctx, leads && len(asked) == 0 && !differed, leads || len(asked) > 0)
	next := inStep
	if err == nil && w != nil {
		if err := t.verify(ctx, w); err != nil {
			answer(asked, err)
			return lost, err
		}
		next, err = f.look(ctx, true) // lost if a backup was restored since the tree was read
	}
	if err != nil {
		f.scheduleSearch(searchAgain)
		if differed {
			t.mu.Lock()
			t.compared.differs = time.Now().Add(searchAgain)
			t.mu.Unlock()
		}
		answer(asked, err)
		return inStep, nil
	}
	if w != nil {
		if next != inStep || w.index < high { // commits since then are not in it: a backup was restored
			t.requeueRereads(asked)
			return lost, nil
		}
		f.merge(w, logged)
	}
	f.scheduleSearch(searchEvery)
	answer(asked, nil)
	return inStep, nil
}

// readDifference reads the whole tree, and the paths that the log names after it, if those are to be
// known. It returns no tree if that has not changed since the last search, and only then is to be read.
func (t *Tree) readDifference(ctx context.Context, ifChanged, withLog bool) (w *wholeTree, logged map[string]bool, err error) {
	if ifChanged {
		_, index, err := t.o.KV.Level(ctx, t.keys.Tree)
		if err != nil {
			return nil, nil, err
		}
		t.mu.Lock()
		searched := t.compared.searched
		t.mu.Unlock()
		if index == searched {
			return nil, nil, nil
		}
	}
	whole, err := t.readKeys(ctx)
	if err == nil && withLog {
		logged, err = t.loggedSince(ctx, whole.at)
	}
	return &whole, logged, err
}

// merge corrects the tables. It appends what the log doesn't name to the log, unless logged is nil, also if
// another host is the leader by now: that one has not found it yet.
func (f *follower) merge(w *wholeTree, logged map[string]bool) {
	t := f.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := t.merge(w.pairs, w.index, false) // newer values in the tables are kept
	if logged != nil {
		t.writer.publish(slices.DeleteFunc(changed, func(path string) bool { return logged[path] }), w.treeIndex)
	}
	if w.at.Index > t.at.Index { // otherwise the follower is further
		t.at = w.at
		f.pass(w.cursor)
	}
	t.high = max(t.high, w.index)
}

func (f *follower) scheduleSearch(after time.Duration) {
	f.next = time.Now().Add(after*9/10 + rand.N(after/5))
}

// due returns when the tables are to be compared with the tree: regularly on the leader, and on a
// host with other digests. The zero time means never.
func (f *follower) due() time.Time {
	f.tree.mu.Lock()
	due := f.tree.compared.differs
	f.tree.mu.Unlock()
	if f.tree.Mine() && (due.IsZero() || f.next.Before(due)) {
		due = f.next
	}
	return due
}

func (f *follower) isDue() bool {
	due := f.due()
	return !due.IsZero() && !time.Now().Before(due)
}

// loggedSince returns the paths that the log names after a position. A full read that finds another
// path changed has found a write without the log. It returns nil if the log doesn't reach back.
func (t *Tree) loggedSince(ctx context.Context, at treelog.Position) (map[string]bool, error) {
	head, _, err := t.o.KV.Get(ctx, t.keys.Head, kv.Query{Consistent: true})
	if err != nil {
		return nil, err
	}
	entries, ok, err := t.store.Since(ctx, at, head, kv.Query{Consistent: true})
	if err != nil || !ok {
		return nil, err
	}
	paths := map[string]bool{}
	for _, e := range entries {
		for _, c := range e.Changes {
			paths[c.Path] = true
		}
	}
	return paths, nil
}
