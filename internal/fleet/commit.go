package fleet

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/fleet/treelog"
)

const (
	// packBytes bounds a transaction of several batches, so that readers find most of its values in
	// the log.
	packBytes = treelog.MaxEntry

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
		if w.Check && w.Value != nil {
			return fmt.Errorf("%w: its condition on %s/%s has a value", ErrBadBatch, w.Folder, w.Key)
		}
		if w.Value == nil && w.Index == 0 && !w.Check {
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
	fetch   []string // instead of writes: paths that other hosts must read
	digests bool     // instead of writes: the digests of the tables
	cut     bool     // instead of writes: all other hosts must read the tree
	search  uint64   // with digests and cut: the tree's index when it was compared with the tables
	indexes []uint64
	err     error
}

// alone reports whether the job gets an entry of its own.
func (j *job) alone() bool { return j.digests || j.cut }

// ops counts a path to be read as one, so that a transaction's entry in the log is bounded.
func (j *job) ops() (n int) {
	n = len(j.fetch)
	for _, w := range j.writes {
		n += w.Ops()
	}
	return n
}

func (j *job) size() (n int) {
	for _, w := range j.writes {
		n += w.size()
	}
	return n
}

// writer writes the batches of all callers, and packs waiting ones into one transaction. It sends
// one transaction at a time.
type writer struct {
	tree  *Tree
	wake  chan struct{}
	mu    sync.Mutex
	added []*job

	id         string // of this writer: the beginning of its transactions' IDs
	number     uint64 // of its transactions
	collided   bool   // the last attempt was refused because of another host's transaction
	collisions backoff.Backoff
	turn       turn
}

// Bounds of the pause after a collision with another host's transaction. Consul takes a few
// milliseconds for one. With 1,000 hosts that write at once, the longest pauses let each write
// after some seconds.
const (
	minCollisionPause = 2 * time.Millisecond
	maxCollisionPause = 500 * time.Millisecond
)

func newWriter(t *Tree) *writer {
	return &writer{tree: t, wake: make(chan struct{}, 1), id: rand.Text()[:10], collisions: backoff.Backoff{Lo: minCollisionPause, Hi: maxCollisionPause}}
}

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
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), consulkv.EndTimeout)
		defer cancel()
		w.endTurn(end, false)
	}()
	var waiting []*job
	for ctx.Err() == nil {
		if waiting = w.take(waiting); len(waiting) == 0 {
			w.endTurn(ctx, false)
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
		if w.collided {
			if !w.collide(ctx) {
				backoff.Sleep(ctx, w.collisions.Next())
			}
			w.catchUp(ctx)
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
		fits := len(now) == 0 || ops+j.ops() <= MaxBatch && size+j.size() <= packBytes && !j.alone() && !now[0].alone()
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
	wait := consulkv.NewBackoff()
	for attempt := 1; ; attempt++ {
		again, err = w.attempt(ctx, x)
		if errors.Is(err, ErrNoAnswer) {
			// Waiting jobs fail without a timeout of their own. The follower corrects this if
			// Consul does answer, so it must ask, even if it has just done so.
			t.setStale(err)
			t.mu.Lock()
			t.interrupt()
			t.mu.Unlock()
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
	}
	return again, err
}

// transaction is a transaction in progress.
type transaction struct {
	jobs    []*job
	ops     []consulkv.Op
	of      []place          // by operation: its write
	content treelog.Content  // of its entry
	after   treelog.Position // in the log
	entry   treelog.Position // its own entry; its index is known once it has happened; zero if nothing changes
	sent    int              // attempts
}

type place struct{ job, write int } // job is -1 for the log's operations

// prepare builds the operations, the log's first.
func (w *writer) prepare(jobs []*job) *transaction {
	t := w.tree
	x := &transaction{jobs: jobs}
	var ops []consulkv.Op
	var of []place
	add := func(at place, op consulkv.Op) { ops, of = append(ops, op), append(of, at) }
	logged, withDigests := false, false
	for i, j := range jobs {
		j.indexes = make([]uint64, len(j.writes))
		withDigests, x.content.Cut = withDigests || j.digests, x.content.Cut || j.cut
		logged = logged || j.alone()
		for _, path := range j.fetch {
			x.content.Changes = append(x.content.Changes, treelog.Change{Path: path, Fetch: true})
		}
		for k, write := range j.writes {
			at, key := place{i, k}, t.paths.tree+write.path()
			if write.Check {
				verb := consulkv.CheckIndex
				if write.Index == 0 {
					verb = consulkv.CheckGone
				}
				add(at, consulkv.Op{Verb: verb, Key: key, Index: write.Index})
				continue
			}
			if write.Value == nil {
				// Consul accepts the removal of a key that doesn't exist.
				add(at, consulkv.Op{Verb: consulkv.CheckIndex, Key: key, Index: write.Index})
				add(at, consulkv.Op{Verb: consulkv.DeleteCas, Key: key, Index: write.Index})
			} else if e, _, ok := t.folders[write.Folder].rows.Get(write.Key); ok && e.Index == write.Index && bytes.Equal(e.Value, write.Value) {
				// Consul keeps the index of a value that is written again unchanged.
				add(at, consulkv.Op{Verb: consulkv.CheckIndex, Key: key, Index: write.Index})
				j.indexes[k] = write.Index
				continue
			} else {
				add(at, consulkv.Op{Verb: consulkv.Cas, Key: key, Index: write.Index, Value: write.Value})
			}
			x.content.Changes = append(x.content.Changes, treelog.Change{Path: write.path(), Value: write.Value})
		}
	}
	if logged || len(x.content.Changes) > 0 {
		t.mu.Lock()
		after := t.at
		if withDigests {
			x.content.Digests = t.digests()
		}
		t.mu.Unlock()
		w.appendTo(x, after)
		x.ops = append(x.ops, w.turnCondition())
	}
	for range x.ops {
		x.of = append(x.of, place{-1, -1})
	}
	x.ops, x.of = append(x.ops, ops...), append(x.of, of...)
	return x
}

// appendTo adds the operations on the log: the new head, which requires the one at the position,
// and the new entry in the ring.
func (w *writer) appendTo(x *transaction, after treelog.Position) {
	t := w.tree
	w.number++
	x.after = after
	x.entry = treelog.Position{Seq: after.Seq + 1, ID: w.id + "-" + strconv.FormatUint(w.number, 10)}
	head, whole := treelog.Encode(t.o.Node, x.entry.ID, after, x.content)
	x.ops = append(x.ops, consulkv.Op{Verb: consulkv.Cas, Key: t.paths.head, Index: after.Index, Value: head},
		consulkv.Op{Verb: consulkv.Set, Key: t.paths.slot(x.entry.Seq), Value: whole})
}

// attempt sends the transaction, and applies its outcome.
func (w *writer) attempt(ctx context.Context, x *transaction) (again []*job, err error) {
	t := w.tree
	if err := t.reading.take(ctx); err != nil {
		return nil, err
	}
	defer t.reading.give()
	call, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	x.sent++
	w.collided = false
	out, err := t.o.KV.Txn(call, x.ops)
	if err != nil {
		if call.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", ErrNoAnswer, err)
		}
		return nil, err
	}
	if len(out.Refused) == 0 {
		if w.collisions.Reset(); x.entry.Seq != 0 {
			w.endTurn(ctx, true)
		}
		w.done(x, out.Index)
		return nil, nil
	}
	if logged := x.entry.Seq != 0; logged {
		switch {
		case x.sent == 1:
		case refuses(out, headOp):
			if happened, err := w.overtaken(call, x); happened || err != nil {
				if happened {
					w.collisions.Reset()
					w.endTurn(ctx, true)
				}
				return nil, err
			}
		default:
			if happened, err := w.fence(call, x); happened || err != nil {
				return nil, err
			}
		}
		if w.collided = refuses(out, headOp) || refuses(out, turnOp); w.collided {
			return x.jobs, nil
		}
	}
	refused := map[int]map[int]bool{} // writes by job
	for _, r := range out.Refused {
		if r.Op < 0 || r.Op >= len(x.of) {
			return nil, fmt.Errorf("answer invalid: it names operation %d of %d", r.Op, len(x.of))
		}
		at := x.of[r.Op]
		if at.job < 0 {
			continue
		}
		if refused[at.job] == nil {
			refused[at.job] = map[int]bool{}
		}
		refused[at.job][at.write] = true
	}
	return w.conflicts(call, x, refused)
}

// Operations on the log in a transaction that writes to the tree.
const (
	headOp = 0
	turnOp = 2
)

// refuses reports whether an operation failed.
func refuses(out consulkv.Outcome, op int) bool {
	return slices.ContainsFunc(out.Refused, func(r consulkv.Refusal) bool { return r.Op == op })
}

// catchUp reads the log directly before an attempt after a collision. If it fails, so does the
// attempt.
func (w *writer) catchUp(ctx context.Context) {
	t := w.tree
	if t.reading.take(ctx) != nil {
		return
	}
	defer t.reading.give()
	ctx, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	_, _, _ = w.readLog(ctx, t.position())
}

// readLog brings the tables up to the log's head. It returns the entries after a position.
func (w *writer) readLog(ctx context.Context, from treelog.Position) (entries []treelog.Entry, v verdict, err error) {
	t := w.tree
	head, _, err := t.o.KV.Get(ctx, t.paths.head, consulkv.Query{Consistent: true})
	if err != nil {
		return nil, inStep, err
	}
	switch entries, v, err = t.since(ctx, from, head, consulkv.Query{Consistent: true}); {
	case err != nil:
	case v != inStep:
		t.kick() // the follower reads the whole tree, and the jobs wait for that
	default:
		t.mu.Lock()
		defer t.mu.Unlock()
		t.advance(entries)
	}
	return entries, v, err
}

// overtaken reads the log after another entry than the expected one was found at the head, and an
// earlier attempt got no answer. It reports whether that attempt has succeeded, and applies its
// outcome then. After an error that is unknown.
func (w *writer) overtaken(ctx context.Context, x *transaction) (happened bool, err error) {
	// From the transaction's own position: the follower may have applied its entry already.
	entries, v, err := w.readLog(ctx, x.after)
	switch {
	case err != nil:
		return false, err
	case v != inStep:
		return false, errors.New("outcome unknown: an attempt got no answer, and the log doesn't reach back to it")
	}
	for _, e := range entries {
		if e.ID == x.entry.ID {
			w.done(x, e.Index)
			return true, nil
		}
	}
	return false, nil
}

// fence makes sure that no earlier attempt of a refused transaction can still succeed. An attempt
// without an answer may be delayed, for example in a server without a leader, and its conditions
// may hold when it arrives. The fence appends an entry without changes in its place, so the attempt
// then finds another head. It reports whether an attempt has succeeded before.
func (w *writer) fence(ctx context.Context, x *transaction) (happened bool, err error) {
	f := &transaction{}
	w.appendTo(f, x.after)
	out, err := w.tree.o.KV.Txn(ctx, f.ops)
	switch {
	case err != nil:
		return false, err
	case len(out.Refused) > 0: // another entry is there, which is as good
		return w.overtaken(ctx, x)
	}
	w.done(f, out.Index)
	return false, nil
}

// done applies a successful transaction to the tables, and completes its jobs.
func (w *writer) done(x *transaction, index uint64) {
	t := w.tree
	t.mu.Lock()
	if x.entry.Index = index; x.entry.Seq == t.at.Seq+1 {
		t.at = x.entry
	}
	for _, c := range x.content.Changes {
		if !c.Fetch {
			c.Index = index
			t.apply(c)
		}
	}
	t.high = max(t.high, index)
	for _, j := range x.jobs {
		switch {
		case !j.alone():
		case j.digests && x.content.Digests == nil: // the tables were ahead of the log, and no longer are
			w.publish(nil, j.search)
		default:
			t.compared.searched = j.search
		}
	}
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
	var actual []treelog.Change
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

// manyEdits is how many paths hosts read one by one. More cost Consul more than one read of the tree,
// with a snapshot of it for each host.
const manyEdits = 256

// publish appends paths to the log that were written without it, so that other hosts read them, and
// the digests of the tables. Those have been compared with the tree at that index.
func (w *writer) publish(paths []string, index uint64) {
	var jobs []*job
	add := func(j job) {
		j.request = &request{ctx: context.Background(), done: make(chan struct{}), left: 1}
		jobs = append(jobs, &j)
	}
	if len(paths) > manyEdits {
		add(job{cut: true, search: index})
	} else {
		for some := range slices.Chunk(paths, MaxBatch) {
			add(job{fetch: some})
		}
		add(job{digests: true, search: index})
	}
	w.add(jobs)
}
