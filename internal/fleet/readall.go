package fleet

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/fleet/treelog"
	"github.com/ironvip/ironvip/internal/fleet/treestatus"
)

// replace reads the whole tree and replaces the tables by it.
func (f *follower) replace(ctx context.Context) (verdict, error) {
	t := f.tree
	// Commits wait: their conditions would be judged by old tables, or their writes be undone.
	if err := t.reading.take(ctx); err != nil {
		return lost, err
	}
	var task *snapshotTask
	var joined uint64
	if !f.begun { // later, the tables are to have what was written since
		f.begun, joined = true, t.JoinedAt()
	}
	w, err := f.readWhole(ctx, func(ctx context.Context) (w wholeTree, err error) {
		w, task, err = t.startTree(ctx, joined)
		return w, err
	})
	if err == nil {
		t.mu.Lock()
		t.known = tombstones{index: map[string]uint64{}}
		t.high = 0
		if t.loaded { // readers must not see older values in between
			w.foldLog()
		}
		t.at = w.at
		t.merge(w.reading, w.index, true)
		t.compared.differs = time.Time{}
		t.advance(w.entries)
		f.reached(w)
		t.mu.Unlock()
	}
	t.reading.give()
	if task != nil {
		task.write, task.treeIndex = task.write && err == nil, w.treeIndex
		select {
		case t.snapshots <- *task:
		default: // the task that waits gives the lock back too
		}
	}
	return inStep, err
}

// compare reads the whole tree and corrects the tables, for what was written without the log. It
// appends that to the log for the other hosts if this host is the leader or was asked to. The
// leader reads nothing if the tree has not changed since it did so last.
func (f *follower) compare(ctx context.Context, asked bool) (verdict, error) {
	t := f.tree
	leader := t.Mine()
	if leader && !asked {
		_, index, err := t.o.KV.Level(ctx, t.keys.Tree)
		if err != nil {
			return inStep, err
		}
		t.mu.Lock()
		unchanged := index == t.compared.searched && t.compared.differs.IsZero()
		t.mu.Unlock()
		if unchanged {
			f.scheduleSearch(searchEvery)
			return inStep, nil
		}
	}
	high := t.reachedIndex()
	w, err := f.readWhole(ctx, func(ctx context.Context) (wholeTree, error) {
		w, err := t.readKeys(ctx)
		if err != nil {
			f.postpone() // the log first: that may be readable
		}
		return w, err
	})
	switch {
	case err != nil:
		return inStep, err
	case w.index < high: // commits since then are not in it: a backup was restored
		return lost, nil
	}
	var logged map[string]bool
	if leader || asked {
		if logged, err = t.loggedSince(ctx, w.at); err != nil {
			return inStep, err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := t.merge(w.reading, w.index, false) // newer values in the tables are kept
	if logged != nil {
		t.writer.publish(slices.DeleteFunc(changed, func(path string) bool { return logged[path] }), w.treeIndex)
	}
	if w.at.Index > t.at.Index {
		t.at = w.at
	}
	t.compared.differs = time.Time{}
	f.reached(w)
	return inStep, nil
}

// readWhole calls read, and verifies that the tree belongs to this host's fleet.
func (f *follower) readWhole(ctx context.Context, read func(context.Context) (wholeTree, error)) (w wholeTree, err error) {
	t := f.tree
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if w, err = read(ctx); err != nil {
		return w, err
	}
	junk := map[string]error{}
	if w.head != nil && w.at.Seq == 0 { // the next write overwrites it
		_, junk[t.keys.Head] = treelog.Decode(w.head.Value, w.head.Index)
	}
	t.status.SetJunk(treestatus.InLog, treestatus.Misplaced(junk))
	w.at, err = t.checkMark(ctx, w.mark, w.at)
	if w.mark == nil { // it is there now
		w.treeIndex = w.at.Index
	}
	return w, err
}

// reached notes that the tables have all of the tree. The caller holds the tree's lock.
func (f *follower) reached(w wholeTree) {
	t := f.tree
	f.pass(w.cursor)
	t.high = max(t.high, w.index)
	t.settleCache()
	t.ready()
	if w.treeIndex == 0 { // a snapshot, which may have what was removed by hand since
		f.scheduleSearch(searchSoon)
	} else {
		f.scheduleSearch(searchEvery)
	}
}

func (f *follower) scheduleSearch(after time.Duration) {
	f.search = time.Now().Add(after*9/10 + rand.N(after/5))
}

func (t *Tree) reachedIndex() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.high
}

// loggedSince returns the paths that the log names after a position. A full read that finds another
// path changed has found a write without the log. It returns nil if the log doesn't reach back.
func (t *Tree) loggedSince(ctx context.Context, at treelog.Position) (map[string]bool, error) {
	head, _, err := t.o.KV.Get(ctx, t.keys.Head, consulkv.Query{Consistent: true})
	if err != nil {
		return nil, err
	}
	entries, ok, err := t.kv.Since(ctx, at, head, consulkv.Query{Consistent: true})
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
