package ipam

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/vip"
)

// How often Run looks, apart from when it knows that there is something to do.
const (
	longestNap  = time.Minute // so that a changed clock is noticed
	shortestTry = time.Second
	longestTry  = 30 * time.Second
	sweepShare  = 4 // sweeps for orphans in one grace time
)

// newBackoff has the waits for a store that fails.
func newBackoff() backoff.Backoff { return backoff.Backoff{Lo: shortestTry, Hi: longestTry} }

// Settled says that every source has told its services, and how to find out
// whether one of them names a service. From here on Run looks for leases that
// nobody claims. Whoever is named no longer must be given to Release. It costs
// O(leases).
func (a *Allocator) Settled(known func(vip.ServiceKey) bool) {
	a.write.Lock()
	defer a.write.Unlock()
	a.known = known
	for _, l := range a.leases.All() {
		for _, h := range l.Holders {
			a.unnamed(h.Service)
		}
	}
	a.nudge()
}

// unnamed notes that a service may hold something, if no source names it. The
// caller holds write, or is alone.
func (a *Allocator) unnamed(k vip.ServiceKey) {
	if a.known != nil && !a.known(k) {
		a.unclaimed[k] = struct{}{}
	}
}

// Run ends cooling when its time has come, and releases leases that no source
// has claimed for their grace time. Where hosts share the store it follows what the others
// write, and does what was put off for another host's turn. It returns the
// context's error at its end.
func (a *Allocator) Run(ctx context.Context) error {
	if a.node != "" {
		var following sync.WaitGroup
		following.Go(func() { a.follow(ctx) })
		defer following.Wait()
	}
	backoff := newBackoff()
	var turn <-chan struct{}
	var sweep time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-a.wake:
		case <-turn:
		}
		if a.turn != nil {
			turn = a.turn.Changed() // before asking whose it is
		}
		nap := longestNap
		until := func(next time.Time) {
			if !next.IsZero() {
				nap = min(nap, max(0, next.Sub(a.now())))
			}
		}
		until(a.recallDue())
		next, err := a.leave(ctx)
		until(next)
		if err == nil {
			next, err = a.cool(ctx)
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
			backoff.Reset()
		case ctx.Err() == nil:
			nap = backoff.Next()
			a.log.Error("leases that have ended can't be removed from the store; trying again", "err", err, "in", nap)
		}
		timer.Reset(nap)
	}
}

// recallDue recalls the services that were put off and whose time has come, and
// returns when the next one's will.
func (a *Allocator) recallDue() (next time.Time) {
	a.write.Lock()
	defer a.write.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if a.mine() {
		a.later.hurry(now, now.Add(longestPatience))
		a.leaving.hurry(now, now.Add(longestPatience))
	}
	for _, k := range a.overdue(&a.later, now, &next) {
		a.recall.add(k)
	}
	for _, k := range due(&a.revisit, now, &next) {
		a.revisit.remove(k)
		a.recall.add(k)
	}
	return next
}

// due pops what is due and notes the earliest of the times that are to come.
func due(g *agenda, now time.Time, next *time.Time) []vip.ServiceKey {
	keys, later := g.pop(now)
	if !later.IsZero() && (next.IsZero() || later.Before(*next)) {
		*next = later
	}
	return keys
}

// leave releases what services that went hold, where another host was to and
// didn't, and returns when the next one is due.
func (a *Allocator) leave(ctx context.Context) (next time.Time, err error) {
	a.write.Lock()
	defer a.write.Unlock()
	now := a.now()
	var gone []Released
	for _, k := range a.overdue(&a.leaving, now, &next) {
		gone = append(gone, Released{Service: k, Cooldown: a.cooldowns[k]})
		a.leaving.remove(k)
		delete(a.cooldowns, k)
	}
	if a.known != nil {
		gone = slices.DeleteFunc(gone, func(g Released) bool { return a.known(g.Service) })
	}
	errs := a.release(ctx, gone, nil)
	if len(gone) > 0 && !a.mine() {
		a.tried(now, errors.Join(errs...))
	}
	for i, failed := range errs {
		if isFenced(failed) {
			a.leaveFenced(gone[i], failed)
		} else if failed != nil {
			err = failed
			a.cooldowns[gone[i].Service] = gone[i].Cooldown
			a.leaving.add(gone[i].Service, now)
		}
	}
	return next, err
}

// sweeps reports whether an orphan's claim is this host's to end: what it
// claimed itself, and, when it is its turn, what nobody else will see to. What
// is in a name that another host may have, too, is nobody's to end: its
// grace time begins anew when that is over.
func (a *Allocator) sweeps(mine bool) func(Holder) bool {
	own := a.ownName == nil || a.ownName()
	return func(h Holder) bool {
		return own && h.Node == a.node || mine && (h.Node == "" || a.away != nil && a.away(h.Node))
	}
}

// sweep looks for services that hold leases and that no source names, and
// releases those it has known for the grace time, or at once those whose own
// source has assigned to others what they hold. It returns how long to wait
// for the next sweep; 0 is until Settled. It costs O(what services hold that no
// source names).
func (a *Allocator) sweep(ctx context.Context, now time.Time) (every time.Duration, err error) {
	a.write.Lock()
	defer a.write.Unlock()
	if a.known == nil {
		return 0, nil
	}
	grace := a.cfg.OrphanGrace
	every = min(max(grace/sweepShare, time.Second), longestNap)
	suspects := make(map[vip.ServiceKey]time.Time)
	assigned := make(map[vip.ServiceKey]struct{}) // those whose source has given what they hold to others
	sweeps := a.sweeps(a.mine())
	for k := range a.unclaimed {
		if a.unreadable != nil && a.unreadable(k) {
			continue // its grace time begins when the registration is gone
		}
		holds := false
		for resource := range a.index.owned.Of(k) {
			l, _, _ := a.leases.Get(resource)
			if l == nil || l.State != Held {
				continue
			}
			holds = true
			source, awaited := a.awaited[resource]
			h := l.Holders[l.HeldBy(k)]
			again := awaited && source == h.Source
			if _, seen := suspects[k]; seen && !again || !sweeps(h) || a.known(k) {
				continue
			}
			if again {
				assigned[k] = struct{}{}
			}
			since, suspected := a.suspects[k]
			if !suspected {
				since = now
				a.log.Warn("a lease belongs to a service that no source names", "service", k, "resource", resource, "released_in", grace)
			}
			suspects[k] = since
		}
		if !holds || a.known(k) {
			delete(a.unclaimed, k)
		}
	}
	if len(a.unclaimed) == 0 { // a map never gives back what it once took
		a.unclaimed = make(map[vip.ServiceKey]struct{})
	}
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.suspects = suspects
	}()
	var gone []Released
	for k, since := range suspects {
		if _, again := assigned[k]; again || now.Sub(since) >= grace {
			gone = append(gone, Released{Service: k})
		}
	}
	errs := a.release(ctx, gone, sweeps)
	for i := range gone {
		k := gone[i].Service
		if isFenced(errs[i]) {
			continue // the next sweep finds it again
		}
		if errs[i] != nil {
			err = errs[i]
			continue
		}
		delete(suspects, k)
		why := fmt.Sprintf("no source has named it for %s", grace)
		if _, again := assigned[k]; again {
			why = "no source names it, and its own has assigned that to another service"
		}
		a.log.Warn("released the leases of a service that no source names", "service", k, "why", why)
		a.events.Add(event.Event{Kind: "lease_orphaned", Service: k.String(), Message: fmt.Sprintf("what %s held is released: %s", k, why)})
	}
	return every, err
}
