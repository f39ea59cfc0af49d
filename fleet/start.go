package fleet

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/fleet/treekv"
	"github.com/ironvip/ironvip/fleet/treelog"
	"github.com/ironvip/ironvip/internal/backoff"
)

// snapshotWait is how long a host waits for another one's snapshot before it reads the tree itself.
// Up to as much is added as jitter.
const snapshotWait = 10 * time.Second

// readSnapshot reads the tree from the snapshot that a pair describes. The error is as for
// treekv.Store.ReadSnapshot.
func (t *Tree) readSnapshot(ctx context.Context, pair *kv.Pair) (w wholeTree, err error) {
	s, err := t.store.ReadSnapshot(ctx, pair)
	if err != nil {
		return w, err
	}
	w = wholeTree{pairs: make(map[string]kv.Pair, len(s.Pairs)), mark: s.Mark, at: s.At, index: s.At.Index, entries: s.Entries, cursor: s.Head.Index}
	for _, p := range s.Pairs {
		w.pairs[p.Key] = p
	}
	return w, nil
}

// startTree reads the whole tree, from the snapshot if possible. Otherwise this host or another one
// makes a snapshot. Locks says that this host may hold the lock of the snapshot.
func (t *Tree) startTree(ctx context.Context) (w wholeTree, locks bool, err error) {
	deadline := time.Now().Add(snapshotWait + rand.N(snapshotWait))
	var after uint64     // of the next query: the index of the lock that another host holds
	var refused bool     // the lock, when the key
	var refusedAt uint64 // had this index
	for left := time.Until(deadline); left > 0; left = time.Until(deadline) {
		pair, index, early, err := kv.Watch(ctx, t.o.KV, t.keys.Snapshot, kv.Query{After: after, Wait: left})
		if err != nil {
			return w, false, err
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
		if w, err = t.readSnapshot(ctx, pair); !errors.Is(err, treekv.ErrNoSnapshot) {
			return w, false, err
		}
		locked, err := t.snapshotWriter.Lock(ctx, pair)
		switch {
		case err != nil:
			return w, true, err
		case locked:
			w, err = t.readKeys(ctx)
			return w, true, err
		}
		refused, refusedAt = true, indexOf(pair)
	}
	w, err = t.readKeys(ctx)
	return w, false, err
}

// indexOf returns the version of a pair; 0 if there is none.
func indexOf(pair *kv.Pair) uint64 {
	if pair == nil {
		return 0
	}
	return pair.Index
}

// runSnapshots gives the lock of the snapshot back until the context ends, after it has written a
// snapshot if that is to be done. The follower doesn't wait for it.
func (t *Tree) runSnapshots(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return // the lock ends with the session
		case write := <-t.snapshots:
			if write {
				pairs, at := t.pairs()
				t.snapshotWriter.Write(ctx, pairs, at)
			} else {
				t.snapshotWriter.Unlock(ctx)
			}
		}
	}
}

// pairs returns the content of the tables by path, and their place in the log.
func (t *Tree) pairs() (pairs []kv.Pair, at treelog.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, f := range t.folders {
		for key, e := range f.rows.All() {
			pairs = append(pairs, kv.Pair{Key: name + "/" + key, Value: e.Value, Index: e.Index})
		}
	}
	return pairs, t.at
}
