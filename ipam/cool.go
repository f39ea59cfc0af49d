package ipam

import (
	"container/heap"
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
		ops, taken, next := a.takeCooled()
		if len(ops) == 0 {
			return next, nil
		}
		err := a.commit(ctx, ops, a.store.Commit)
		now := a.now()
		a.mu.Lock()
		var refused error
		for i, c := range taken {
			switch why := ops[i].Err; {
			case err != nil:
				heap.Push(&a.index.cooling, c)
			case why != nil && !isConflict(why): // after a conflict, the newer lease is in the queue
				c.look = now.Add(longestRetry)
				heap.Push(&a.index.cooling, c)
				refused = fmt.Errorf("%s: %w", c.resource, why)
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
func (a *Allocator) takeCooled() (ops []Op, taken []coolingLease, next time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, leader := a.now(), a.leads()
	latest := now.Add(max(a.cfg.ReuseDelay, vip.MaxDrainTimeout))
	q := &a.index.cooling
	for len(*q) > 0 && len(ops) < coolBatch {
		c := (*q)[0]
		if c.look.After(now) && (!c.look.After(latest) || !leader) {
			return ops, taken, c.look
		}
		heap.Pop(q)
		if !leader && c.look.Equal(c.until.Time()) {
			c.look = now.Add(a.grace.length)
			heap.Push(q, c)
			continue
		}
		if l, _, ok := a.leases.Get(c.resource); ok && l.State == Cooling && l.Until == c.until {
			ops, taken = append(ops, Op{Old: l}), append(taken, c)
		}
	}
	return ops, taken, next
}
