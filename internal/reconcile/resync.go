package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
)

// sweep removes what the Target has and nobody wants, once the desired table
// is complete.
func (r *Reconciler[K, V]) sweep(ctx context.Context) {
	var updates []Update[K, V]
	for k, e := range r.have.all() {
		if r.Desired.Row(k) == nil {
			updates = append(updates, Update[K, V]{Key: k, Old: &e.row.Value, Repair: e.trouble != nil})
		}
	}
	r.apply(ctx, updates, make([]*table.Row[V], len(updates)))
}

// resync reads the Target, repairs what differs from what was applied and
// returns the differences it found. What somebody else keeps changing waits,
// unless the repair was asked for.
func (r *Reconciler[K, V]) resync(ctx context.Context, asked bool) ([]Difference[K, V], error) {
	diff, err := r.compare(ctx)
	if err != nil {
		return nil, err
	}
	var updates []Update[K, V]
	var rows []*table.Row[V]
	var found []string
	now := time.Now()
	for _, d := range diff {
		u := Update[K, V]{Key: d.Key, Old: d.Have, New: d.Want, Repair: true}
		e, has := r.have.get(d.Key)
		if e.suspect() {
			r.contests.failing(d.Key)
			continue // ours to retry, not somebody's drift
		}
		if !has && (!r.swept || r.Desired.Row(d.Key) != nil) {
			continue // the feed brings it, or the sweep decides
		}
		what, cure := describe(d)
		if !asked && !r.contests.found(d.Key, what, now) {
			continue
		}
		updates, rows, found = append(updates, u), append(rows, e.row), append(found, what+", "+cure)
	}
	r.apply(ctx, updates, rows)
	r.report(updates, found)
	if !asked && ctx.Err() == nil {
		r.settle(diff)
	}
	return diff, nil
}

// report tells of repaired drift: found holds, for each update, what was wrong.
func (r *Reconciler[K, V]) report(updates []Update[K, V], found []string) {
	repaired := 0
	for i := range updates {
		u := &updates[i]
		if u.Err != nil {
			continue
		}
		if repaired++; repaired <= maxEvents {
			r.Log.Warn("repaired drift", "key", u.Key, "what", found[i])
			r.Events.Add(event.Event{Kind: "drift_repaired", Service: r.serviceOf(u), Object: fmt.Sprint(u.Key), Message: found[i]})
		}
	}
	r.note(func(s *Stats) { s.DriftRepairs += uint64(repaired) })
	if n := repaired - maxEvents; n > 0 {
		r.Log.Warn("repaired drift", "more_keys", n)
		r.Events.Add(event.Event{Kind: "drift_repaired", Message: fmt.Sprintf("%d more keys repaired in the same pass", n)})
	}
}

// compare reads the Target and returns where it differs from what was applied.
// An orphan that waits to be removed is no difference, whatever has become of it
// meanwhile, also when it is gone: a frontend has begun to use it, or somebody else
// has removed it.
func (r *Reconciler[K, V]) compare(ctx context.Context) ([]Difference[K, V], error) {
	actual, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	var diff []Difference[K, V]
	var orphans []K
	for k, e := range r.have.all() {
		a, there := actual.get(k)
		switch {
		case e.orphan:
			orphans = append(orphans, k)
		case !there:
			diff = append(diff, Difference[K, V]{Key: k, Want: &e.row.Value})
		case a.trouble != nil || !r.Target.Same(&a.row.Value, &e.row.Value):
			diff = append(diff, Difference[K, V]{Key: k, Want: &e.row.Value, Have: &a.row.Value, Damage: a.damage()})
		}
	}
	for _, k := range orphans {
		if now, there := actual.get(k); !there {
			r.have.drop(k)
		} else if e, _ := r.have.get(k); !e.suspect() {
			r.have.put(now)
		}
	}
	for k, a := range actual.all() {
		if _, known := r.have.get(k); !known {
			diff = append(diff, Difference[K, V]{Key: k, Have: &a.row.Value, Damage: a.damage()})
		}
	}
	return diff, nil
}

// describe says in words what was found and what is done about it.
func describe[K comparable, V any](d Difference[K, V]) (what, cure string) {
	switch {
	case d.Have == nil:
		return "was missing from the dataplane", "put back"
	case d.Want == nil:
		return "was in the dataplane and nobody wants it", "removed"
	case len(d.Damage) > 0:
		return d.Damage[0], "put right"
	default:
		return "was altered in the dataplane", "put right"
	}
}
