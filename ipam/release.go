package ipam

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/vip"
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
// something, and that trying again may help. Where it is another host's turn
// (Options.Turn), or the store holds it back for now (FencedError), the answer is
// nil and Run sees to it. It costs O(what they hold).
func (a *Allocator) Release(ctx context.Context, gone []Released) []error {
	a.write.Lock()
	defer a.write.Unlock()
	a.forget(gone)
	for _, g := range gone {
		a.unnamed(g.Service)
	}
	if !a.mine() {
		a.leaveLater(gone)
		return make([]error, len(gone))
	}
	errs := a.release(ctx, gone, nil)
	for i := range errs {
		if isFenced(errs[i]) {
			a.leaveFenced(gone[i], errs[i])
			errs[i] = nil
		}
	}
	return errs
}

// leaveFenced puts off the release of a service that the store holds back. The
// caller holds write.
func (a *Allocator) leaveFenced(gone Released, why error) {
	a.log.Debug("what a deleted service held can't be released yet", "service", gone.Service, "why", why, "again_in", fencedRetry)
	a.cooldowns[gone.Service] = gone.Cooldown
	a.leaving.add(gone.Service, a.now().Add(fencedRetry))
	a.nudge()
}

// release is Release at once, with the lock held, of what the holders may give
// up; nil is everything.
func (a *Allocator) release(ctx context.Context, gone []Released, may func(Holder) bool) []error {
	errs := make([]error, len(gone))
	todo := make([]int, len(gone))
	for i := range gone {
		todo[i] = i
	}
	for try := 1; len(todo) > 0; try++ {
		r, of := a.releases(gone, todo, may)
		if len(r.ops) == 0 {
			break
		}
		err := a.commit(ctx, r.ops)
		var again []int
		for n, i := range todo {
			k := gone[i].Service
			if err != nil && len(of[n]) > 0 {
				errs[i] = fmt.Errorf("release what service %s holds: %w", k, err)
				continue
			}
			conflicted := false
			for _, op := range of[n] {
				resource := r.ops[op].resource()
				switch why := r.ops[op].Err; {
				case why == nil:
					a.events.Add(event.Event{
						Kind: "lease_released", Service: k.String(), Object: resource.String(), Message: fmt.Sprintf("%s is released by %s", resource, k),
					})
				case isConflict(why):
					conflicted = true
				default:
					errs[i] = fmt.Errorf("release %s, held by %s: %w", resource, k, why)
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

// releases returns what makes the services at todo give up what they hold, and
// for each service the ops that are its own.
func (a *Allocator) releases(gone []Released, todo []int, may func(Holder) bool) (r *release, of [][]int) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	r = a.newRelease()
	of = make([][]int, len(todo))
	for n, i := range todo {
		k := gone[i].Service
		for resource := range a.index.owned.Of(k) {
			if may != nil && !r.allowed(resource, k, may) {
				continue
			}
			if op := r.leave(resource, k, gone[i].Cooldown); op >= 0 {
				of[n] = append(of[n], op)
			}
		}
	}
	return r, of
}

// release is a commit in which services give up what they hold. A shared
// address may lose several holders at once: that is one op for each MaxHolders of
// them, which build on each other.
type release struct {
	a     *Allocator
	ops   []Op
	last  map[Resource]int // the resource's last op
	count []int            // how many leave, by op
}

func (a *Allocator) newRelease() *release { return &release{a: a} }

// lease returns the lease as the release makes it, nil for none.
func (r *release) lease(resource Resource) *Lease {
	if i, ok := r.last[resource]; ok {
		return r.ops[i].New
	}
	l, _, _ := r.a.leases.Get(resource)
	return l
}

func (r *release) allowed(resource Resource, k vip.ServiceKey, may func(Holder) bool) bool {
	l := r.lease(resource)
	return l != nil && l.HeldBy(k) >= 0 && may(l.Holders[l.HeldBy(k)])
}

// leave plans that k no longer holds the resource, and returns by which op; -1
// when k doesn't hold it.
func (r *release) leave(resource Resource, k vip.ServiceKey, cooldown time.Duration) int {
	l := r.lease(resource)
	if l == nil || l.HeldBy(k) < 0 {
		return -1
	}
	i, ok := r.last[resource]
	if !ok || r.count[i] >= MaxHolders {
		i = len(r.ops)
		r.ops = append(r.ops, Op{Old: l})
		r.count = append(r.count, 0)
		if r.last == nil {
			r.last = make(map[Resource]int)
		}
		r.last[resource] = i
	}
	r.ops[i].New = r.a.released(*l, k, cooldown)
	r.count[i]++
	return i
}

// released is what becomes of a held lease when k leaves it; nil is free.
func (a *Allocator) released(l Lease, k vip.ServiceKey, cooldown time.Duration) *Lease {
	i := l.HeldBy(k)
	if len(l.Holders) > 1 {
		l.Holders = slices.Delete(slices.Clone(l.Holders), i, i+1)
		return &l
	}
	wait := max(a.cfg.ReuseDelay, cooldown)
	if a.node != "" {
		wait = max(wait, leastCooling)
	}
	if wait <= 0 {
		return nil
	}
	l.State, l.ShareKey, l.Until = Cooling, "", a.stamp().Add(wait)
	l.Holders = []Holder{{Service: k, Source: l.Holders[i].Source, Port: l.Holders[i].Port, Node: a.node}}
	return &l
}

// sweepBatch bounds how many leases end in one commit.
const sweepBatch = 1024

// cool ends the leases that have cooled down, and returns when the next will.
// A single one that the store refuses to end is tried again after longestTry.
// A lease that would cool for longer than any may (the clock was set back)
// ends too. Where it is another host's turn, that one has some time to end it
// first, more of it where the store is known to be slow.
func (a *Allocator) cool(ctx context.Context) (next time.Time, err error) {
	a.write.Lock()
	defer a.write.Unlock()
	mine := a.mine()
	for {
		now := a.now()
		latest := now.Add(max(a.cfg.ReuseDelay, vip.MaxDrainTimeout))
		var ops []Op
		var taken []coolingLease
		a.mu.Lock()
		q := &a.index.cooling
		for len(*q) > 0 && len(ops) < sweepBatch {
			c := (*q)[0]
			if c.look.After(now) && (!c.look.After(latest) || !mine) {
				next = c.look
				break
			}
			heap.Pop(q)
			if !mine && c.look.Equal(c.until.Time()) {
				c.look = now.Add(a.restraint.patience(now))
				heap.Push(q, c)
				continue
			}
			if l, _, ok := a.leases.Get(c.resource); ok && l.State == Cooling && l.Until == c.until {
				ops = append(ops, Op{Old: l})
				taken = append(taken, c)
			}
		}
		a.mu.Unlock()
		if len(ops) == 0 {
			return next, nil
		}
		err := a.commit(ctx, ops)
		a.mu.Lock()
		var refused error
		for i, c := range taken {
			switch why := ops[i].Err; {
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
