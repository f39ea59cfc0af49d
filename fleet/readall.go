package fleet

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/fleet/treelog"
	"github.com/ironvip/ironvip/fleet/treestatus"
)

// replace reads the whole tree and replaces the tables by it.
func (f *follower) replace(ctx context.Context) (verdict, error) {
	t := f.tree
	// Commits wait: their conditions would be judged by old tables, or their writes be undone.
	if err := t.reading.take(ctx); err != nil {
		return lost, err
	}
	// What was written without the log before this host has joined must be in the tables, and what
	// they have had must not be lost. The leader's search finds what was written later, as it does
	// for the hosts that have not lost the log.
	t.mu.Lock()
	upTo := max(t.JoinedAt(), t.high, t.compared.newest)
	t.mu.Unlock()
	read, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	w, task, err := t.startTree(read, upTo)
	if err == nil {
		err = t.verify(read, &w)
	}
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

// verify verifies that the tree belongs to this host's fleet.
func (t *Tree) verify(ctx context.Context, w *wholeTree) (err error) {
	junk := map[string]error{}
	if w.head != nil && w.at.Seq == 0 { // the next write overwrites it
		_, junk[t.keys.Head] = treelog.Decode(w.head.Value, w.head.Index)
	}
	t.status.SetJunk(treestatus.InLog, treestatus.Misplaced(junk))
	w.at, err = t.checkMark(ctx, w.mark, w.at)
	if w.mark == nil { // it is there now
		w.treeIndex = w.at.Index
	}
	return err
}

// reached notes that the tables are those of the whole tree. The caller holds the tree's lock.
func (f *follower) reached(w wholeTree) {
	t := f.tree
	f.pass(w.cursor)
	t.high = max(t.high, w.index)
	t.ready()
	if w.treeIndex == 0 { // a snapshot, which may have what was removed by hand since
		f.scheduleSearch(searchSoon)
	} else {
		f.scheduleSearch(searchEvery)
	}
}

func (t *Tree) reachedIndex() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.high
}
