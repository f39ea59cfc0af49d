package ipam

import (
	"context"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/event"
)

// How often Run looks, apart from when it knows that there is something to do.
const (
	longestNap  = time.Minute // so that a changed clock is noticed
	shortestTry = time.Second
	longestTry  = 30 * time.Second
	sweepShare  = 4 // sweeps for orphans in one grace time
)

// Settled says that every source has told its services, and how to find out
// whether one of them names a service. From here on Run looks for leases that
// nobody claims.
func (a *Allocator) Settled(known func(vip.ServiceKey) bool) {
	a.write.Lock()
	defer a.write.Unlock()
	a.known = known
	a.nudge()
}

// Run ends cooling when its time has come, and releases leases that no source
// has claimed for their grace time. It returns the context's error at its end.
func (a *Allocator) Run(ctx context.Context) error {
	try := shortestTry
	var sweep time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-a.wake:
		}
		nap := longestNap
		next, err := a.cool(ctx)
		if err == nil && !next.IsZero() {
			nap = min(nap, max(0, next.Sub(a.now())))
		}
		if now := a.now(); err == nil && !sweep.After(now) {
			var every time.Duration
			if every, err = a.sweep(ctx, now); every > 0 {
				sweep = now.Add(every)
			}
		}
		if !sweep.IsZero() {
			nap = min(nap, max(0, sweep.Sub(a.now())))
		}
		switch {
		case err == nil:
			try = shortestTry
		case ctx.Err() == nil:
			a.log.Error("leases that have ended can't be removed from the store; trying again", "err", err)
			nap, try = try, min(2*try, longestTry)
		}
		timer.Reset(nap)
	}
}

// sweep looks for services that hold leases and that no source names, and
// releases those it has known for the grace time. It returns how long to wait
// for the next sweep; 0 is until Settled. It costs O(leases), off the path of
// any change.
func (a *Allocator) sweep(ctx context.Context, now time.Time) (every time.Duration, err error) {
	a.write.Lock()
	defer a.write.Unlock()
	if a.known == nil {
		return 0, nil
	}
	grace := a.cfg.OrphanGrace
	every = min(max(grace/sweepShare, time.Second), longestNap)
	suspects := make(map[vip.ServiceKey]time.Time)
	for _, l := range a.leases.All() {
		if l.State != Held {
			continue
		}
		for _, h := range l.Holders {
			if _, seen := suspects[h.Service]; seen || a.known(h.Service) {
				continue
			}
			since, suspected := a.suspects[h.Service]
			if !suspected {
				since = now
				a.log.Warn("a lease belongs to a service that no source names", "service", h.Service, "resource", l.Resource, "released_in", grace)
			}
			suspects[h.Service] = since
		}
	}
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.suspects = suspects
	}()
	var gone []Released
	for k, since := range suspects {
		if now.Sub(since) >= grace {
			gone = append(gone, Released{Service: k})
		}
	}
	errs := a.release(ctx, gone)
	for i := range gone {
		k := gone[i].Service
		if errs[i] != nil {
			err = errs[i]
			continue
		}
		delete(suspects, k)
		a.log.Warn("released the leases of a service that no source names", "service", k, "after", grace)
		a.events.Add(event.Event{
			Kind: "lease_orphaned", Service: k.String(),
			Message: fmt.Sprintf("what %s held is released: no source has named it for %s", k, grace),
		})
	}
	return every, err
}
