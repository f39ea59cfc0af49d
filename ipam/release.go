package ipam

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/vip"
)

// Released is a service that gives up everything it holds.
type Released struct {
	Service  vip.ServiceKey
	Cooldown time.Duration
}

// Release gives up everything that each of the services holds, with one durable commit, and answers
// in the same order. Nobody else gets it before the longer of ReuseDelay and Cooldown has passed;
// the service itself gets it back at any time until then. An error says that the service still holds
// something and that trying again may help. The answer is nil, and Run does the rest, if the leader
// comes first or if the store holds the service back (FencedError). It costs O(what they hold).
func (a *Allocator) Release(ctx context.Context, gone []Released) []error {
	a.write.Lock()
	defer a.write.Unlock()
	a.mu.Lock()
	for _, g := range gone {
		delete(a.vanished, g.Service)
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
			if a.index.owned.Any(g.Service) {
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
func (a *Allocator) releaseLater(gone Released, why error) {
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
	var gone []Released
	for _, k := range due {
		w := a.releases.services[k]
		a.releases.remove(k)
		if a.known == nil || !a.known(k) {
			gone = append(gone, Released{Service: k, Cooldown: w.cooldown})
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
func (a *Allocator) release(ctx context.Context, gone []Released, may func(Holder) bool) []error {
	errs := make([]error, len(gone))
	todo := make([]int, len(gone))
	for i := range gone {
		todo[i] = i
	}
	for try := 1; len(todo) > 0; try++ {
		p := newReleasePlan(&a.state, a.now())
		opsOf := make([][]int, len(todo))
		for n, i := range todo {
			opsOf[n] = p.releaseAll(gone[i], may)
		}
		if len(p.ops) == 0 {
			break
		}
		err := a.commit(ctx, p.ops, a.store.Commit)
		var again []int
		for n, i := range todo {
			k := gone[i].Service
			if err != nil && len(opsOf[n]) > 0 {
				errs[i] = fmt.Errorf("release what service %s holds: %w", k, err)
				continue
			}
			conflicted := false
			for _, op := range opsOf[n] {
				resource := p.ops[op].Resource()
				switch why := p.ops[op].Err; {
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

// releaseAll plans that a service gives up everything it may, and returns the indexes of the ops.
func (p *releasePlan) releaseAll(gone Released, may func(Holder) bool) (ops []int) {
	for r := range p.index.owned.Of(gone.Service) {
		if may != nil {
			l := p.planned(r)
			if l == nil || l.HeldBy(gone.Service) < 0 || !may(*l.holder(gone.Service)) {
				continue
			}
		}
		if op := p.release(r, gone.Service, gone.Cooldown); op >= 0 {
			ops = append(ops, op)
		}
	}
	return ops
}

// leastCooling is how long a lease cools down at least if hosts share the store: a host that still
// names the service must be able to claim it back.
const leastCooling = 10 * time.Second

// releasePlan computes the ops that have services give up resources. Like a plan, it reads a state
// and changes nothing. A shared address may lose several holders at once: that is one op for each
// MaxHolders of them, and each builds on the one before.
type releasePlan struct {
	*state
	now  vip.Instant
	ops  []Op
	last map[Resource]int // each resource's last op
}

func newReleasePlan(s *state, now time.Time) *releasePlan {
	return &releasePlan{state: s, now: vip.InstantOf(now), last: make(map[Resource]int)}
}

// planned returns the lease as the ops make it, or nil.
func (p *releasePlan) planned(r Resource) *Lease {
	if i, ok := p.last[r]; ok {
		return p.ops[i].New
	}
	l, _, _ := p.leases.Get(r)
	return l
}

// release plans that k gives up a resource, and returns the op's index, or -1 if k doesn't hold it.
func (p *releasePlan) release(r Resource, k vip.ServiceKey, cooldown time.Duration) int {
	l := p.planned(r)
	if l == nil || l.HeldBy(k) < 0 {
		return -1
	}
	i, ok := p.last[r]
	if !ok || len(p.ops[i].Old.Holders)-len(l.Holders) >= MaxHolders {
		i = len(p.ops)
		p.ops = append(p.ops, Op{Old: l})
		p.last[r] = i
	}
	p.ops[i].New = p.without(*l, k, cooldown)
	return i
}

// without returns a held lease after k has left it: held by the others, reserved, cooling, or nil for
// free.
func (p *releasePlan) without(l Lease, k vip.ServiceKey, cooldown time.Duration) *Lease {
	i := l.HeldBy(k)
	if len(l.Holders) > 1 {
		l.Holders = slices.Delete(slices.Clone(l.Holders), i, i+1)
		return &l
	}
	if l.Reservation != nil {
		return l.reserved(&Holder{Service: k, Source: l.Holders[i].Source, Node: p.node})
	}
	wait := max(p.cfg.ReuseDelay, cooldown)
	if p.node != "" {
		wait = max(wait, leastCooling)
	}
	if wait <= 0 {
		return nil
	}
	l.State, l.ShareKey, l.Until = Cooling, "", p.now.Add(wait)
	l.Holders = []Holder{{Service: k, Source: l.Holders[i].Source, Port: l.Holders[i].Port, Node: p.node}}
	return &l
}
