package fleet

import (
	"context"
	"errors"
	"sync"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/treekv"
	"github.com/ironvip/ironvip/fleet/treelog"
	"github.com/ironvip/ironvip/internal/parallel"
)

// catchUp reads the log directly before an attempt after a collision. If it fails, so does the
// attempt.
func (w *writer) catchUp(ctx context.Context) {
	t := w.tree
	if t.reading.take(ctx) != nil {
		return
	}
	defer t.reading.give()
	ctx, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	_, _, _ = w.readLog(ctx, t.position())
}

// readLog brings the tables up to the log's head. It returns the entries after a
// position. It isn't ok if the log doesn't go on from there.
func (w *writer) readLog(ctx context.Context, from treelog.Position) (entries []treelog.Entry, ok bool, err error) {
	t := w.tree
	head, _, err := t.o.KV.Get(ctx, t.keys.Head, kv.Query{Consistent: true})
	if err != nil {
		return nil, false, err
	}
	switch entries, ok, err = t.store.Since(ctx, from, head, kv.Query{Consistent: true}); {
	case err != nil:
	case !ok:
		t.kick() // the follower reads the whole tree, and the jobs wait for that
	default:
		t.mu.Lock()
		defer t.mu.Unlock()
		t.advance(entries)
	}
	return entries, ok, err
}

// overtaken reads the log after another entry than the expected one was found at the head, and an
// earlier attempt got no answer. It reports whether that attempt has succeeded, and applies its
// outcome then. After an error that is unknown.
func (w *writer) overtaken(ctx context.Context, x *transaction) (happened bool, err error) {
	// From the transaction's own position: the follower may have applied its entry already.
	entries, ok, err := w.readLog(ctx, x.after)
	switch {
	case err != nil:
		return false, err
	case !ok:
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
	group, ctx := parallel.NewGroup(ctx)
	group.SetLimit(treekv.ParallelGets)
	for i, writes := range refused {
		for k := range writes {
			if k < 0 {
				continue
			}
			group.Go(func() error {
				c, err := t.store.Value(ctx, x.jobs[i].writes[k].path())
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
