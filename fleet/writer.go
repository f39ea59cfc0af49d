package fleet

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/treelog"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/wake"
)

// packBytes bounds a transaction of several batches, so that readers find most of its values in the
// log.
const packBytes = treelog.MaxEntry

// writer writes the batches of all callers, and packs waiting ones into one transaction. It sends
// one transaction at a time.
type writer struct {
	tree  *Tree
	wake  wake.Signal
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
	return &writer{tree: t, wake: wake.New(), id: rand.Text()[:10], collisions: backoff.Backoff{Lo: minCollisionPause, Hi: maxCollisionPause}}
}

func (w *writer) add(jobs []*job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range jobs {
		if j != nil {
			w.added = append(w.added, j)
		}
	}
	w.wake.Set()
}

// take returns the waiting jobs and those that were added, without those with an ended context.
func (w *writer) take(waiting []*job) []*job {
	w.mu.Lock()
	waiting = append(waiting, w.added...)
	w.added = nil
	w.mu.Unlock()
	waiting = slices.DeleteFunc(waiting, func(j *job) bool { return j.request.ctx.Err() != nil })
	return w.refuseOutdated(waiting)
}

// refuseOutdated completes the jobs that expect an older version than the tables have, and returns
// the others. Consul would refuse them, and each refused key would be read. Hosts that write the same
// keys after the same event often collide.
func (w *writer) refuseOutdated(waiting []*job) []*job {
	t := w.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.DeleteFunc(waiting, func(j *job) bool {
		conflict := &ConflictError{}
		for _, write := range j.writes {
			e, _, exists := t.folders[write.Folder].rows.Get(write.Key)
			removed := !exists && write.Index > 0 && t.known.index[write.path()] > write.Index
			if exists && e.Index > write.Index || removed {
				conflict.Writes = append(conflict.Writes, write)
			}
		}
		if len(conflict.Writes) == 0 {
			return false
		}
		j.finish(nil, conflict)
		return true
	})
}

func (w *writer) run(ctx context.Context) {
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), kv.EndTimeout)
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

// waitForTouch waits until the tree is in touch, for GracePeriod. Conditions must not be judged by
// old tables.
func (t *Tree) waitForTouch(ctx context.Context) error {
	touch, since := t.status.InTouch()
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

// manyEdits is how many paths hosts read one by one. More cost Consul more than one read of the tree,
// with a snapshot of it for each host.
const manyEdits = 256

// publish appends paths to the log that were written without it, so that other hosts read them, and
// the digests of the tables. The digests have been compared with the tree at that index.
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
