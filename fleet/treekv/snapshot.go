package treekv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/treelog"
	"github.com/ironvip/ironvip/internal/parallel"
)

// Reading the whole tree is expensive for the store, so hosts that start at the same time share one
// read. One of them locks the key that describes the snapshot, reads the tree, and writes a
// compressed snapshot of it. The others wait until it describes that and gives the lock back, and
// read the snapshot and the entries of the log after it. A host that starts later uses the same
// snapshot while the log reaches back to it.
//
// A snapshot is used only if entries that follow each other lead from its place in the log to the
// newest entry. Such entries are missing after a restored backup of Consul. Entries with digests can
// be about writes without the log, which the snapshot lacks. The leader finds later ones, as it does
// for hosts that run.

// snapshotHead describes the snapshot.
type snapshotHead struct {
	Version int    `json:"v"`
	Seq     uint64 `json:"seq"` // its place in the log: the entry's number,
	Index   uint64 `json:"index"`
	ID      string `json:"id"`     // and ID
	Parts   int    `json:"parts"`  // keys that have it
	SHA256  string `json:"sha256"` // of all parts
	Node    string `json:"node"`   // the writer, for people
}

const (
	snapshotVersion  = 2
	snapshotPart     = 256 << 10 // bytes of a part; Consul accepts requests of 512 KiB, in base64
	maxSnapshotParts = 1 << 10
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
func decodeSnapshotHead(pair *kv.Pair) *snapshotHead {
	var h snapshotHead
	if pair == nil || json.Unmarshal(pair.Value, &h) != nil || h.Version != snapshotVersion || h.Parts < 1 || h.Parts > maxSnapshotParts {
		return nil
	}
	return &h
}

// ErrNoSnapshot says that there is no snapshot, or none that can be used.
var ErrNoSnapshot = errors.New("no snapshot")

// Snapshot is the tree at a place in the log, as another host has written it, with what leads from
// there to the log's newest entry.
type Snapshot struct {
	Pairs   []kv.Pair // by path
	At      treelog.Position
	Entries []treelog.Entry // of the log after it
	Head    *kv.Pair        // the log's newest entry
	Mark    *kv.Pair        // that names the fleet
}

// readPlace reads the log's newest entry, and the mark, which isn't in the log: a snapshot could have a
// former one.
func (s Store) readPlace(ctx context.Context) (head, mark *kv.Pair, err error) {
	ctx, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	out, err := s.KV.Txn(ctx, []kv.Op{{Verb: kv.Read, Key: s.Keys.Mark}, {Verb: kv.Read, Key: s.Keys.Head}})
	if err != nil {
		return nil, nil, err
	}
	for _, pair := range out.Pairs {
		switch pair.Key {
		case s.Keys.Mark:
			mark = &pair
		case s.Keys.Head:
			head = &pair
		}
	}
	if mark == nil || treelog.PositionOf(head).Seq == 0 {
		return nil, nil, ErrNoSnapshot
	}
	return head, mark, nil
}

// ReadSnapshot reads the snapshot that a pair describes, and the log after it. The error is
// ErrNoSnapshot, or why the store can't be asked.
func (s Store) ReadSnapshot(ctx context.Context, pair *kv.Pair) (found Snapshot, err error) {
	h := decodeSnapshotHead(pair)
	if h == nil {
		return found, ErrNoSnapshot
	}
	head, mark, err := s.readPlace(ctx)
	if err != nil {
		return found, err
	}
	entries, ok, err := s.Since(ctx, h.position(), head, kv.Query{Consistent: true})
	if err != nil {
		return found, err
	}
	if !ok || slices.ContainsFunc(entries, func(e treelog.Entry) bool { return e.Digests != nil }) {
		return found, ErrNoSnapshot
	}
	packed, err := s.readParts(ctx, h)
	if err != nil {
		return found, err
	}
	pairs, err := treelog.Unpack(packed)
	if err != nil {
		return found, ErrNoSnapshot
	}
	return Snapshot{Pairs: pairs, At: h.position(), Entries: entries, Head: head, Mark: mark}, nil
}

// readParts reads the parts of a snapshot. They may come from any of Consul's servers: the hash
// shows whether they are right.
func (s Store) readParts(ctx context.Context, h *snapshotHead) ([]byte, error) {
	parts := make([][]byte, h.Parts)
	group, ctx := parallel.NewGroup(ctx)
	group.SetLimit(ParallelGets)
	for i := range parts {
		group.Go(func() error {
			pair, _, err := s.KV.Get(ctx, s.Keys.part(i), kv.Query{Stale: true})
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
		return nil, ErrNoSnapshot
	}
	return packed, nil
}
