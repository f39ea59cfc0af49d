package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// commitTimeout is the timeout of a Commit.
const commitTimeout = 20 * time.Second

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
			return fmt.Errorf("%w: %w", ErrUnavailable, ErrNoAnswer)
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

// checkKey validates a key of a folder.
func checkKey(key string) error {
	switch {
	case key == "":
		return errors.New("a key is empty")
	case len(key) > MaxKey:
		return fmt.Errorf("key %.40q... has %d bytes, more than %d", key, len(key), MaxKey)
	case !utf8.ValidString(key) || strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("key %q has characters that can't be shown", key)
	case strings.HasPrefix(key, "/") || strings.HasSuffix(key, "/"):
		return fmt.Errorf("key %q begins or ends with a slash", key)
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
