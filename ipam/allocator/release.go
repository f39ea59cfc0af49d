package allocator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/plan"
)

// Release gives up everything that each of the services holds, with one durable commit, and answers
// in the same order. Nobody else gets it before the longer of ReuseDelay and Cooldown has passed;
// the service itself gets it back at any time until then. An error says that the service still holds
// something and that trying again may help. The answer is nil, and Run does the rest, if the leader
// comes first or if the store holds the service back (FencedError). It costs O(what they hold).
func (a *Allocator) Release(ctx context.Context, gone []ipam.Released) []error {
	a.write.Lock()
	defer a.write.Unlock()
	a.mu.Lock()
	for _, g := range gone {
		a.state.ForgetVanished(g.Service)
		delete(a.undone, g.Service)
		a.waiting.remove(g.Service)
		a.retries.Drop(g.Service)
		a.checkClaimed(g.Service)
	}
	a.mu.Unlock()
	if !a.leads() {
		now := a.now()
		for _, g := range gone {
			a.releases.remove(g.Service)
			if a.state.Owns(g.Service) {
				a.releases.add(g.Service, now.Add(a.grace.length), deferral{since: now, cooldown: g.Cooldown})
			}
		}
		a.wake.Set()
		return make([]error, len(gone))
	}
	errs := a.release(ctx, gone, nil)
	for i := range errs {
		if isFenced(errs[i]) {
			a.releaseLater(gone[i], errs[i])
			errs[i] = nil
		}
	}
	return errs
}

// releaseLater tries again to release a service that the store holds back.
func (a *Allocator) releaseLater(gone ipam.Released, why error) {
	a.log.Debug("release of a deleted service held back", "service", gone.Service, "why", why, "retry_in", fencedRetry)
	now := a.now()
	a.releases.remove(gone.Service)
	a.releases.add(gone.Service, now.Add(fencedRetry), deferral{since: now, anyHost: true, cooldown: gone.Cooldown})
	a.wake.Set()
}

// releaseDue releases the services that the leader should have released and didn't, and those that
// the store held back. It returns when the next one is due.
func (a *Allocator) releaseDue(ctx context.Context) (next time.Time, err error) {
	a.write.Lock()
	defer a.write.Unlock()
	now, leader := a.now(), a.leads()
	due, next := a.releases.takeDue(&a.grace, leader, now)
	var gone []ipam.Released
	for _, k := range due {
		w := a.releases.services[k]
		a.releases.remove(k)
		if a.known == nil || !a.known(k) {
			gone = append(gone, ipam.Released{Service: k, Cooldown: w.cooldown})
		}
	}
	errs := a.release(ctx, gone, nil)
	if len(gone) > 0 && !leader {
		a.grace.steppedIn(now, a.now(), errors.Join(errs...))
	}
	for i, failed := range errs {
		if isFenced(failed) {
			a.releaseLater(gone[i], failed)
		} else if failed != nil {
			err = failed
			a.releases.add(gone[i].Service, now, deferral{since: now, cooldown: gone[i].Cooldown})
		}
	}
	return next, err
}

// release releases at once what the holders may give up; may nil is everything. The caller holds
// write.
func (a *Allocator) release(ctx context.Context, gone []ipam.Released, may func(ipam.Holder) bool) []error {
	errs := make([]error, len(gone))
	todo := make([]int, len(gone))
	for i := range gone {
		todo[i] = i
	}
	for try := 1; len(todo) > 0; try++ {
		p := plan.NewReleases(a.state, a.now())
		opsOf := make([][]int, len(todo))
		for n, i := range todo {
			opsOf[n] = p.ReleaseAll(gone[i], may)
		}
		if len(p.Ops) == 0 {
			break
		}
		err := a.commit(ctx, p.Ops, a.store.Commit, nil)
		var again []int
		for n, i := range todo {
			k := gone[i].Service
			if err != nil && len(opsOf[n]) > 0 {
				errs[i] = fmt.Errorf("release what service %s holds: %w", k, err)
				continue
			}
			conflicted := false
			for _, op := range opsOf[n] {
				resource := p.Ops[op].Resource()
				switch why := p.Ops[op].Err; {
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
				errs[i] = fmt.Errorf("release what service %s holds: the leases change too fast: %w", k, ipam.ErrUnavailable)
			}
		}
		todo = again
	}
	return errs
}
