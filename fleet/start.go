package fleet

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/ironvip/ironvip/fleet/consulkv"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/fleet/treekv"
	"github.com/ironvip/ironvip/fleet/treelog"
	"github.com/ironvip/ironvip/internal/backoff"
)

// snapshotWait is how long a host waits for another one's snapshot before it reads the tree itself.
// Up to as much is added as jitter.
const snapshotWait = 10 * time.Second

// wholeTree is the tree at a place in the log.
type wholeTree struct {
	*reading
	mark    *consulkv.Pair // that names the fleet; nil if there is none
	at      treelog.Position
	index   uint64          // up to which it is current
	entries []treelog.Entry // of the log after it
	// treeIndex is the index of the tree's newest write or removal; 0 if it was read from a
	// snapshot.
	treeIndex uint64
	// head is the log's newest entry when the tree was read, and cursor the index of that answer.
	head   *consulkv.Pair
	cursor uint64
}

// readKeys reads the tree from its keys.
func (t *Tree) readKeys(ctx context.Context) (w wholeTree, err error) {
	// The head first: what is written between the two reads is in the second one, and again in the
	// log's next entries.
	if w.head, w.cursor, err = t.o.KV.Get(ctx, t.keys.Head, consulkv.Query{Consistent: true}); err != nil {
		return w, err
	}
	w.at = treelog.PositionOf(w.head)
	w.reading = t.newReading()
	w.treeIndex, err = t.o.KV.List(ctx, t.keys.Tree, consulkv.Query{Consistent: true}, w.take)
	err = cmp.Or(w.wait(), err)
	w.mark, w.index = w.reading.mark(), max(w.cursor, w.treeIndex)
	return w, err
}

// readSnapshot reads the tree from the snapshot that a pair describes. UpTo and the error are as
// for treekv.Store.ReadSnapshot.
func (t *Tree) readSnapshot(ctx context.Context, pair *consulkv.Pair, upTo uint64) (w wholeTree, err error) {
	s, err := t.kv.ReadSnapshot(ctx, pair, upTo)
	if err != nil {
		return w, err
	}
	w.reading = t.newReading()
	err = treelog.Unpack(s.Packed, t.keys.Tree, w.take)
	err = cmp.Or(w.wait(), err)
	if err != nil {
		return w, treekv.ErrNoSnapshot
	}
	w.mark, w.head, w.cursor = s.Mark, s.Head, s.Head.Index
	w.at, w.index, w.entries = s.At, s.At.Index, s.Entries
	return w, nil
}

// startTree reads the whole tree, from the snapshot if possible. Otherwise this host or another one
// makes a snapshot. The task is what is left for this host to do if it may hold the lock of the
// snapshot, and nil if it doesn't. UpTo is as for readSnapshot.
func (t *Tree) startTree(ctx context.Context, upTo uint64) (w wholeTree, task *snapshotTask, err error) {
	deadline := time.Now().Add(snapshotWait + rand.N(snapshotWait))
	var after uint64     // of the next query: the index of the lock that another host holds
	var refused bool     // the lock, when the key
	var refusedAt uint64 // had this index
	for left := time.Until(deadline); left > 0; left = time.Until(deadline) {
		pair, index, early, err := consulkv.Watch(ctx, t.o.KV, t.keys.Snapshot, consulkv.Query{After: after, Wait: left})
		if err != nil {
			return w, nil, err
		}
		after = 0
		if pair != nil && pair.Session != "" { // another host writes it
			if !early {
				after = index
			}
			continue
		}
		if refused && indexOf(pair) == refusedAt { // nobody holds it: the lock delay isn't over
			backoff.Sleep(ctx, membership.LockDelay/2+rand.N(membership.LockDelay))
		}
		if w, err = t.readSnapshot(ctx, pair, upTo); !errors.Is(err, treekv.ErrNoSnapshot) {
			return w, nil, err
		}
		lock, err := t.snapshotWriter.Lock(ctx, pair)
		switch {
		case err != nil:
			return w, &snapshotTask{}, err
		case lock != 0:
			w, err = t.readKeys(ctx)
			return w, &snapshotTask{write: true, lock: lock}, err
		}
		refused, refusedAt = true, indexOf(pair)
	}
	w, err = t.readKeys(ctx)
	return w, nil, err
}

// indexOf returns the version of a pair; 0 if there is none.
func indexOf(pair *consulkv.Pair) uint64 {
	if pair == nil {
		return 0
	}
	return pair.Index
}

// snapshotTask is what this host does once it may hold the lock of the snapshot's writer.
type snapshotTask struct {
	write     bool   // a snapshot; otherwise it only gives the lock back
	lock      uint64 // the index of the lock, which is older than the tree as it was read
	treeIndex uint64 // of the tree's newest write or removal when it was read
}

// runSnapshots writes snapshots until the context ends. The follower doesn't wait for them.
func (t *Tree) runSnapshots(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return // the lock ends with the session
		case task := <-t.snapshots:
			if task.write {
				packed, at, newest := t.pack()
				t.snapshotWriter.Write(ctx, packed, at, max(task.treeIndex, newest), task.lock)
			} else {
				t.snapshotWriter.Unlock(ctx)
			}
		}
	}
}

// pack encodes the tables. It returns their place in the log, and the index of their newest write
// or removal.
func (t *Tree) pack() (packed []byte, at treelog.Position, newest uint64) {
	t.mu.Lock()
	at, newest = t.at, t.compared.newest
	var pairs []consulkv.Pair
	for key := range t.junk {
		pairs = append(pairs, consulkv.Pair{Key: key[len(t.keys.Tree):]})
	}
	for name, f := range t.folders {
		for key, e := range f.rows.All() {
			pairs = append(pairs, consulkv.Pair{Key: name + "/" + key, Value: e.Value, Index: e.Index})
		}
	}
	t.mu.Unlock()
	return treelog.Pack(pairs), at, newest
}
