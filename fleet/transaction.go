package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/treelog"
	"github.com/ironvip/ironvip/internal/backoff"
)

// attempts is how often a transaction with an unknown outcome is sent.
const attempts = 3

// transact writes the jobs, and returns those to be tried again. After an error the outcome is
// unknown.
func (w *writer) transact(ctx context.Context, jobs []*job) (again []*job, err error) {
	t := w.tree
	x := w.prepare(jobs)
	wait := kv.NewBackoff()
	for attempt := 1; ; attempt++ {
		again, err = w.attempt(ctx, x)
		if errors.Is(err, ErrNoAnswer) {
			// Waiting jobs fail without a timeout of their own. The follower corrects this if
			// The store does answer, so it must ask, even if it has just done so.
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
	ops     []kv.Op
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
	var ops []kv.Op
	var of []place
	add := func(at place, op kv.Op) { ops, of = append(ops, op), append(of, at) }
	logged, withDigests := false, false
	for i, j := range jobs {
		j.indexes = make([]uint64, len(j.writes))
		withDigests, x.content.Cut = withDigests || j.digests, x.content.Cut || j.cut
		logged = logged || j.alone()
		for _, path := range j.fetch {
			x.content.Changes = append(x.content.Changes, treelog.Change{Path: path, Fetch: true})
		}
		for k, write := range j.writes {
			at, key := place{i, k}, t.keys.Tree+write.path()
			if write.Check {
				verb := kv.CheckIndex
				if write.Index == 0 {
					verb = kv.CheckGone
				}
				add(at, kv.Op{Verb: verb, Key: key, Index: write.Index})
				continue
			}
			if write.Value == nil {
				// Consul accepts the removal of a key that doesn't exist.
				add(at, kv.Op{Verb: kv.CheckIndex, Key: key, Index: write.Index})
				add(at, kv.Op{Verb: kv.DeleteCas, Key: key, Index: write.Index})
			} else if e, _, ok := t.folders[write.Folder].rows.Get(write.Key); ok && e.Index == write.Index && bytes.Equal(e.Value, write.Value) {
				// Consul keeps the index of a value that is written again unchanged.
				add(at, kv.Op{Verb: kv.CheckIndex, Key: key, Index: write.Index})
				j.indexes[k] = write.Index
				continue
			} else {
				add(at, kv.Op{Verb: kv.Cas, Key: key, Index: write.Index, Value: write.Value})
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
	x.ops = append(x.ops, kv.Op{Verb: kv.Cas, Key: t.keys.Head, Index: after.Index, Value: head},
		kv.Op{Verb: kv.Set, Key: t.keys.Slot(x.entry.Seq), Value: whole})
}

// attempt sends the transaction, and applies its outcome.
func (w *writer) attempt(ctx context.Context, x *transaction) (again []*job, err error) {
	t := w.tree
	if err := t.reading.take(ctx); err != nil {
		return nil, err
	}
	defer t.reading.give()
	call, cancel := context.WithTimeout(ctx, kv.CallTimeout)
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
func refuses(out kv.Outcome, op int) bool {
	return slices.ContainsFunc(out.Refused, func(r kv.Refusal) bool { return r.Op == op })
}
