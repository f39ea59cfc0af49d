package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// take brings one batch of changes to the Target.
func (r *Reconciler[K, V]) take(ctx context.Context, batch []table.Change[V], ready bool) {
	updates, rows := r.updates, r.rows
	for i := range batch {
		c := &batch[i]
		if c.Deleted && !ready {
			continue // the sweep takes it, once it is known that nobody else wants it
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

// update decides what, if anything, the Target must be asked for one key. Want
// is nil where nobody wants it.
func (r *Reconciler[K, V]) update(k K, want *table.Row[V]) (Update[K, V], bool) {
	r.retries.remove(k) // whatever was to be tried again is overtaken
	e, has := r.have.get(k)
	switch {
	case want == nil && !has:
		r.forget(k)
		return Update[K, V]{}, false
	case want == nil:
		return Update[K, V]{Key: k, Old: &e.row.Value, Repair: e.suspect()}, true
	case !has:
		return Update[K, V]{Key: k, New: &want.Value}, true
	case e.trouble == nil && r.Target.Same(&e.row.Value, &want.Value):
		if r.Applied.Row(k) == nil {
			r.note(func(s *Stats) { s.Adopted++ })
		}
		r.have.put(entry[V]{row: want})
		r.tried(want, nil)
		return Update[K, V]{}, false
	}
	return Update[K, V]{Key: k, Old: &e.row.Value, New: &want.Value, Repair: e.trouble != nil}, true
}

// apply hands updates to the Target in bounded batches and books the outcome.
// rows holds, for each update, the desired row that it is about, of a removal
// the last one; nil where there was none.
func (r *Reconciler[K, V]) apply(ctx context.Context, updates []Update[K, V], rows []*table.Row[V]) {
	for len(updates) > 0 && ctx.Err() == nil {
		n := min(len(updates), maxBatch)
		err := r.Target.Apply(ctx, updates[:n])
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			r.targetFailed("program", err)
		} else {
			r.targetWorks()
		}
		r.note(func(s *Stats) { s.Writes += uint64(n) })
		for i := range updates[:n] {
			u := &updates[i]
			if err != nil {
				u.Err = err
			}
			r.book(u, rows[i])
		}
		updates, rows = updates[n:], rows[n:]
	}
}

// book records how one update went.
func (r *Reconciler[K, V]) book(u *Update[K, V], row *table.Row[V]) {
	if u.Err == nil {
		if u.New == nil {
			r.have.drop(u.Key)
			r.forget(u.Key)
		} else {
			r.have.put(entry[V]{row: row})
			r.tried(row, nil)
		}
		return
	}
	if row == nil { // a stray that nobody wanted
		row = &table.Row[V]{Value: *u.Old}
	}
	p := problemOf(u.Err)
	r.tried(row, &p)
	if p.Code == vip.CodeUnsupported { // refused before anything was touched
		r.Log.Warn("the dataplane refuses a frontend", "key", u.Key, "problem", p.Error())
		if e, _ := r.have.get(u.Key); e.suspect() {
			// An earlier update failed half-way and won't be tried again now: the
			// resync makes what it was, or was on its way to be, whole.
			r.have.put(e.with(trouble{damage: e.trouble.damage}))
		}
		return
	}
	e, has := r.have.get(u.Key)
	if !has {
		e.row = row
	}
	var was trouble
	if e.trouble != nil {
		was = *e.trouble
	}
	tries := was.tries + 1
	r.have.put(e.with(trouble{damage: was.damage, suspect: true, tries: tries}))
	wait := r.backoff(tries)
	r.retries.add(u.Key, time.Now().Add(wait))
	level := slog.LevelError
	if tries > 1 { // thousands may fail for one reason; the applied table says which still do
		level = slog.LevelDebug
	}
	r.Log.Log(context.Background(), level, "program the dataplane", "key", u.Key, "err", u.Err, "try", tries, "again_in", wait)
	if tries == 1 {
		r.Events.Add(event.Event{Kind: "dataplane_error", Service: r.serviceOf(u), Object: fmt.Sprint(u.Key), Message: p.Message})
	}
}

// tried writes the applied row of a key. The repair of an older revision that
// is still in force doesn't hide that a newer one was refused.
func (r *Reconciler[K, V]) tried(row *table.Row[V], p *vip.Problem) {
	k, now := r.Desired.KeyOf(&row.Value), Applied[V]{Tried: row, At: vip.InstantOf(time.Now()), Problem: p}
	if former := r.Applied.Row(k); former != nil {
		if former.Value.Tried.Rev > row.Rev {
			return
		}
		now.Warning = former.Value.Warning
	}
	r.Applied.Set(now)
	if p != nil {
		r.failing[k] = struct{}{}
	} else {
		delete(r.failing, k)
	}
	r.note(func(s *Stats) { s.Failing = len(r.failing) })
}

// forget drops the applied row of a key that is gone.
func (r *Reconciler[K, V]) forget(k K) {
	r.Applied.Delete(k)
	delete(r.failing, k)
	r.note(func(s *Stats) { s.Failing = len(r.failing) })
}

// retry tries the keys again whose time has come.
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

// hasten makes those failed keys due that lack nothing more. It costs O(failed
// keys), and nothing without any.
func (r *Reconciler[K, V]) hasten() {
	waiter, ok := r.Target.(Waiter[K])
	if !ok || r.retries.keys.Len() == 0 {
		return
	}
	arrived := waiter.Arrived()
	now := time.Now()
	for k := range r.retries.keys.All() {
		if arrived(k) {
			r.retries.add(k, now)
		}
	}
}

// backoff returns the wait after the given number of failures in a row.
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
	if u.New != nil {
		return r.Service(u.New)
	}
	if u.Old != nil {
		return r.Service(u.Old)
	}
	return ""
}

// problemOf returns err as a Problem, keeping one that is inside.
func problemOf(err error) vip.Problem {
	if p, ok := errors.AsType[vip.Problem](err); ok {
		return p
	}
	return vip.Problem{Code: vip.CodeDataplane, Message: err.Error()}
}
