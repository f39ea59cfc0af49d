package ipam

import (
	"context"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// coolBatch bounds how many leases end in one commit.
const coolBatch = 1024

// endCooling removes the leases that have cooled down, and returns when the next one will have. A
// lease that the store refuses to remove is tried again after longestRetry. A lease that would cool
// for longer than any may, because the clock was set back, is removed too. A host that isn't the
// leader steps in after its grace period.
func (a *Allocator) endCooling(ctx context.Context) (next time.Time, err error) {
	a.write.Lock()
	defer a.write.Unlock()
	for {
		ops, next := a.takeCooled()
		if len(ops) == 0 {
			return next, nil
		}
		err := a.commit(ctx, ops, a.store.Commit)
		now := a.now()
		var refused error
		a.mu.Lock()
		for i := range ops {
			r, why := ops[i].resource(), ops[i].Err
			l, _ := a.lease(r)
			switch {
			case err != nil:
				a.index.cooling.Set(r, now)
			case l.State == Cooling && !a.index.cooling.Has(r): // after a conflict, the newer lease has its own deadline
				a.index.cooling.Set(r, now.Add(longestRetry))
				refused = fmt.Errorf("%s: %w", r, why)
			}
		}
		a.mu.Unlock()
		if err != nil {
			return now, err
		}
		if refused != nil {
			a.log.Error("cooled lease not removed from the store; trying again", "err", refused, "in", longestRetry)
		}
	}
}

// takeCooled takes up to coolBatch leases that have cooled down out of the queue, and returns the
// ops that remove them. Without any it returns when the next one ends.
func (a *Allocator) takeCooled() (ops []Op, next time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, leader := a.now(), a.leads()
	latest := now.Add(max(a.cfg.ReuseDelay, vip.MaxDrainTimeout))
	q := &a.index.cooling
	for len(ops) < coolBatch {
		r, at, ok := q.First()
		if !ok || at.After(now) && (!at.After(latest) || !leader) {
			return ops, at
		}
		l, _, _ := a.leases.Get(r)
		if !leader && at.Equal(l.Until.Time()) {
			q.Set(r, now.Add(a.grace.length))
			continue
		}
		q.Drop(r)
		ops = append(ops, Op{Old: l})
	}
	return ops, time.Time{}
}
