package fleet

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironvip/ironvip/internal/backoff"
)

const (
	// packOps and packBytes bound a transaction of several batches. They leave room to remove
	// old entries of the journal.
	packOps   = 112
	packBytes = 192 << 10

	commitTimeout = 20 * time.Second // of a Commit
	attempts      = 3                // of a transaction with an unknown outcome
)

// Commit implements Committer. The caller must not change the batches until it returns, and their
// values never. It returns within 20 seconds.
func (t *Tree) Commit(ctx context.Context, batches []*Batch) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	r := &request{ctx: ctx, done: make(chan struct{})}
	jobs := make([]*job, len(batches))
	for i, b := range batches {
		b.Err, b.Indexes = nil, nil
		if err := t.checkBatch(b); err != nil {
			b.Err = err
			continue
		}
		jobs[i] = &job{request: r, writes: b.Writes}
		r.left++
	}
	if r.left == 0 {
		return ctx.Err()
	}
	gone := func() error {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("%w: %w; %w", ErrUnavailable, ErrNoAnswer, ctx.Err())
		}
		return ctx.Err()
	}
	t.writer.add(jobs)
	select {
	case <-r.done:
	case <-ctx.Done():
		return gone()
	case <-t.ended:
		return fmt.Errorf("%w: this agent is ending", ErrUnavailable)
	}
	if r.err != nil {
		return r.err
	}
	for i, j := range jobs {
		if j != nil {
			batches[i].Err, batches[i].Indexes = j.err, j.indexes
		}
	}
	return nil
}

func (t *Tree) checkBatch(b *Batch) error {
	ops, size := 0, 0
	seen := make(map[[2]string]bool, len(b.Writes))
	for _, w := range b.Writes {
		if t.folders[w.Folder] == nil {
			return fmt.Errorf("%w: unknown folder %q", ErrBadBatch, w.Folder)
		}
		if err := checkKey(w.Key); err != nil {
			return fmt.Errorf("%w: %w", ErrBadBatch, err)
		}
		if seen[[2]string{w.Folder, w.Key}] {
			return fmt.Errorf("%w: it names %s/%s twice", ErrBadBatch, w.Folder, w.Key)
		}
		if w.Value == nil && w.Index == 0 {
			return fmt.Errorf("%w: it removes %s/%s with index 0", ErrBadBatch, w.Folder, w.Key)
		}
		seen[[2]string{w.Folder, w.Key}] = true
		ops += w.Ops()
		size += w.size()
	}
	switch {
	case ops == 0:
		return fmt.Errorf("%w: it has no writes", ErrBadBatch)
	case ops > MaxBatch:
		return fmt.Errorf("%w: it has %d operations, more than %d", ErrBadBatch, ops, MaxBatch)
	case size > MaxBatchBytes:
		return fmt.Errorf("%w: it has %d bytes, more than %d", ErrBadBatch, size, MaxBatchBytes)
	}
	return nil
}

func (w Write) path() string { return w.Folder + "/" + w.Key }

func (w Write) size() int { return w.Ops()*(len(w.Folder)+len(w.Key)) + len(w.Value) }

// request is one call of Commit.
type request struct {
	ctx  context.Context
	done chan struct{}
	left int   // unfinished jobs; owned by the writer after add
	err  error // set before done is closed
}

// job is one batch in progress.
type job struct {
	request *request
	writes  []Write
	remove  []Pair // keys of the journal that a sweep removes, instead of writes
	indexes []uint64
	err     error
}

func (j *job) ops() (n int) {
	for _, w := range j.writes {
		n += w.Ops()
	}
	return n + len(j.remove)
}

func (j *job) size() (n int) {
	for _, w := range j.writes {
		n += w.size()
	}
	return n
}

// writer writes the batches of all callers, and packs waiting ones into one transaction. It sends
// one transaction at a time, so that its stream of the journal has no gaps.
type writer struct {
	tree  *Tree
	wake  chan struct{}
	mu    sync.Mutex
	added []*job

	stream *stream // nil if the next transaction begins one
}

// stream is the stream of journal entries that this writer appends to.
type stream struct {
	name    string
	epoch   int // the tree's
	next    uint64
	head    uint64 // the index of the newest entry; 0 for none
	used    time.Time
	entries []streamEntry // in the slots, oldest first
	bytes   int
}

type streamEntry struct {
	seq, index uint64
	bytes      int
}

func newWriter(t *Tree) *writer { return &writer{tree: t, wake: make(chan struct{}, 1)} }

func (w *writer) add(jobs []*job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range jobs {
		if j != nil {
			w.added = append(w.added, j)
		}
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns the waiting jobs and those that were added, without those with an ended context.
func (w *writer) take(waiting []*job) []*job {
	w.mu.Lock()
	waiting = append(waiting, w.added...)
	w.added = nil
	w.mu.Unlock()
	return slices.DeleteFunc(waiting, func(j *job) bool { return j.request.ctx.Err() != nil })
}

func (w *writer) run(ctx context.Context) {
	var waiting []*job
	for ctx.Err() == nil {
		if waiting = w.take(waiting); len(waiting) == 0 {
			select {
			case <-w.wake:
			case <-ctx.Done():
			}
			continue
		}
		if err := w.tree.waitForTouch(ctx); err != nil {
			waiting = fail(waiting, err)
			continue
		}
		var now []*job
		now, waiting = w.pack(waiting)
		again, err := w.transact(ctx, now)
		if err != nil {
			fail(now, fmt.Errorf("%w: %w", ErrUnavailable, err))
			// Their requests' other batches go with them.
			waiting = slices.DeleteFunc(waiting, func(j *job) bool { return j.request.err != nil })
			continue
		}
		waiting = append(again, waiting...)
	}
}

// finish completes a job.
func (j *job) finish(indexes []uint64, err error) {
	j.indexes, j.err = indexes, err
	if j.request.left--; j.request.left == 0 {
		close(j.request.done)
	}
}

// fail ends the requests of the jobs with an error. It returns no jobs.
func fail(jobs []*job, err error) []*job {
	for _, j := range jobs {
		if r := j.request; r.err == nil {
			r.err = err
			close(r.done)
		}
	}
	return nil
}

// waitForTouch waits until the tree is in touch, for GracePeriod. Conditions must not be judged by
// old tables.
func (t *Tree) waitForTouch(ctx context.Context) error {
	touch, since := t.status.inTouch()
	select {
	case <-touch:
		return nil
	default:
	}
	t.kick()
	grace := time.NewTimer(max(GracePeriod-time.Since(since), 200*time.Millisecond))
	defer grace.Stop()
	select {
	case <-touch:
		return nil
	case <-grace.C:
		return fmt.Errorf("%w: %s", ErrUnavailable, t.Stale())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pack chooses the jobs for one transaction: the first one, and those that fit and don't write the
// same keys.
func (w *writer) pack(waiting []*job) (now, later []*job) {
	ops, size := 0, 0
	taken := map[string]bool{}
	for _, j := range waiting {
		fits := len(now) == 0 || ops+j.ops() <= packOps && size+j.size() <= packBytes
		// Batches with a key in common keep their order, even if the first one has to wait.
		if slices.ContainsFunc(j.writes, func(write Write) bool { return taken[write.path()] }) {
			fits = false
		}
		for _, write := range j.writes {
			taken[write.path()] = true
		}
		if !fits {
			later = append(later, j)
			continue
		}
		now, ops, size = append(now, j), ops+j.ops(), size+j.size()
	}
	return now, later
}

// transact writes the jobs, and returns those to be tried again. After an error the outcome is
// unknown.
func (w *writer) transact(ctx context.Context, jobs []*job) (again []*job, err error) {
	t := w.tree
	x := w.prepare(jobs)
	wait := newBackoff()
	for attempt := 1; ; attempt++ {
		again, err = w.attempt(ctx, x)
		if errors.Is(err, ErrNoAnswer) {
			// Waiting jobs fail without a timeout of their own. The follower corrects this if
			// Consul does answer.
			t.setStale(err)
			break
		}
		if err == nil || ctx.Err() != nil || attempt == attempts || !slices.ContainsFunc(jobs, func(j *job) bool { return j.request.ctx.Err() == nil }) {
			break
		}
		t.kick()
		backoff.Sleep(ctx, wait.Next())
		if t.waitForTouch(ctx) != nil {
			break
		}
	}
	if err != nil {
		t.kick()
		w.stream = nil // the transaction may still happen, with this number
	}
	return again, err
}

// transaction is a transaction in progress.
type transaction struct {
	jobs    []*job
	ops     []Op
	of      []place // by operation: its write
	changes []change
	head    []byte // the journal's; nil if nothing changes
	size    int    // bytes of the journal's entry
	stream  *stream
	seq     uint64
	trimmed int // entries of the stream that it removes
	sent    int // attempts
}

type place struct{ job, write int } // job is -1 for the journal's operations

// prepare builds the operations, the journal's first.
func (w *writer) prepare(jobs []*job) *transaction {
	t := w.tree
	x := &transaction{jobs: jobs}
	var ops []Op
	var of []place
	add := func(at place, op Op) { ops, of = append(ops, op), append(of, at) }
	sweeps := false
	for i, j := range jobs {
		j.indexes = make([]uint64, len(j.writes))
		for _, p := range j.remove {
			sweeps = true
			add(place{i, -1}, Op{Verb: DeleteCas, Key: p.Key, Index: p.Index})
		}
		for k, write := range j.writes {
			at, key := place{i, k}, t.paths.tree+write.path()
			if write.Value == nil {
				// Consul accepts the removal of a key that doesn't exist.
				add(at, Op{Verb: CheckIndex, Key: key, Index: write.Index})
				add(at, Op{Verb: DeleteCas, Key: key, Index: write.Index})
			} else if e, _, ok := t.folders[write.Folder].rows.Get(write.Key); ok && e.Index == write.Index && bytes.Equal(e.Value, write.Value) {
				// Consul keeps the index of a value that is written again unchanged.
				add(at, Op{Verb: CheckIndex, Key: key, Index: write.Index})
				j.indexes[k] = write.Index
				continue
			} else {
				add(at, Op{Verb: Cas, Key: key, Index: write.Index, Value: write.Value})
			}
			x.changes = append(x.changes, change{path: write.path(), value: write.Value})
		}
	}
	if len(x.changes) > 0 || sweeps {
		w.journal(x, len(ops))
	}
	for range x.ops {
		x.of = append(x.of, place{-1, -1})
	}
	x.ops, x.of = append(x.ops, ops...), append(x.of, of...)
	return x
}

// journal adds the operations on the journal: the stream's head, the new entry in its slot, and, as
// far as they fit, removals of old entries that make the stream too large.
func (w *writer) journal(x *transaction, others int) {
	t, now := w.tree, time.Now()
	t.mu.Lock()
	epoch := t.epoch
	t.mu.Unlock()
	if w.stream == nil || w.stream.epoch != epoch || now.Sub(w.stream.used) > idleStream {
		w.stream = &stream{name: rand.Text()[:12], epoch: epoch, next: 1, used: now}
	}
	l := w.stream
	x.stream, x.seq = l, l.next
	head, whole := encodeEntry(t.o.Node, x.seq, l.head, x.changes)
	x.head, x.size = head, len(whole)
	var over uint64 // index of the entry that it overwrites
	if len(l.entries) == streamSlots {
		over = l.entries[0].index
		x.trimmed++
	}
	x.ops = append(x.ops, Op{Verb: Cas, Key: t.paths.head(l.name), Index: l.head, Value: head},
		Op{Verb: Cas, Key: t.paths.slot(l.name, x.seq), Index: over, Value: whole})
	reused, size := x.trimmed, l.bytes+x.size
	for n, old := range l.entries {
		if n >= reused {
			if size <= maxStreamBytes || n-reused == MaxBatch-others {
				break
			}
			x.ops = append(x.ops, Op{Verb: DeleteCas, Key: t.paths.slot(l.name, old.seq), Index: old.index})
			x.trimmed = n + 1
		}
		size -= old.bytes
	}
}

// attempt sends the transaction, and applies its outcome.
func (w *writer) attempt(ctx context.Context, x *transaction) (again []*job, err error) {
	t := w.tree
	if err := t.reading.take(ctx); err != nil {
		return nil, err
	}
	defer t.reading.give()
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	x.sent++
	out, err := t.o.KV.Txn(call, x.ops)
	if err != nil {
		if call.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", ErrNoAnswer, err)
		}
		return nil, err
	}
	if len(out.Refused) == 0 {
		w.done(x, out.Index)
		return nil, nil
	}
	if x.head != nil && refusesHead(out) {
		if happened, err := w.happened(call, x); happened || err != nil {
			return nil, err
		}
	} else if x.head != nil && x.sent > 1 {
		if happened, err := w.fence(call, x); happened || err != nil {
			return nil, err
		}
	}
	refused := map[int]map[int]bool{} // writes by job
	for _, r := range out.Refused {
		if r.Op < 0 || r.Op >= len(x.of) {
			return nil, fmt.Errorf("answer invalid: it names operation %d of %d", r.Op, len(x.of))
		}
		at := x.of[r.Op]
		if at.job < 0 { // something else has written to the stream
			w.stream = nil
			continue
		}
		if refused[at.job] == nil {
			refused[at.job] = map[int]bool{}
		}
		refused[at.job][at.write] = true
	}
	return w.conflicts(call, x, refused)
}

// refusesHead reports whether the write of the stream's head failed, which is a transaction's first
// operation.
func refusesHead(out Outcome) bool {
	return slices.ContainsFunc(out.Refused, func(r Refusal) bool { return r.Op == 0 })
}

// happened finds out why the head was refused. No other host writes to the stream, so an earlier
// attempt has succeeded; its outcome is applied. After an error that is unknown.
func (w *writer) happened(ctx context.Context, x *transaction) (bool, error) {
	pair, _, err := w.tree.o.KV.Get(ctx, x.ops[0].Key, Query{Consistent: true})
	switch {
	case err != nil:
		return false, err
	case pair != nil && bytes.Equal(pair.Value, x.head):
		w.done(x, pair.Index)
		return true, nil
	case x.sent > 1:
		// Something else has written to the stream, so the earlier attempt left no trace.
		return false, errors.New("outcome unknown: an attempt got no answer, and the next was refused")
	}
	return false, nil
}

// fence makes sure that no earlier attempt of a refused transaction can still succeed. An attempt
// without an answer may be delayed, for example in a server without a leader, and its conditions
// may hold when it arrives. The fence writes an entry without changes with the transaction's
// number, so the attempt then has the wrong head. It reports whether an attempt has succeeded
// before.
func (w *writer) fence(ctx context.Context, x *transaction) (happened bool, err error) {
	f := &transaction{}
	w.journal(f, 0)
	if f.stream != x.stream {
		return false, errors.New("outcome unknown: an attempt got no answer, and the stream was replaced since")
	}
	out, err := w.tree.o.KV.Txn(ctx, f.ops)
	switch {
	case err != nil:
		return false, err
	case len(out.Refused) > 0:
		return w.happened(ctx, x)
	}
	w.done(f, out.Index)
	return false, nil
}

// done applies a successful transaction to the tables, and completes its jobs.
func (w *writer) done(x *transaction, index uint64) {
	t, l := w.tree, x.stream
	if x.head != nil {
		for _, old := range l.entries[:x.trimmed] {
			l.bytes -= old.bytes
		}
		l.entries = append(slices.Clone(l.entries[x.trimmed:]), streamEntry{x.seq, index, x.size})
		l.bytes += x.size
		l.next, l.head, l.used = x.seq+1, index, time.Now()
	}
	t.mu.Lock()
	if x.head != nil {
		t.own = ownHead{l.name, x.seq, index}
	}
	for _, c := range x.changes {
		c.index = index
		t.apply(c)
	}
	t.high = max(t.high, index)
	t.mu.Unlock()
	for _, j := range x.jobs {
		for k, write := range j.writes {
			if write.Value != nil && j.indexes[k] == 0 {
				j.indexes[k] = index
			}
		}
		j.finish(j.indexes, nil)
	}
}

// conflicts reads the keys of the refused writes, completes their jobs with a ConflictError, and
// returns the other jobs.
func (w *writer) conflicts(ctx context.Context, x *transaction, refused map[int]map[int]bool) (again []*job, err error) {
	t := w.tree
	defer t.lookUp()()
	var mu sync.Mutex
	var actual []change
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelGets)
	for i, writes := range refused {
		for k := range writes {
			if k < 0 {
				continue
			}
			group.Go(func() error {
				c, err := t.get(ctx, x.jobs[i].writes[k].path())
				mu.Lock()
				defer mu.Unlock()
				actual = append(actual, c)
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	t.mu.Lock()
	for _, c := range actual {
		t.apply(c)
	}
	t.mu.Unlock()
	for i, j := range x.jobs {
		writes := refused[i]
		if writes == nil {
			again = append(again, j)
			continue
		}
		conflict := &ConflictError{}
		for k, write := range j.writes {
			if writes[k] {
				conflict.Writes = append(conflict.Writes, write)
			}
		}
		j.finish(nil, conflict)
	}
	return again, nil
}

// sweep removes the rest of an idle stream.
func (w *writer) sweep(ctx context.Context, idle []Pair) {
	w.add([]*job{{request: &request{ctx: ctx, done: make(chan struct{}), left: 1}, remove: idle}})
}
