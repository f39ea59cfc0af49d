package treekv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"slices"
	"strconv"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/treelog"
	"github.com/ironvip/ironvip/internal/backoff"
)

// SnapshotWriter writes snapshots of the tree for other hosts, while this host holds their lock.
type SnapshotWriter struct {
	Store
	Session func() string // of this host in the store; "" while there is none
	Node    string        // this host's name
	Log     *slog.Logger
}

// Lock makes this host the writer of the snapshot, unless the key that describes it has changed
// since it was read as pair. After an error this host may hold the lock.
func (w SnapshotWriter) Lock(ctx context.Context, pair *kv.Pair) (locked bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	hold, unchanged := w.hold(), kv.Op{Verb: kv.CheckGone, Key: w.Keys.Snapshot}
	if hold.Session == "" {
		return false, nil
	}
	if pair != nil {
		unchanged = kv.Op{Verb: kv.CheckIndex, Key: w.Keys.Snapshot, Index: pair.Index}
	}
	out, err := w.KV.Txn(ctx, []kv.Op{unchanged, hold})
	return err == nil && len(out.Refused) == 0, err
}

// Unlock gives the lock back without a snapshot. It tries until the context ends; the lock ends with
// the session at the latest.
func (w SnapshotWriter) Unlock(ctx context.Context) { w.publish(ctx, w.unwritten()) }

// Write writes a snapshot and gives the lock back. Pairs are the tree at a place in the log, by path. If
// it fails, hosts make another snapshot when they need it.
func (w SnapshotWriter) Write(ctx context.Context, pairs []kv.Pair, at treelog.Position) {
	w.publish(ctx, w.write(ctx, treelog.Pack(pairs), at))
}

// publish gives the lock back, with a description of what this host has written.
func (w SnapshotWriter) publish(ctx context.Context, h snapshotHead) {
	for wait := kv.NewBackoff(); w.unlock(ctx, h) != nil && ctx.Err() == nil; {
		backoff.Sleep(ctx, wait.Next())
	}
}

func (w SnapshotWriter) unlock(ctx context.Context, h snapshotHead) error {
	ctx, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	unlock := w.hold()
	unlock.Verb, unlock.Value = kv.Unlock, h.encode()
	_, err := w.KV.Txn(ctx, []kv.Op{unlock})
	return err
}

// hold is the operation that takes or keeps the lock.
func (w SnapshotWriter) hold() kv.Op {
	return kv.Op{Verb: kv.Lock, Key: w.Keys.Snapshot, Value: w.unwritten().encode(), Session: w.Session()}
}

// unwritten is the description of a snapshot without parts, which nobody uses.
func (w SnapshotWriter) unwritten() snapshotHead {
	return snapshotHead{Version: snapshotVersion, Node: w.Node}
}

// write writes the parts of a snapshot, and returns its description.
func (w SnapshotWriter) write(ctx context.Context, packed []byte, at treelog.Position) snapshotHead {
	if at.Seq == 0 || len(packed) > maxSnapshotParts*snapshotPart {
		return w.unwritten()
	}
	sum := sha256.Sum256(packed)
	h := w.unwritten()
	h.Seq, h.Index, h.ID, h.SHA256 = at.Seq, at.Index, at.ID, hex.EncodeToString(sum[:])
	for part := range slices.Chunk(packed, snapshotPart) {
		if !w.writeParts(ctx, kv.Op{Verb: kv.Set, Key: w.Keys.part(h.Parts), Value: part}) {
			return w.unwritten()
		}
		h.Parts++
	}
	w.removeParts(ctx, h.Parts)
	return h
}

// maxRemovals bounds the parts that are removed in one transaction. Consul accepts 128 operations.
const maxRemovals = 125

// removeParts removes the parts of a former, larger snapshot: those from that number on. If it
// can't, the next writer does.
func (w SnapshotWriter) removeParts(ctx context.Context, from int) {
	call, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	keys, _, err := w.KV.Level(call, w.Keys.Parts)
	if err != nil {
		return
	}
	var ops []kv.Op
	for _, key := range keys {
		if n, err := strconv.Atoi(key[len(w.Keys.Parts):]); err == nil && n >= from {
			ops = append(ops, kv.Op{Verb: kv.Delete, Key: key})
		}
	}
	for some := range slices.Chunk(ops, maxRemovals) {
		if !w.writeParts(ctx, some...) {
			return
		}
	}
}

// writeParts changes parts of the snapshot, and reports whether this host still holds the lock.
func (w SnapshotWriter) writeParts(ctx context.Context, ops ...kv.Op) bool {
	ctx, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	out, err := w.KV.Txn(ctx, append([]kv.Op{w.hold()}, ops...))
	if err != nil {
		w.Log.Warn("no snapshot of the tree written for other hosts", "err", err)
	}
	return err == nil && len(out.Refused) == 0
}
