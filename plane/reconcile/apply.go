package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// receive applies one batch of changes to the Target.
func (r *Reconciler[K, V]) receive(ctx context.Context, batch []table.Change[V], ready bool) {
	updates, rows := r.updates, r.rows
	for i := range batch {
		c := &batch[i]
		if c.Deleted && !ready {
			continue // the sweep removes it when the table is complete
		}
		want := c.Row
		if c.Deleted {
			want = nil
		}
		if u, needed := r.update(r.Desired.KeyOf(&c.Value), want); needed {
			updates, rows = append(updates, u), append(rows, c.Row)
		}
	}
	r.apply(ctx, updates, rows)
	clear(updates)
	clear(rows)
	r.updates, r.rows = updates[:0], rows[:0]
}

// update returns the update that one key needs, if any. A nil want means that the key must go.
func (r *Reconciler[K, V]) update(k K, want *table.Row[V]) (Update[K, V], bool) {
	r.retries.remove(k) // this update replaces the retry
	e, has := r.have[k]
	switch {
	case want == nil && !has:
		r.forget(k)
		return Update[K, V]{}, false
	case want == nil:
		return Update[K, V]{Key: k, Old: &e.row.Value, Repair: e.suspect()}, true
	case !has:
		return Update[K, V]{Key: k, New: &want.Value}, true
	case e.fault == nil && r.Target.Same(&e.row.Value, &want.Value):
		if r.Applied.Row(k) == nil {
			r.note(func(s *Stats) { s.Adopted++ })
		}
		r.have[k] = entry[V]{row: want}
		r.setApplied(want, nil)
		return Update[K, V]{}, false
	}
	return Update[K, V]{Key: k, Old: &e.row.Value, New: &want.Value, Repair: e.fault != nil}, true
}

// apply passes updates to the Target in bounded batches and records the results. rows has the desired row of each
// update: for a removal the last one, or nil if there was none.
func (r *Reconciler[K, V]) apply(ctx context.Context, updates []Update[K, V], rows []*table.Row[V]) {
	for len(updates) > 0 && ctx.Err() == nil {
		n := min(len(updates), maxBatch)
		for r.together() && n < len(updates) && r.Together(updates[n-1].Key, updates[n].Key) == 0 {
			n++
		}
		err := r.Target.Apply(ctx, updates[:n])
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			r.targetFailed(programming, err)
		} else {
			r.targetWorks(programming)
		}
		r.note(func(s *Stats) { s.Writes, s.Unclean = s.Writes+uint64(n), r.Target.Unclean() })
		for i := range updates[:n] {
			u := &updates[i]
			if err != nil {
				u.Err = err
			}
			r.record(u, rows[i])
		}
		updates, rows = updates[n:], rows[n:]
	}
}

// record stores the result of one update.
func (r *Reconciler[K, V]) record(u *Update[K, V], row *table.Row[V]) {
	if u.Err == nil {
		if u.New == nil {
			delete(r.have, u.Key)
			r.forget(u.Key)
		} else {
			r.have[u.Key] = entry[V]{row: row}
			r.setApplied(row, nil)
		}
		r.recovered(u)
		return
	}
	if row == nil { // a stray that was never desired
		row = &table.Row[V]{Value: *u.Old}
	}
	p := problemOf(u.Err)
	r.setApplied(row, &p)
	if p.Code == vip.CodeUnsupported { // rejected before any change
		r.Log.Warn("frontend not supported by the dataplane", "key", u.Key, "problem", p.Error())
		if e := r.have[u.Key]; e.suspect() {
			// An earlier update failed half-way and is not retried any more. The resync repairs the value that it had,
			// or should have got.
			r.have[u.Key] = e.with(fault{damage: e.fault.damage})
		}
		return
	}
	e, has := r.have[u.Key]
	if !has {
		e.row = row
	}
	var was fault
	if e.fault != nil {
		was = *e.fault
	}
	tries := was.tries + 1
	r.have[u.Key] = e.with(fault{damage: was.damage, suspect: true, tries: tries})
	wait := r.backoff(tries)
	r.retries.add(u.Key, time.Now().Add(wait))
	level := slog.LevelError
	if tries > 1 { // thousands can fail for one cause; the applied table lists those that still do
		level = slog.LevelDebug
	}
	r.Log.Log(context.Background(), level, "frontend not applied", "key", u.Key, "err", u.Err, "try", tries, "retry_in", wait)
	if _, reported := r.reported[u.Key]; !reported {
		r.reported[u.Key] = struct{}{}
		r.Events.Add(event.Event{Kind: eventError, Service: r.serviceOf(u), Object: fmt.Sprint(u.Key), Message: p.Message})
	}
}

// recovered reports the first success of a key after a reported error.
func (r *Reconciler[K, V]) recovered(u *Update[K, V]) {
	if _, reported := r.reported[u.Key]; !reported {
		return
	}
	delete(r.reported, u.Key)
	message := "the dataplane applies it again"
	if u.New == nil {
		message = "removed from the dataplane"
	}
	r.Log.Info("frontend recovered", "key", u.Key)
	r.Events.Add(event.Event{Kind: eventRecovered, Service: r.serviceOf(u), Object: fmt.Sprint(u.Key), Message: message})
}

// setApplied writes the applied row of a key. A repair of an older revision does not replace the row of a newer
// revision that was rejected.
func (r *Reconciler[K, V]) setApplied(row *table.Row[V], p *vip.Problem) {
	k, now := r.Desired.KeyOf(&row.Value), Applied[V]{Tried: row, At: vip.InstantOf(time.Now()), Problem: p}
	if former := r.Applied.Row(k); former != nil {
		if former.Value.Tried.Rev > row.Rev {
			return
		}
		now.Warning = former.Value.Warning
	}
	r.mark(k, now)
}

// mark writes the applied row of a key, and counts it as failing if the row has a problem.
func (r *Reconciler[K, V]) mark(k K, row Applied[V]) {
	r.Applied.Set(row)
	if row.Problem != nil {
		r.failing[k] = struct{}{}
	} else {
		delete(r.failing, k)
	}
	r.note(func(s *Stats) { s.Failing = len(r.failing) })
}

// forget removes the applied row of a key that is gone.
func (r *Reconciler[K, V]) forget(k K) {
	r.Applied.Delete(k)
	delete(r.failing, k)
	r.note(func(s *Stats) { s.Failing = len(r.failing) })
}

// retry applies the keys with a due retry.
func (r *Reconciler[K, V]) retry(ctx context.Context) {
	due := r.retries.due(time.Now())
	updates := make([]Update[K, V], 0, len(due))
	rows := make([]*table.Row[V], 0, len(due))
	for _, k := range due {
		want := r.Desired.Row(k)
		if want == nil && !r.swept {
			continue
		}
		if u, needed := r.update(k, want); needed {
			updates, rows = append(updates, u), append(rows, want)
		}
	}
	r.apply(ctx, updates, rows)
}

// backoff returns the wait after a number of failures in a row.
func (r *Reconciler[K, V]) backoff(tries int) time.Duration {
	wait := r.MinBackoff
	for range tries - 1 {
		if wait *= 2; wait >= r.MaxBackoff {
			return r.MaxBackoff
		}
	}
	return wait
}

func (r *Reconciler[K, V]) serviceOf(u *Update[K, V]) string {
	if v := cmp.Or(u.New, u.Old); v != nil {
		return r.Service(v)
	}
	return ""
}

// problemOf returns the Problem in err, or err as a Problem.
func problemOf(err error) vip.Problem {
	if p, ok := errors.AsType[vip.Problem](err); ok {
		return p
	}
	return vip.Problem{Code: vip.CodeDataplane, Message: err.Error()}
}
