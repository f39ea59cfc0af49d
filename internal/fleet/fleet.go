// Package fleet is what the hosts of a fleet share: a tree of small values in
// Consul's KV store, the same on every host.
//
// In come conditional writes (Commit) and what other hosts wrote; out go tables
// of entries, a folder each, with the same change feed as every table of the
// pipeline. Every write is durable in Consul before anyone sees it, and fails
// when the value is not what the writer took it for, whoever writes. The package
// also runs the election (which host gives out addresses first) and tells which
// hosts are there (Nodes). It knows nothing of services or addresses; what the
// values mean is said by ipam/consulstore and sources/rest.
//
// A change costs O(change) on every host, however much the tree holds: each
// transaction adds an entry to a short journal, and hosts follow the journal.
// docs/decisions/0010 has the why and the numbers.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Entry is one value of the tree. Rows of a folder's table are entries; they
// must not be changed.
type Entry struct {
	Key   string // below its folder: "192.0.2.10"
	Value []byte
	Index uint64 // Consul's ModifyIndex: which writing of the value this is
}

// Write is one conditional write: make the value Value, provided that it is the
// one of Index now.
type Write struct {
	Folder string
	Key    string
	Index  uint64 // of the Entry that the writer knows; 0: that there is none
	Value  []byte // nil: remove it
}

// Ops returns how many of Consul's operations the write takes: 2 for a removal,
// whose condition Consul doesn't check when the key is already gone.
func (w Write) Ops() int {
	if w.Value == nil {
		return 2
	}
	return 1
}

// Batch is writes that happen all or not at all. A batch names each key once,
// has at most MaxBatch operations and MaxBatchBytes bytes.
type Batch struct {
	Writes []Write
	// Indexes are those of the entries written, in order, once the batch has
	// happened; 0 for removals.
	Indexes []uint64
	// Err is a *ConflictError when some value was not the expected one, and wraps
	// ErrBadBatch when the batch is none that could ever be written. Nothing of
	// the batch has happened then.
	Err error
}

// Bounds of a batch. Consul takes 128 operations in a transaction, and the
// journal needs two of them; it takes 512 KiB as a request's body, in which
// values are a third longer and in part repeated for the journal.
const (
	MaxBatch      = 126       // operations, see Write.Ops
	MaxBatchBytes = 256 << 10 // keys and values
	MaxKey        = 512       // bytes of a key
)

// ErrBadBatch says that a batch breaks a bound, names a key twice, or has a
// folder or a key that can't be.
var ErrBadBatch = errors.New("not a batch that can be written")

// ConflictError names the writes of a batch that met another value. The folders'
// tables already have the actual ones when Commit returns.
type ConflictError struct{ Writes []Write }

func (e *ConflictError) Error() string {
	keys := make([]string, 0, len(e.Writes))
	for _, w := range e.Writes {
		keys = append(keys, w.Folder+"/"+w.Key)
	}
	return fmt.Sprintf("%s changed meanwhile", strings.Join(keys, ", "))
}

// ErrUnavailable says that Consul could not be asked, or didn't answer. Of a
// Commit nothing is known then: the tables show what has become of it once
// Consul is there again.
var ErrUnavailable = errors.New("consul not available")

// ErrNoAnswer says, beside ErrUnavailable, that Consul was asked and took too long:
// less at once may get an answer.
var ErrNoAnswer = errors.New("no answer in time")

// Committer writes to the tree. A *Tree is one.
type Committer interface {
	// Commit tries every batch, each alone, and sets its Err and Indexes. When it
	// returns, what has happened is durable and in the folders' tables of this
	// host. The error means that the tree as a whole can't be written (it wraps
	// ErrUnavailable, or is the context's), and no batch may be acted on.
	Commit(ctx context.Context, batches []*Batch) error
}

// Turn tells whether this host is the one to give out what a service lacks. It
// only spares the fleet a stampede: the conditions of every write hold without it.
type Turn interface {
	// Mine reports whether this host is elected now.
	Mine() bool
	// Elected returns the elected node's name, "" when there is none.
	Elected() string
	// Changed returns a channel that is closed when either changes. A closed one
	// is replaced.
	Changed() <-chan struct{}
}
