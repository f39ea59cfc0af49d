package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
)

// sweep removes what the Target has and the complete desired table has not.
func (r *Reconciler[K, V]) sweep(ctx context.Context) {
	var updates []Update[K, V]
	for k, e := range r.have {
		if r.Desired.Row(k) == nil {
			updates = append(updates, Update[K, V]{Key: k, Old: &e.row.Value, Repair: e.fault != nil})
		}
	}
	r.apply(ctx, updates, make([]*table.Row[V], len(updates)))
}

// resync reads the Target, repairs the differences from the applied state and returns them. If a caller asked for it, the
// differences are no changes that count against another program. Otherwise, program made them, if it isn't "".
func (r *Reconciler[K, V]) resync(ctx context.Context, asked bool, program string) ([]Difference[K, V], error) {
	diff, err := r.compare(ctx)
	if err != nil {
		return nil, err
	}
	repair := repairs[K, V]{}
	now := time.Now()
	for _, d := range diff {
		e, has := r.have[d.Key]
		if e.suspect() {
			r.contests.failing(d.Key)
			continue // has a pending retry, so it is no drift
		}
		if !has && (!r.swept || r.Desired.Row(d.Key) != nil) {
			continue // left to the feed or the sweep
		}
		what, cure := describe(d)
		if !asked {
			r.contests.found(d.Key, what, program, now)
		}
		repair.add(Update[K, V]{Key: d.Key, Old: d.Have, New: d.Want, Repair: true}, e.row, by(what+", "+cure, program))
	}
	r.repair(ctx, &repair)
	return diff, nil
}

// resyncOnTime is the resync of each interval.
func (r *Reconciler[K, V]) resyncOnTime(ctx context.Context) {
	if _, err := r.resync(ctx, false, ""); err == nil && ctx.Err() == nil {
		r.endContests()
	}
}

// drift is what other programs changed, with its repair.
type repairs[K comparable, V any] struct {
	updates []Update[K, V]
	rows    []*table.Row[V]
	found   []string // describes the drift of each update
}

func (d *repairs[K, V]) add(u Update[K, V], row *table.Row[V], found string) {
	d.updates, d.rows, d.found = append(d.updates, u), append(d.rows, row), append(d.found, found)
}

// repair applies the updates of a drift and reports them.
func (r *Reconciler[K, V]) repair(ctx context.Context, d *repairs[K, V]) {
	r.apply(ctx, d.updates, d.rows)
	if ctx.Err() != nil {
		return
	}
	r.report(d.updates, d.found)
	for i := range d.updates {
		r.showContest(d.updates[i].Key)
	}
	r.reportContests()
}

// report logs repaired drift and sends events. found describes the drift of each update.
func (r *Reconciler[K, V]) report(updates []Update[K, V], found []string) {
	repaired := 0
	for i := range updates {
		u := &updates[i]
		if u.Err != nil {
			continue
		}
		if repaired++; repaired <= maxEvents {
			r.Log.Warn("repaired drift", "key", u.Key, "drift", found[i])
			r.Events.Add(event.Event{Kind: "drift_repaired", Service: r.serviceOf(u), Object: fmt.Sprint(u.Key), Message: found[i]})
		}
	}
	r.note(func(s *Stats) { s.DriftRepairs += uint64(repaired) })
	if n := repaired - maxEvents; n > 0 {
		r.Log.Warn("repaired drift", "more_keys", n)
		r.Events.Add(event.Event{Kind: "drift_repaired", Message: fmt.Sprintf("%d more keys repaired in the same pass", n)})
	}
}

// compare reads the Target and returns its differences from the applied state. An orphan that waits for its removal is
// no difference, even if it is gone: a frontend uses it now, or another program has removed it.
func (r *Reconciler[K, V]) compare(ctx context.Context) ([]Difference[K, V], error) {
	actual, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	var diff []Difference[K, V]
	var orphans []K
	for k, e := range r.have {
		a, there := actual[k]
		switch {
		case e.orphan:
			orphans = append(orphans, k)
		case !there:
			diff = append(diff, Difference[K, V]{Key: k, Want: &e.row.Value})
		case a.fault != nil || a.row != e.row && !r.Target.Same(&a.row.Value, &e.row.Value):
			diff = append(diff, Difference[K, V]{Key: k, Want: &e.row.Value, Have: &a.row.Value, Damage: a.damage()})
		}
	}
	for _, k := range orphans {
		if now, there := actual[k]; !there {
			delete(r.have, k)
		} else if e := r.have[k]; !e.suspect() {
			r.have[k] = now
		}
	}
	for k, a := range actual {
		if _, known := r.have[k]; !known {
			diff = append(diff, Difference[K, V]{Key: k, Have: &a.row.Value, Damage: a.damage()})
		}
	}
	return diff, nil
}

// describe returns what was found, and the repair.
func describe[K comparable, V any](d Difference[K, V]) (what, cure string) {
	switch {
	case d.Have == nil:
		return "was missing from the dataplane", "restored"
	case d.Want == nil:
		return "was in the dataplane and is not desired", "removed"
	case len(d.Damage) > 0:
		return d.Damage[0], "repaired"
	default:
		return "was changed in the dataplane", "repaired"
	}
}
