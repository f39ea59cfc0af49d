// Package store is the agent's durable memory: one bbolt file, state_dir/ironvip.db.
//
// It keeps JSON values under string keys in named buckets. Each write is on disk (fsynced) when it
// returns, and concurrent writers share one fsync. Every value has a checksum, an index has the
// number and the sum of all checksums of each bucket, and opening reads the whole file: damage is
// an error with a hint and never a crash or a silent loss. One process owns the file at a time; a
// second one gets ErrLocked. A failed write changes nothing and leaves the file usable.
//
// Source code organization: store.go (DB and its writes), bucket.go (typed buckets), open.go,
// fileid.go (whether the path still names the open file), index.go (counts and checksums), verify.go
// (references between pages), check.go.
package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/vip"
)

// FileName is the state file's name in the state directory.
const FileName = "ironvip.db"

// The errors of a state file. Test with errors.Is.
var (
	// ErrLocked means that another process has the file open.
	ErrLocked = errors.New("in use by another process")
	// ErrDamaged means that the file's content can't be trusted.
	ErrDamaged = errors.New("damaged")
	// ErrUnavailable means that a write did not happen. A retry may help.
	ErrUnavailable = errors.New("state not writable now")
	// ErrDisplaced means that another file, or none, has the path of the open file.
	ErrDisplaced = errors.New("deleted or replaced while in use")
)

// Error is the error type of this package. errors.As finds it as an *Error and as the vip.Problem
// in it, which has the hint.
type Error struct {
	vip.Problem
	Err  error
	Keys []string // from Bucket.All: the keys of all values that can't be read
}

// Unwrap returns the problem and the cause for errors.Is and errors.As.
func (e *Error) Unwrap() []error { return []error{e.Problem, e.Err} }

// Unreadable returns Keys, for callers that know the error by its methods.
func (e *Error) Unreadable() []string { return e.Keys }

// DB is an open state file. Its methods and those of its buckets may be called from any goroutine.
type DB struct {
	path string
	bolt *bbolt.DB

	queue struct {
		sync.Mutex
		waiting []*batch
	}
	writer  sync.Mutex       // held by the goroutine that commits
	tallies map[string]tally // the index; written with writer held
	file    *os.File         // the file that bbolt uses
	opened  os.FileInfo      // identifies it
	broken  atomic.Pointer[Error]
	failing atomic.Pointer[error] // the error of a failed write; see Failing
	failed  wake.Signal           // see Failed
}

// batch is the writes of one caller, which are applied all or none.
type batch struct {
	writes []write
	done   bool
	err    error
}

type write struct {
	bucket     string
	key, value []byte // a nil value deletes
}

// Path returns the file's path.
func (d *DB) Path() string { return d.path }

// Close waits for the writes under way and releases the file.
func (d *DB) Close() error {
	d.writer.Lock()
	defer d.writer.Unlock()
	if d.broken.Load() != nil {
		return release(d.file) // bbolt would wait for locks that are never released
	}
	if err := d.bolt.Close(); err != nil {
		return fmt.Errorf("close state file %s: %w", d.path, err)
	}
	return nil
}

// commit makes writes durable, all or none. The goroutine that holds the writer lock commits the
// writes of all waiting callers in one transaction.
func (d *DB) commit(writes []write) error {
	if len(writes) == 0 {
		return nil
	}
	b := &batch{writes: writes}
	d.queue.Lock()
	d.queue.waiting = append(d.queue.waiting, b)
	d.queue.Unlock()

	d.writer.Lock()
	defer d.writer.Unlock()
	if b.done {
		return b.err
	}
	d.queue.Lock()
	group := d.queue.waiting
	d.queue.waiting = nil
	d.queue.Unlock()

	err := d.transact(group...)
	for _, g := range group {
		if g.done, g.err = true, err; err != nil && len(group) > 1 {
			g.err = d.transact(g) // a smaller write may still fit
		}
	}
	return b.err
}

// transact runs one bbolt transaction. The caller holds d.writer.
func (d *DB) transact(group ...*batch) error {
	tallies := map[string]tally{} // of the buckets that are written
	err := d.guard(func() error {
		if err := d.displaced(); err != nil {
			return err
		}
		return d.bolt.Update(func(tx *bbolt.Tx) error {
			for _, b := range group {
				for _, w := range b.writes {
					t, again := tallies[w.bucket]
					if !again {
						t = d.tallies[w.bucket]
					}
					if err := w.apply(tx, &t); err != nil {
						return fmt.Errorf("%s %q: %w", w.bucket, w.key, err)
					}
					tallies[w.bucket] = t
				}
			}
			index := tx.Bucket([]byte(indexName))
			for name, t := range tallies {
				if err := putIndex(index, name, t); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		err = d.writeError(err)
		if d.failing.Swap(&err) == nil {
			d.failed.Set()
		}
		return err
	}
	maps.Copy(d.tallies, tallies)
	return nil
}

// Failed receives a value after the first failed write, and again after the first one since Failing
// returned nil. It is for one receiver, which then calls Failing.
func (d *DB) Failed() <-chan struct{} { return d.failed }

// probeSize is the size of Failing's test write. It exceeds the free pages that the file may have
// on a full disk, where small writes succeed and larger ones fail.
const probeSize = 64 << 10

// Failing returns why writes fail: another file has the path now, or an earlier write has failed and
// a test write still fails.
func (d *DB) Failing() error {
	if err := d.displaced(); err != nil {
		return err
	}
	if d.failing.Load() == nil {
		return nil
	}
	probe := NewBucket[string](d, "probe")
	if err := cmp.Or(probe.Put("probe", strings.Repeat("x", probeSize)), probe.Delete("probe")); err != nil {
		return err
	}
	d.failing.Store(nil)
	return nil
}

// apply performs one write and counts it in its bucket's tally. A value that is stored already costs no page.
func (w *write) apply(tx *bbolt.Tx, t *tally) error {
	bucket, err := tx.CreateBucketIfNotExists([]byte(w.bucket))
	if err != nil {
		return err
	}
	was := bucket.Get(w.key)
	if w.value != nil && bytes.Equal(was, w.value) {
		return nil
	}
	t.remove(was)
	t.add(w.value)
	if w.value == nil {
		return bucket.Delete(w.key)
	}
	return bucket.Put(w.key, w.value)
}

// guard runs f, which uses bbolt. A panic or memory fault in f means that another program changed
// the file. guard returns it as an error, and no later call uses bbolt: its locks are still taken,
// and its list of free pages may be wrong, so that its writes would spread the damage.
func (d *DB) guard(f func() error) (err error) {
	if broken := d.broken.Load(); broken != nil {
		return broken
	}
	defer func() {
		if r := recover(); r != nil {
			broken := damaged(d.path, fmt.Sprintf("changed while in use: %v", r))
			d.broken.Store(broken)
			err = broken
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	return f()
}

func (d *DB) writeError(err error) error {
	var known *Error
	if errors.As(err, &known) {
		return &Error{Problem: known.Problem, Err: fmt.Errorf("%w: %w", ErrUnavailable, known.Err)}
	}
	p := vip.Problem{Code: vip.CodeStore, Place: d.path, Message: "write state: " + err.Error()}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		p.Message = "write state: the disk is full"
		p.Hint = "free some space; the write is tried again"
	case errors.Is(err, berrors.ErrDatabaseNotOpen):
		p.Message = "write state: the file is closed"
	case errors.Is(err, syscall.EROFS):
		p.Hint = "the file system is mounted read-only: see dmesg"
	}
	return &Error{Problem: p, Err: fmt.Errorf("%w: %w", ErrUnavailable, err)}
}

func damaged(path, what string) *Error {
	return &Error{
		Problem: vip.Problem{
			Code: vip.CodeStore, Place: path, Message: "the state file is damaged: " + what,
			Hint: "stop the agent and put a backup in its place, or move the file away to start without leases: " +
				"services then may get other addresses",
		},
		Err: ErrDamaged,
	}
}
