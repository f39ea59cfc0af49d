package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/fleet/membership"
	"github.com/ironvip/ironvip/internal/fleet/treelog"
)

// Reading the whole tree is expensive for Consul, so hosts that start at the same time share one
// read. One of them locks the key that describes the snapshot, reads the tree, and writes a
// compressed snapshot of it. The others wait until it describes that and gives the lock back, and
// read the snapshot and the entries of the log after it. A host that starts later uses the same
// snapshot while the log reaches back to it.
//
// A snapshot is used only if entries that follow each other lead from its place in the log to the
// newest entry. That is not so after a restored backup of Consul. It also is not used if the tree's
// newest write is not in the log. The index of that write is expensive, too: Consul iterates over
// all keys. The snapshot's writer therefore looks last for all hosts that have joined before.

// snapshotHead describes the snapshot.
type snapshotHead struct {
	Version int    `json:"v"`
	Seq     uint64 `json:"seq"` // its place in the log: the entry's number,
	Index   uint64 `json:"index"`
	ID      string `json:"id"`     // and ID
	Tree    uint64 `json:"tree"`   // the index of the tree's newest write or removal
	Seen    uint64 `json:"seen"`   // up to which index of the store no others were found
	Parts   int    `json:"parts"`  // keys that have it
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

func (h snapshotHead) encode() []byte {
	text, err := json.Marshal(h)
	if err != nil {
		panic("fleet: snapshot: " + err.Error()) // strings and numbers
	}
	return text
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

// readPlace reads the log's newest entry and the mark, which isn't in the log: a snapshot could
// have a former one.
func (t *Tree) readPlace(ctx context.Context) (w wholeTree, err error) {
	ctx, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	out, err := t.o.KV.Txn(ctx, []consulkv.Op{{Verb: consulkv.Read, Key: t.paths.mark}, {Verb: consulkv.Read, Key: t.paths.head}})
	if err != nil {
		return w, err
	}
	for _, pair := range out.Pairs {
		switch pair.Key {
		case t.paths.mark:
			w.mark = &pair
		case t.paths.head:
			w.head, w.cursor = &pair, pair.Index
		}
	}
	w.at = treelog.PositionOf(w.head)
	if w.mark == nil || w.at.Seq == 0 {
		return w, errNoSnapshot
	}
	return w, nil
}

// readSnapshot reads the tree from the snapshot that a pair describes, and the log. The tables are
// to have everything that was written up to the index joined; 0 means up to now. The error is
// errNoSnapshot, or why Consul can't be asked.
func (t *Tree) readSnapshot(ctx context.Context, pair *consulkv.Pair, joined uint64) (wholeTree, error) {
	h := decodeSnapshotHead(pair)
	if h == nil {
		return wholeTree{}, errNoSnapshot
	}
	w, err := t.readPlace(ctx)
	if err != nil {
		return w, err
	}
	newest := h.Tree
	if joined == 0 || joined > h.Seen {
		if _, ok := treelog.After(h.position(), w.head); !ok {
			return w, errNoSnapshot
		}
		if _, newest, err = t.o.KV.Level(ctx, t.paths.tree); err != nil {
			return w, err
		}
		if w, err = t.readPlace(ctx); err != nil { // has what the log got meanwhile
			return w, err
		}
	}
	entries, v, err := t.since(ctx, h.position(), w.head, consulkv.Query{Consistent: true})
	if err != nil {
		return w, err
	}
	if v != inStep || newest > max(h.Tree, treelog.NewestWrite(entries)) {
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
			pair, _, err := t.o.KV.Get(ctx, t.paths.part(i), consulkv.Query{Stale: true, Raw: true})
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
// makes a snapshot. The task is what is left for this host to do if it may hold the lock of the
// snapshot, and nil if it doesn't. Joined is as for readSnapshot.
func (t *Tree) startTree(ctx context.Context, joined uint64) (w wholeTree, task *snapshotTask, err error) {
	deadline := time.Now().Add(snapshotWait + rand.N(snapshotWait))
	var after uint64     // of the next query: the index of the lock that another host holds
	var refused bool     // the lock, when the key
	var refusedAt uint64 // had this index
	for left := time.Until(deadline); left > 0; left = time.Until(deadline) {
		pair, index, early, err := consulkv.Watch(ctx, t.o.KV, t.paths.snapshot, consulkv.Query{After: after, Wait: left})
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
		if w, err = t.readSnapshot(ctx, pair, joined); !errors.Is(err, errNoSnapshot) {
			return w, nil, err
		}
		lock, err := t.lockSnapshot(ctx, pair)
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

// lockSnapshot makes this host the writer of the snapshot, unless the key has changed since it was
// read as pair. It returns the lock's index, or 0 if it was refused.
func (t *Tree) lockSnapshot(ctx context.Context, pair *consulkv.Pair) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	hold, unchanged := t.holdSnapshot(), consulkv.Op{Verb: consulkv.CheckGone, Key: t.paths.snapshot}
	if hold.Session == "" {
		return 0, nil
	}
	if pair != nil {
		unchanged = consulkv.Op{Verb: consulkv.CheckIndex, Key: t.paths.snapshot, Index: pair.Index}
	}
	out, err := t.o.KV.Txn(ctx, []consulkv.Op{unchanged, hold})
	return out.Index, err
}

// unlockSnapshot gives the lock back, with a description of what this host has written. If it can't,
// the lock ends with the session.
func (t *Tree) unlockSnapshot(ctx context.Context, h snapshotHead) error {
	ctx, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	unlock := t.holdSnapshot()
	unlock.Verb, unlock.Value = consulkv.Unlock, h.encode()
	_, err := t.o.KV.Txn(ctx, []consulkv.Op{unlock})
	return err
}

// holdSnapshot is the operation that takes or keeps the lock of the snapshot's writer.
func (t *Tree) holdSnapshot() consulkv.Op {
	return consulkv.Op{Verb: consulkv.Lock, Key: t.paths.snapshot, Value: t.unwritten().encode(), Session: t.Session()}
}

// unwritten is the description of a snapshot without parts, which nobody uses.
func (t *Tree) unwritten() snapshotHead {
	return snapshotHead{Version: snapshotVersion, Node: t.o.Node}
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
			h := t.unwritten()
			if task.write {
				h = t.writeSnapshot(ctx, task)
			}
			for wait := consulkv.NewBackoff(); t.unlockSnapshot(ctx, h) != nil && ctx.Err() == nil; {
				backoff.Sleep(ctx, wait.Next())
			}
		}
	}
}

// writeSnapshot writes the parts of a snapshot of the tables, and returns its description. If that
// fails, hosts make another one when they need it.
func (t *Tree) writeSnapshot(ctx context.Context, task snapshotTask) snapshotHead {
	packed, at, newest := t.pack()
	if at.Seq == 0 || len(packed) > maxSnapshotParts*snapshotPart {
		return t.unwritten()
	}
	sum := sha256.Sum256(packed)
	h := t.unwritten()
	h.Seq, h.Index, h.ID, h.Tree, h.Seen = at.Seq, at.Index, at.ID, max(task.treeIndex, newest), task.lock
	h.SHA256 = hex.EncodeToString(sum[:])
	last := task.lock
	for part := range slices.Chunk(packed, snapshotPart) {
		index, ok := t.writeParts(ctx, consulkv.Op{Verb: consulkv.Set, Key: t.paths.part(h.Parts), Value: part})
		if !ok {
			return t.unwritten()
		}
		h.Parts++
		last = max(last, index)
	}
	t.removeParts(ctx, h.Parts)
	// For the hosts that have joined meanwhile. Those that join now look themselves.
	ctx, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	if _, index, err := t.o.KV.Level(ctx, t.paths.tree); err == nil && index <= h.Tree {
		h.Seen = last
	}
	return h
}

// removeParts removes the parts of a former, larger snapshot: those from that number on. If it
// can't, the next writer does.
func (t *Tree) removeParts(ctx context.Context, from int) {
	call, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	keys, _, err := t.o.KV.Level(call, t.paths.parts)
	if err != nil {
		return
	}
	var ops []consulkv.Op
	for _, key := range keys {
		if n, err := strconv.Atoi(key[len(t.paths.parts):]); err == nil && n >= from {
			ops = append(ops, consulkv.Op{Verb: consulkv.Delete, Key: key})
		}
	}
	for some := range slices.Chunk(ops, MaxBatch) {
		if _, ok := t.writeParts(ctx, some...); !ok {
			return
		}
	}
}

// writeParts changes parts of the snapshot if this host still holds the lock. It returns the index
// of the write.
func (t *Tree) writeParts(ctx context.Context, ops ...consulkv.Op) (index uint64, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	out, err := t.o.KV.Txn(ctx, append([]consulkv.Op{t.holdSnapshot()}, ops...))
	if err != nil {
		t.log.Warn("no snapshot of the tree written for other hosts", "err", err)
	}
	return out.Index, err == nil && len(out.Refused) == 0
}

// pack encodes the tables. It returns their place in the log, and the index of their newest write
// or removal.
func (t *Tree) pack() (packed []byte, at treelog.Position, newest uint64) {
	t.mu.Lock()
	at, newest = t.at, t.compared.newest
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
