package ipam

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/event"
)

// Release gives up everything that a service holds. Nobody else gets it before
// the longer of ReuseDelay and cooldown has passed; the service itself gets it
// back at any time until then. An error means that nothing is released.
func (a *Allocator) Release(ctx context.Context, k vip.ServiceKey, cooldown time.Duration) error {
	a.write.Lock()
	defer a.write.Unlock()
	return a.release(ctx, k, cooldown)
}

// release is Release with the lock held.
func (a *Allocator) release(ctx context.Context, k vip.ServiceKey, cooldown time.Duration) error {
	for range tries {
		var ops []Op
		a.mu.RLock()
		for _, r := range a.index.owned[k] {
			if l, _, ok := a.leases.Get(r); ok && l.HeldBy(k) >= 0 {
				ops = append(ops, Op{Old: &l, New: a.released(l, k, cooldown)})
			}
		}
		a.mu.RUnlock()
		if len(ops) == 0 {
			return nil
		}
		failed, err := a.commit(ctx, ops)
		if err != nil {
			return fmt.Errorf("release what service %s holds: %w", k, err)
		}
		if len(failed) == 0 {
			for i := range ops {
				a.events.Add(event.Event{
					Kind: "lease_released", Service: k.String(), Object: ops[i].resource().String(),
					Message: fmt.Sprintf("%s is released by %s", ops[i].resource(), k),
				})
			}
			return nil
		}
		for r, why := range failed {
			if conflict := (*ConflictError)(nil); !errors.As(why, &conflict) {
				return fmt.Errorf("release %s, held by %s: %w", r, k, why)
			}
		}
	}
	return fmt.Errorf("release what service %s holds: the leases change too fast: %w", k, ErrUnavailable)
}

// released is what becomes of a held lease when k leaves it; nil is free.
func (a *Allocator) released(l Lease, k vip.ServiceKey, cooldown time.Duration) *Lease {
	i := l.HeldBy(k)
	if len(l.Holders) > 1 {
		l.Holders = slices.Delete(slices.Clone(l.Holders), i, i+1)
		return &l
	}
	wait := max(a.cfg.ReuseDelay, cooldown)
	if wait <= 0 {
		return nil
	}
	l.State, l.ShareKey, l.Until = Cooling, "", a.stamp().Add(wait)
	l.Holders = []Holder{{Service: k, Source: l.Holders[i].Source, Port: l.Holders[i].Port}}
	return &l
}

// sweepBatch bounds how many leases end in one commit.
const sweepBatch = 1024

// cool ends the leases that have cooled down, and returns when the next will.
// A single one that the store refuses to end is tried again after longestTry.
// A lease that would cool for longer than any may (the clock was set back)
// ends too.
func (a *Allocator) cool(ctx context.Context) (next time.Time, err error) {
	a.write.Lock()
	defer a.write.Unlock()
	for {
		now := a.now()
		latest := now.Add(max(a.cfg.ReuseDelay, vip.MaxDrainTimeout))
		var ops []Op
		var taken []coolingLease
		a.mu.Lock()
		q := &a.index.cooling
		for len(*q) > 0 && len(ops) < sweepBatch {
			c := (*q)[0]
			if c.look.After(now) && !c.look.After(latest) {
				next = c.look
				break
			}
			heap.Pop(q)
			if l, _, ok := a.leases.Get(c.resource); ok && l.State == Cooling && l.Until.Equal(c.until) {
				ops = append(ops, Op{Old: &l})
				taken = append(taken, c)
			}
		}
		a.mu.Unlock()
		if len(ops) == 0 {
			return next, nil
		}
		failed, err := a.commit(ctx, ops)
		a.mu.Lock()
		var refused error
		for _, c := range taken {
			switch why := failed[c.resource]; {
			case err != nil:
				heap.Push(q, c)
			case why != nil && !isConflict(why): // of a conflict, the newer lease is booked
				c.look = now.Add(longestTry)
				heap.Push(q, c)
				refused = fmt.Errorf("%s: %w", c.resource, why)
			}
		}
		a.mu.Unlock()
		if err != nil {
			return now, err
		}
		if refused != nil {
			a.log.Error("a lease that has ended can't be removed from the store; trying again", "err", refused, "in", longestTry)
		}
	}
}

func isConflict(err error) bool {
	conflict := (*ConflictError)(nil)
	return errors.As(err, &conflict)
}
