package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/fleet/membership"
	"github.com/ironvip/ironvip/internal/fleet/treelog"
)

// Reading the whole tree is expensive for Consul, so hosts that start at the same time share one
// read. One of them, which holds a lock, reads the tree and writes a compressed snapshot of it. The
// others wait for that, and read the snapshot and the entries of the log after it. A host that
// starts later uses the same snapshot while the log reaches back to it.
//
// A snapshot is used only if entries that follow each other lead from its place in the log to the
// newest entry. That is not so after a restored backup of Consul. It also is not used if the tree's
// newest write is not in the log.

// snapshotHead describes the snapshot.
type snapshotHead struct {
	Version int    `json:"v"`
	Seq     uint64 `json:"seq"` // its place in the log: the entry's number,
	Index   uint64 `json:"index"`
	ID      string `json:"id"`     // and ID
	Tree    uint64 `json:"tree"`   // the index of the tree's newest write or removal
	Parts   int    `json:"parts"`  // keys that have it
	Bytes   int    `json:"bytes"`  // of all parts
	SHA256  string `json:"sha256"` // of all parts
	Node    string `json:"node"`   // the writer, for people
}

const (
	snapshotVersion  = 1
	snapshotPart     = 256 << 10 // bytes of a part; Consul accepts requests of 512 KiB, in base64
	maxSnapshotParts = 1 << 10

	// snapshotWait is how long a host waits for another one's snapshot before it reads the tree
	// itself. Up to as much is added as jitter.
	snapshotWait = 10 * time.Second
)

func (h *snapshotHead) position() treelog.Position {
	return treelog.Position{Seq: h.Seq, Index: h.Index, ID: h.ID}
}

// decodeSnapshotHead returns nil for what can't be used: it is overwritten by the next snapshot.
func decodeSnapshotHead(pair *consulkv.Pair) *snapshotHead {
	var h snapshotHead
	if pair == nil || json.Unmarshal(pair.Value, &h) != nil || h.Version != snapshotVersion || h.Parts < 1 || h.Parts > maxSnapshotParts {
		return nil
	}
	return &h
}

// errNoSnapshot says that there is no snapshot, or none that can be used.
var errNoSnapshot = errors.New("no snapshot")

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

// readHead reads the log's newest entry.
func (t *Tree) readHead(ctx context.Context) (w wholeTree, err error) {
	w.head, w.cursor, err = t.o.KV.Get(ctx, t.paths.head, consulkv.Query{Consistent: true})
	w.at, w.index = treelog.PositionOf(w.head), w.cursor
	return w, err
}

// readKeys reads the tree from its keys.
func (t *Tree) readKeys(ctx context.Context) (wholeTree, error) {
	// The head first: what is written between the two reads is in the second one, and again in the
	// log's next entries.
	w, err := t.readHead(ctx)
	if err != nil {
		return w, err
	}
	w.reading = t.newReading()
	w.treeIndex, err = t.o.KV.List(ctx, t.paths.tree, consulkv.Query{Consistent: true}, w.take)
	w.wait()
	w.mark, w.index = w.reading.mark(), max(w.index, w.treeIndex)
	return w, err
}

// readSnapshot reads the tree from the snapshot and the log. The error is errNoSnapshot, or why
// Consul can't be asked.
func (t *Tree) readSnapshot(ctx context.Context) (wholeTree, error) {
	pair, _, err := t.o.KV.Get(ctx, t.paths.snapshot, consulkv.Query{})
	if err != nil {
		return wholeTree{}, err
	}
	h := decodeSnapshotHead(pair)
	if h == nil {
		return wholeTree{}, errNoSnapshot
	}
	_, index, err := t.o.KV.Level(ctx, t.paths.tree)
	if err != nil {
		return wholeTree{}, err
	}
	// It isn't in the log: the snapshot could have a former one.
	mark, _, err := t.o.KV.Get(ctx, t.paths.mark, consulkv.Query{})
	if err != nil {
		return wholeTree{}, err
	}
	w, err := t.readHead(ctx)
	if err != nil {
		return w, err
	}
	if w.mark = mark; mark == nil || w.at.Seq == 0 {
		return w, errNoSnapshot
	}
	entries, v, err := t.since(ctx, h.position(), w.head, false)
	if err != nil {
		return w, err
	}
	if v != inStep || index > max(h.Tree, treelog.NewestWrite(entries)) {
		return w, errNoSnapshot
	}
	packed, err := t.readParts(ctx, h)
	if err != nil {
		return w, err
	}
	w.reading = t.newReading()
	err = treelog.Unpack(packed, t.paths.tree, w.take)
	w.wait()
	if err != nil {
		return w, errNoSnapshot
	}
	w.at, w.index, w.entries = h.position(), h.Index, entries
	return w, nil
}

// readParts reads the parts of a snapshot. They may come from any of Consul's servers: the hash
// shows whether they are right.
func (t *Tree) readParts(ctx context.Context, h *snapshotHead) ([]byte, error) {
	parts := make([][]byte, h.Parts)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelGets)
	for i := range parts {
		group.Go(func() error {
			pair, _, err := t.o.KV.Get(ctx, t.paths.part(i), consulkv.Query{Stale: true})
			if pair != nil {
				parts[i] = pair.Value
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	packed := slices.Concat(parts...)
	if sum := sha256.Sum256(packed); hex.EncodeToString(sum[:]) != h.SHA256 {
		return nil, errNoSnapshot
	}
	return packed, nil
}

// startTree reads the whole tree, from the snapshot if possible. Otherwise this host or another one
// makes a snapshot. Locked says that this host may hold the lock; if it has read the keys, it is to
// write a snapshot.
func (t *Tree) startTree(ctx context.Context) (w wholeTree, locked bool, err error) {
	for deadline := time.Now().Add(snapshotWait + rand.N(snapshotWait)); time.Now().Before(deadline) && !locked; {
		if w, err = t.readSnapshot(ctx); !errors.Is(err, errNoSnapshot) {
			return w, false, err
		}
		if locked, err = t.lockSnapshot(ctx); err != nil {
			return w, true, err
		}
		if !locked {
			if err = t.awaitSnapshot(ctx, time.Until(deadline)); err != nil {
				return w, false, err
			}
		}
	}
	if locked { // another host may just have written one
		if w, err = t.readSnapshot(ctx); !errors.Is(err, errNoSnapshot) {
			return w, true, err
		}
	}
	w, err = t.readKeys(ctx)
	return w, locked, err
}

// awaitSnapshot waits until the snapshot's writer has given its lock back.
func (t *Tree) awaitSnapshot(ctx context.Context, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, max(most, 0)+consulkv.CallTimeout)
	defer cancel()
	lock, index, err := t.o.KV.Get(ctx, t.paths.snapshotLock, consulkv.Query{})
	switch {
	case err != nil:
	case lock == nil || lock.Session == "": // just given back, or subject to the lock delay
		backoff.Sleep(ctx, membership.LockDelay/10+rand.N(membership.LockDelay/10))
	case most > 0:
		_, _, err = t.o.KV.Get(ctx, t.paths.snapshotLock, consulkv.Query{After: index, Wait: most})
	}
	return err
}

// lockSnapshot reports whether this host has become the snapshot's writer.
func (t *Tree) lockSnapshot(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	hold := t.holdSnapshot()
	if hold.Session == "" {
		return false, nil
	}
	out, err := t.o.KV.Txn(ctx, []consulkv.Op{hold})
	return err == nil && len(out.Refused) == 0, err
}

// unlockSnapshot gives the lock back. If it can't, the lock ends with the session.
func (t *Tree) unlockSnapshot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	_, err := t.o.KV.Txn(ctx, []consulkv.Op{{Verb: consulkv.Unlock, Key: t.paths.snapshotLock, Session: t.holdSnapshot().Session}})
	return err
}

// holdSnapshot is the operation that takes or keeps the lock of the snapshot's writer.
func (t *Tree) holdSnapshot() consulkv.Op {
	return consulkv.Op{Verb: consulkv.Lock, Key: t.paths.snapshotLock, Value: []byte(t.o.Node), Session: t.Session()}
}

// snapshotTask is what this host does once it may hold the lock of the snapshot's writer.
type snapshotTask struct {
	write     bool   // a snapshot; otherwise it only gives the lock back
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
				t.writeSnapshot(ctx, task.treeIndex)
			}
			for wait := consulkv.NewBackoff(); t.unlockSnapshot(ctx) != nil && ctx.Err() == nil; {
				backoff.Sleep(ctx, wait.Next())
			}
		}
	}
}

// writeSnapshot writes a snapshot of the tables. If that fails, hosts make another one when they
// need it.
func (t *Tree) writeSnapshot(ctx context.Context, treeIndex uint64) {
	packed, at, newest := t.pack()
	if at.Seq == 0 || len(packed) > maxSnapshotParts*snapshotPart {
		return
	}
	sum := sha256.Sum256(packed)
	h := snapshotHead{Version: snapshotVersion, Seq: at.Seq, Index: at.Index, ID: at.ID, Tree: max(treeIndex, newest), Bytes: len(packed), SHA256: hex.EncodeToString(sum[:]), Node: t.o.Node}
	for part := range slices.Chunk(packed, snapshotPart) {
		if !t.setSnapshot(ctx, t.paths.part(h.Parts), part) {
			return
		}
		h.Parts++
	}
	text, err := json.Marshal(h)
	if err != nil {
		panic("fleet: snapshot: " + err.Error()) // strings and numbers
	}
	t.setSnapshot(ctx, t.paths.snapshot, text)
}

// setSnapshot writes a key of the snapshot if this host still holds the lock, and reports whether
// it has.
func (t *Tree) setSnapshot(ctx context.Context, key string, value []byte) bool {
	ctx, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	out, err := t.o.KV.Txn(ctx, []consulkv.Op{t.holdSnapshot(), {Verb: consulkv.Set, Key: key, Value: value}})
	if err != nil {
		t.log.Warn("no snapshot of the tree written for other hosts", "err", err)
	}
	return err == nil && len(out.Refused) == 0
}

// pack encodes the tables. It returns their place in the log, and the index of their newest write
// or removal.
func (t *Tree) pack() (packed []byte, at treelog.Position, newest uint64) {
	t.mu.Lock()
	at, newest = t.at, t.newest
	var pairs []consulkv.Pair
	for key := range t.junk {
		pairs = append(pairs, consulkv.Pair{Key: key[len(t.paths.tree):]})
	}
	for name, f := range t.folders {
		for key, e := range f.rows.All() {
			pairs = append(pairs, consulkv.Pair{Key: name + "/" + key, Value: e.Value, Index: e.Index})
		}
	}
	t.mu.Unlock()
	return treelog.Pack(pairs), at, newest
}
