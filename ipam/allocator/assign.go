package allocator

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/plan"
	"github.com/ironvip/ironvip/vip"
)

const (
	// tries is how often a service is planned again because a lease changed meanwhile.
	tries = 3
	// fencedRetry is how soon a service is asked for again that a store holds back.
	fencedRetry = 5 * time.Second
	// lockTimeout is how long AssignWith waits for an allocator that is busy: longer than it takes
	// to record a change, and not longer than the commit that it would save.
	lockTimeout = 5 * time.Millisecond
)

// Assign answers each service with what it holds, in the same order. No service may come twice.
// Services that lack something get it if it is available, all with one durable commit. A resource
// that can't be granted is a problem that names the reason and the holder, and the service keeps
// what it holds. A CodeStore problem says that the store could not be written and that trying again
// may help. A CodeWaiting problem says that the leader comes first, or that what the service holds
// can't be read or changed now; Run recalls the service. One service costs O(its own leases, its
// ports and the pool's ranges).
func (a *Allocator) Assign(ctx context.Context, services []*vip.Service) []vip.Allocation {
	a.write.Lock()
	defer a.write.Unlock()
	out := make([]vip.Allocation, len(services))
	for i := range services {
		a.releases.remove(services[i].Key) // it is back
	}
	todo := plan.Order(services)
	for try := 0; len(todo) > 0; try++ {
		todo = a.assign(ctx, services, todo, out, try+1 < tries)
	}
	return out
}

// Preview answers as Assign would on the leader, and changes nothing.
func (a *Allocator) Preview(proposed []vip.Service) []vip.Allocation {
	services := make([]*vip.Service, len(proposed))
	for i := range proposed {
		services[i] = &proposed[i]
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	p := plan.New(a.state, a.now(), len(services))
	out := make([]vip.Allocation, len(services))
	answers := make([]*plan.Answer, len(services))
	for _, i := range plan.Order(services) {
		answers[i] = p.Service(services[i], false, time.Time{})
	}
	for i := range answers {
		out[i] = answers[i].Allocation(p.Lease)
	}
	return out
}

// AssignWith assigns what a service needs before it is registered, so that the store can hold both
// from the same moment. It calls commit in place of the Store's Commit, at most once. commit makes
// the ops durable together with the registration, all or nothing, and sets each op's Err. The error
// is commit's.
//
// AssignWith does nothing, and leaves the service to Assign, if it would take more than new leases:
// while the allocator is busy or doesn't know all services yet, if something can't be granted, or
// if the service gives something up. It allocates whoever the leader is: only this host knows of
// the service yet, so there is no stampede. Only the leader allocates for a namespace with a quota.
func (a *Allocator) AssignWith(ctx context.Context, s vip.Service, commit func(ctx context.Context, ops []ipam.Op) error) error {
	if !a.write.LockWithin(lockTimeout) {
		return nil
	}
	defer a.write.Unlock()
	if a.known == nil || a.releases.has(s.Key) || !a.leads() && a.state.HasQuota(s.Key.Namespace) {
		return nil
	}
	now := a.now()
	p := plan.New(a.state, now, 1)
	w := p.Service(&s, false, a.undone.frozenUntil(s.Key, now))
	if w.Unplanned || len(w.Ops) == 0 || len(w.Drops) > 0 || len(w.Problems) > 0 {
		return nil
	}
	if err := a.commit(ctx, p.Ops, commit, p.Durable); err != nil {
		return err
	}
	if p.Failure(w) == nil {
		a.granted(w, now)
	}
	return nil
}

// assign plans, commits and answers the services at todo. It returns those that met a lease that
// had changed meanwhile, unless this is the last try.
func (a *Allocator) assign(ctx context.Context, services []*vip.Service, todo []int, out []vip.Allocation, again bool) (conflicted []int) {
	now, leader := a.now(), a.leads()
	p := plan.New(a.state, now, len(todo))
	if !leader {
		p.Waiting = a.waitingProblem()
	}
	answers := make([]*plan.Answer, len(todo))
	stepsIn := false
	for n, i := range todo {
		k := services[i].Key
		due := a.waiting.isDue(k)
		stepsIn = stepsIn || !leader && due
		answers[n] = p.Service(services[i], !leader && !due, a.undone.frozenUntil(k, now))
	}
	err := a.commit(ctx, p.Ops, a.store.Commit, p.Durable)
	if stepsIn && len(p.Ops) > 0 {
		a.grace.steppedIn(now, a.now(), cmp.Or(err, p.Slow()))
		a.wake.Set()
	}
	var moved []*plan.Answer
	for n, i := range todo {
		w := answers[n]
		why := err
		if why == nil {
			why = p.Failure(w)
		}
		switch {
		case len(w.Ops) == 0 || why == nil:
			a.granted(w, now)
			if len(w.Drops) > 0 {
				moved = append(moved, w)
			}
		case again && isConflict(why):
			conflicted, answers[n] = append(conflicted, i), nil
		default:
			answers[n] = a.refused(services[i], why, leader)
		}
	}
	if err := a.releaseDrops(ctx, moved); err != nil {
		for _, w := range moved {
			w.Problems = append(w.Problems, storeProblem(err))
		}
	}
	for n, i := range todo {
		if w := answers[n]; w != nil {
			out[i] = w.Allocation(a.state.Lease)
		}
	}
	return conflicted
}

// granted publishes what is durable now and schedules what has to wait.
func (a *Allocator) granted(w *plan.Answer, now time.Time) {
	k := w.Service.Key
	for _, r := range w.Gained {
		if l, ok := a.state.Lease(r); ok {
			message := r.String() + " is given to " + k.String()
			if l.Pool != "" {
				message += " from pool " + l.Pool
			}
			a.events.Add(event.Event{Kind: "lease_given", Service: k.String(), Object: r.String(), Message: message})
		}
	}
	if w.Unplanned {
		return
	}
	a.mu.Lock()
	for _, r := range w.Claimed {
		if l, _ := a.state.Lease(r); l.State == ipam.Held {
			a.claimed[r] = w.Service.Source
		}
	}
	if !w.Waits {
		a.state.ForgetVanished(k)
	}
	a.mu.Unlock()
	if w.Waits {
		a.waiting.add(k, now.Add(a.grace.length), deferral{since: now})
		a.wake.Set()
	} else {
		a.waiting.remove(k)
	}
	if !w.Retry.IsZero() {
		a.retry(k, w.Retry)
	}
}

// refused answers a service for which the store wrote nothing.
func (a *Allocator) refused(s *vip.Service, why error, leader bool) *plan.Answer {
	problem, soon := refusal(why)
	now := a.now()
	if !leader && a.waiting.isDue(s.Key) && a.grace.next.After(now) {
		a.waiting.again(s.Key, a.grace.next)
		if errors.Is(why, ipam.ErrSlow) { // for the leader, too
			problem = a.waitingProblem()
		}
	}
	if soon {
		a.retry(s.Key, now.Add(fencedRetry))
	}
	w := plan.New(a.state, now, 0).Current(s)
	w.Problems = append(w.Problems, problem)
	return w
}

// retry recalls a service at that time.
func (a *Allocator) retry(k vip.ServiceKey, at time.Time) {
	a.retries.Hasten(k, at)
	a.wake.Set()
}

// releaseDrops releases what services hold besides what they have now.
func (a *Allocator) releaseDrops(ctx context.Context, moved []*plan.Answer) error {
	if len(moved) == 0 {
		return nil
	}
	p := plan.NewReleases(a.state, a.now())
	for _, w := range moved {
		for _, resource := range w.Drops {
			if p.Release(resource, w.Service.Key, w.Service.DrainTimeout) >= 0 && a.state.Node != "" {
				a.undone.released(w.Service.Key)
			}
		}
	}
	if err := a.commit(ctx, p.Ops, a.store.Commit, nil); err != nil {
		return err
	}
	fenced := make(map[ipam.Resource]bool)
	for i := range p.Ops {
		fenced[p.Ops[i].Resource()] = isFenced(p.Ops[i].Err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range moved { // what changed meanwhile may still have to be dropped
		for _, resource := range w.Drops {
			switch l, _ := a.state.Lease(resource); {
			case l.HeldBy(w.Service.Key) < 0:
			case fenced[resource]:
				a.retry(w.Service.Key, a.now().Add(fencedRetry))
			default:
				a.recalls.Add(w.Service.Key)
			}
		}
	}
	return nil
}
