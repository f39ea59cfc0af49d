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

// Released is a service that is to give up everything that it holds.
type Released struct {
	Service  vip.ServiceKey
	Cooldown time.Duration
}

// Release gives up everything that each of the services holds, all with one
// durable commit, and answers in the same order. Nobody else gets it before the
// longer of ReuseDelay and the cooldown has passed; the service itself gets it
// back at any time until then. An error means that the service still holds
// something, and that trying again may help. It costs O(what they hold).
func (a *Allocator) Release(ctx context.Context, gone []Released) []error {
	a.write.Lock()
	defer a.write.Unlock()
	return a.release(ctx, gone)
}

// release is Release with the lock held.
func (a *Allocator) release(ctx context.Context, gone []Released) []error {
	errs := make([]error, len(gone))
	todo := make([]int, len(gone))
	for i := range gone {
		todo[i] = i
	}
	for try := 1; len(todo) > 0; try++ {
		ops, of := a.releases(gone, todo)
		if len(ops) == 0 {
			break
		}
		failed, err := a.commit(ctx, ops)
		var again []int
		for n, i := range todo {
			k := gone[i].Service
			if err != nil && len(of[n]) > 0 {
				errs[i] = fmt.Errorf("release what service %s holds: %w", k, err)
				continue
			}
			conflicted := false
			for _, r := range of[n] {
				switch why := failed[r]; {
				case why == nil:
					a.events.Add(event.Event{
						Kind: "lease_released", Service: k.String(), Object: r.String(), Message: fmt.Sprintf("%s is released by %s", r, k),
					})
				case isConflict(why):
					conflicted = true
				default:
					errs[i] = fmt.Errorf("release %s, held by %s: %w", r, k, why)
				}
			}
			switch {
			case !conflicted || errs[i] != nil:
			case try < tries:
				again = append(again, i)
			default:
				errs[i] = fmt.Errorf("release what service %s holds: the leases change too fast: %w", k, ErrUnavailable)
			}
		}
		todo = again
	}
	return errs
}

// releases returns what makes the services at todo give up what they hold, one
// op a resource, and for each service the resources that are its own. A shared
// address may lose several holders at once.
func (a *Allocator) releases(gone []Released, todo []int) (ops []Op, of [][]Resource) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	at := make(map[Resource]int)
	of = make([][]Resource, len(todo))
	for n, i := range todo {
		k := gone[i].Service
		for _, r := range a.index.owned[k] {
			l, _, ok := a.leases.Get(r)
			if !ok {
				continue
			}
			o, shared := at[r]
			if shared {
				if ops[o].New == nil {
					continue
				}
				l = *ops[o].New
			}
			if l.HeldBy(k) < 0 {
				continue
			}
			if !shared {
				o = len(ops)
				at[r] = o
				ops = append(ops, Op{Old: &l})
			}
			ops[o].New = a.released(l, k, gone[i].Cooldown)
			of[n] = append(of[n], r)
		}
	}
	return ops, of
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
