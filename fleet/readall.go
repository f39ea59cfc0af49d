package fleet

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/treekv"
	"github.com/ironvip/ironvip/fleet/treelog"
)

// wholeTree is the tree at a place in the log.
type wholeTree struct {
	pairs   map[string]kv.Pair // by path
	mark    *kv.Pair           // that names the fleet; nil if there is none
	at      treelog.Position
	index   uint64          // up to which it is current
	entries []treelog.Entry // of the log after it
	// treeIndex is the index of the tree's newest write or removal; 0 if it was read from a
	// snapshot.
	treeIndex uint64
	cursor    uint64 // the index of the answer with the log's newest entry
}

// readKeys reads the tree from its keys.
func (t *Tree) readKeys(ctx context.Context) (w wholeTree, err error) {
	// The head first: what is written between the two reads is in the second one, and again in the
	// log's next entries.
	head, cursor, err := t.o.KV.Get(ctx, t.keys.Head, kv.Query{Consistent: true})
	if err != nil {
		return w, err
	}
	pairs, index, err := t.o.KV.List(ctx, t.keys.Tree, kv.Query{Consistent: true})
	if err != nil {
		return w, err
	}
	w = wholeTree{pairs: make(map[string]kv.Pair, len(pairs)), at: treelog.PositionOf(head), index: max(cursor, index), treeIndex: index, cursor: cursor}
	for _, p := range pairs {
		w.pairs[p.Key[len(t.keys.Tree):]] = p
	}
	if mark, is := w.pairs[treekv.MarkName]; is {
		w.mark = &mark
	}
	return w, nil
}

// foldLog brings the tree to the end of the log's entries after it.
func (w *wholeTree) foldLog() {
	if len(w.entries) == 0 {
		return
	}
	for _, c := range treelog.Latest(w.entries) {
		if c.Value == nil {
			delete(w.pairs, c.Path)
		} else {
			w.pairs[c.Path] = kv.Pair{Value: c.Value, Index: c.Index}
		}
	}
	w.at = w.entries[len(w.entries)-1].Position
	w.index, w.entries = max(w.index, w.at.Index), nil
}

// replace reads the whole tree and replaces the tables by it.
func (f *follower) replace(ctx context.Context) (verdict, error) {
	t := f.tree
	// Commits wait: their conditions would be judged by old tables, or their writes be undone.
	if err := t.reading.take(ctx); err != nil {
		return lost, err
	}
	read, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	w, locks, err := t.startTree(read)
	if err == nil {
		err = t.verify(read, &w)
	}
	if err == nil {
		t.mu.Lock()
		t.known = tombstones{index: map[string]uint64{}}
		t.high = 0
		w.foldLog() // readers must not see older values in between
		t.at = w.at
		t.merge(w.pairs, w.index, true)
		t.compared.differs = time.Time{}
		f.reached(w)
		t.mu.Unlock()
	}
	t.reading.give()
	if locks {
		select {
		case t.snapshots <- err == nil:
		default: // the lock is about to be given back
		}
	}
	return inStep, err
}

// verify verifies that the tree belongs to this host's fleet.
func (t *Tree) verify(ctx context.Context, w *wholeTree) (err error) {
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
	if w.treeIndex == 0 { // a snapshot, which may lack what was written by hand since
		f.scheduleSearch(searchSoon)
	} else {
		f.scheduleSearch(searchEvery)
	}
}

// merge merges the whole tree, current up to an index, into the tables. With replace, newer values in
// the tables are overwritten too. It returns the paths that it has changed. The caller holds mu.
func (t *Tree) merge(tree map[string]kv.Pair, upTo uint64, replace bool) (changed []string) {
	if replace {
		t.compared.newest = 0
	}
	for path, p := range tree {
		f, key := t.locate(path)
		if f == nil || !replace && t.knownIndex(f, key, path) > upTo {
			continue
		}
		t.compared.newest = max(t.compared.newest, p.Index)
		if t.put(f, path, Entry{Key: key, Value: treekv.NotNil(p.Value), Index: p.Index}) {
			changed = append(changed, path)
		}
	}
	for _, f := range t.folders {
		var gone []string
		for key, e := range f.rows.All() {
			if _, there := tree[f.name+"/"+key]; !there && (replace || e.Index <= upTo) {
				gone = append(gone, key)
			}
		}
		for _, key := range gone {
			t.remove(f, key, f.name+"/"+key, upTo)
			changed = append(changed, f.name+"/"+key)
		}
	}
	return changed
}

func (t *Tree) reachedIndex() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.high
}
