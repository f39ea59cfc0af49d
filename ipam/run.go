package ipam

import (
	"context"
	"sync"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// Run does what has a deadline: it recalls services, releases what deleted services and orphans
// held, and ends cooling. If hosts share the store it also follows what the others write. It returns
// the context's error at its end.
func (a *Allocator) Run(ctx context.Context) error {
	if a.node != "" {
		var following sync.WaitGroup
		following.Go(func() { a.follow(ctx) })
		defer following.Wait()
	}
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
		a.recalls.add(k)
	}
	if _, at, ok := a.retries.First(); ok && (next.IsZero() || at.Before(next)) {
		next = at
	}
	return next
}

// Recalls returns a channel that is closed while TakeRecalls has something to return.
func (a *Allocator) Recalls() <-chan struct{} {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.recalls.some
}

// TakeRecalls returns the services to call Assign for again, each once: another host changed what
// they hold, or their wait is over.
func (a *Allocator) TakeRecalls() []vip.ServiceKey {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.recalls.take()
}
