package allocator

import (
	"context"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// Run does what has a deadline: it recalls services, releases what deleted services and orphans
// held, and ends cooling. If hosts share the store it also follows what the others write. It returns
// the context's error at its end.
func (a *Allocator) Run(ctx context.Context) error {
	running, ctx := parallel.NewGroup(ctx)
	if a.state.Node != "" {
		running.Run(ctx, a.follow)
	}
	running.Go(func() error { return a.loop(ctx) })
	return running.Wait()
}

func (a *Allocator) loop(ctx context.Context) error {
	retry := storeBackoff()
	var leader <-chan struct{}
	var sweep time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-a.wake:
		case <-leader:
		}
		if a.leadership != nil {
			leader = a.leadership.Changed() // before the question whether this host leads
		}
		nap := longestNap
		until := func(next time.Time) {
			if !next.IsZero() {
				nap = min(nap, max(0, next.Sub(a.now())))
			}
		}
		until(a.recallDue())
		next, err := a.releaseDue(ctx)
		until(next)
		if err == nil {
			next, err = a.endCooling(ctx)
			until(next)
		}
		if now := a.now(); err == nil && !sweep.After(now) {
			var every time.Duration
			if every, err = a.sweep(ctx, now); every > 0 {
				sweep = now.Add(every)
			}
		}
		until(sweep)
		switch {
		case err == nil:
			retry.Reset()
		case ctx.Err() == nil:
			nap = retry.Next()
			a.log.Error("leases that have ended not removed from the store; trying again", "err", err, "in", nap)
		}
		timer.Reset(nap)
	}
}

// recallDue recalls the services that have waited long enough, and returns the next deadline.
func (a *Allocator) recallDue() (next time.Time) {
	a.write.Lock()
	defer a.write.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	due, next := a.waiting.takeDue(&a.grace, a.leads(), now)
	for k := range a.retries.Due(now) {
		a.retries.Drop(k)
		due = append(due, k)
	}
	for _, k := range due {
		a.recalls.Add(k)
	}
	if _, at, ok := a.retries.First(); ok && (next.IsZero() || at.Before(next)) {
		next = at
	}
	return next
}

// Recalls returns a channel that is closed while TakeRecalls has something to return.
func (a *Allocator) Recalls() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.recalls.Some()
}

// TakeRecalls returns the services to call Assign for again, each once: another host changed what
// they hold, or their wait is over.
func (a *Allocator) TakeRecalls() []vip.ServiceKey {
	a.mu.Lock()
	defer a.mu.Unlock()
	keys := make([]vip.ServiceKey, 0, a.recalls.Len())
	for k, ok := a.recalls.Take(); ok; k, ok = a.recalls.Take() {
		keys = append(keys, k)
	}
	return keys
}

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
		err := a.commit(ctx, ops, a.store.Commit, nil)
		now := a.now()
		var refused error
		a.mu.Lock()
		for i := range ops {
			r, why := ops[i].Resource(), ops[i].Err
			l, _ := a.state.Lease(r)
			switch {
			case err != nil:
				a.cooling.Set(r, now)
			case l.State == ipam.Cooling && !a.cooling.Has(r): // after a conflict, the newer lease has its own deadline
				a.cooling.Set(r, now.Add(longestRetry))
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
func (a *Allocator) takeCooled() (ops []ipam.Op, next time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, leader := a.now(), a.leads()
	latest := now.Add(max(a.state.Config.ReuseDelay, vip.MaxDrainTimeout))
	q := &a.cooling
	for len(ops) < coolBatch {
		r, at, ok := q.First()
		if !ok || at.After(now) && (!at.After(latest) || !leader) {
			return ops, at
		}
		l, _, _ := a.state.Leases().Get(r)
		if !leader && at.Equal(l.Until.Time()) {
			q.Set(r, now.Add(a.grace.length))
			continue
		}
		q.Drop(r)
		ops = append(ops, ipam.Op{Old: l})
	}
	return ops, time.Time{}
}
