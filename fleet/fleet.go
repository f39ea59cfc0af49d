// Package fleet replicates a tree of small values in the fleet's store to every host of a fleet.
//
// It takes conditional writes (Commit) and the writes of other hosts. It publishes a table of
// entries for each folder of the tree, with the change feed that every table of the pipeline has.
// A write is durable in the store before it is visible, and fails if the value has changed since the
// writer read it. It knows nothing of services or addresses: ipam/fleetstore and sources/rest define
// the values.
//
// A change costs O(change) on every host, whatever the size of the tree and the number of hosts:
// each transaction appends an entry to the fleet's one log, and hosts follow the log.
// docs/decisions/06 has the reasons and the measurements, docs/scale.md the costs.
//
// Source code organization:
//
//   - tree.go, collection.go: the tables, and their typed values
//   - commit.go, writer.go: batches, and the writer, which packs them into transactions
//   - transaction.go, outcome.go: sending a transaction, and finding out what has become of it
//   - turn.go: how a slow writer gets its turn
//   - follow.go, lookup.go: following the log, and reading single keys
//   - readall.go: reading the whole tree, and merging it into the tables
//   - search.go, reread.go: comparing the tables with the whole tree, regularly and when asked
//   - start.go: reading the snapshot that starting hosts share, or making it
//   - digest.go: comparing the tables with those of the leader
//   - cache.go: the last known tree on disk, and starting without the store
//   - mark.go: detecting another fleet's tree
//   - status.go: problems, and whether the tree is current
//
// Package treekv has the tree's keys in the store, reads of its log and values, and its snapshot.
// Package treelog has the format of the log and of the snapshot.
// Package treestatus has what the tree reports about itself.
// Package membership has the host's session, its identity, the election of the leader, and the nodes.
// Package kv has the contract of the store, which packages consul and etcd implement.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Entry is one value of the tree and a row of its folder's table. It is immutable.
type Entry struct {
	Key   string // below its folder: "192.0.2.10"
	Value []byte
	Index uint64 // Consul's ModifyIndex: the version, for compare-and-set
}

// Write is one compare-and-set: it sets the value if its version is Index.
type Write struct {
	Folder string
	Key    string
	Index  uint64 // of the Entry that the writer knows; 0 if there must be none
	Value  []byte // nil removes the value
	// Check makes the write a condition on the Index only: it changes nothing. Value must be nil.
	Check bool
}

// Ops returns how many of the store's operations the write takes: 2 for a removal, because Consul
// doesn't check the condition of one if the key is already gone.
func (w Write) Ops() int {
	if w.Value == nil && !w.Check {
		return 2
	}
	return 1
}

// Batch is a set of writes that happen together or not at all. It names each key once, and has at
// most MaxBatch operations and MaxBatchBytes bytes.
type Batch struct {
	Writes []Write
	// Indexes are the versions of the entries written, in order; 0 for removals and conditions.
	Indexes []uint64
	// Err is a *ConflictError if a value had another version, and wraps ErrBadBatch if the batch
	// breaks a bound. Nothing of the batch has happened then.
	Err error
}

// Bounds of a batch. Consul accepts 128 operations in a transaction, and the log needs three of
// them. It accepts request bodies of 512 KiB, in which values are a third longer (base64) and
// partly repeated for the log.
const (
	MaxBatch      = 125       // operations, see Write.Ops
	MaxBatchBytes = 256 << 10 // keys and values
	MaxKey        = 512       // bytes of a key
)

// ErrBadBatch says that a batch breaks a bound, names a key twice, or has an invalid folder or key.
var ErrBadBatch = errors.New("batch invalid")

// ConflictError names the writes of a batch that found another version. The tables have the
// current values when Commit returns.
type ConflictError struct{ Writes []Write }

func (e *ConflictError) Error() string {
	keys := make([]string, 0, len(e.Writes))
	for _, w := range e.Writes {
		keys = append(keys, w.Folder+"/"+w.Key)
	}
	return fmt.Sprintf("%s changed meanwhile", strings.Join(keys, ", "))
}

// ErrUnavailable says that the store could not be reached, or didn't answer. The outcome of a Commit
// is unknown then; the tables show it once the store answers again.
var ErrUnavailable = errors.New("the fleet's store is not available")

// ErrNoAnswer is wrapped together with ErrUnavailable if the store took too long. A smaller batch may
// get an answer.
var ErrNoAnswer = errors.New("no answer in time")

// Committer writes to the tree. A *Tree is one.
type Committer interface {
	// Commit writes the batches, each independently, and sets their Err and Indexes. When it
	// returns, the writes are durable and in this host's tables. An error (it wraps
	// ErrUnavailable, or is the context's) means that the outcome of every batch is unknown.
	Commit(ctx context.Context, batches []*Batch) error
}
