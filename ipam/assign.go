package ipam

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/event"
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
	todo := planOrder(services)
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
	p := newPlan(&a.state, a.now(), len(services))
	out := make([]vip.Allocation, len(services))
	answers := make([]*answer, len(services))
	for _, i := range planOrder(services) {
		answers[i] = p.service(request{service: services[i]})
	}
	for i := range answers {
		out[i] = answers[i].allocation(p.lease)
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
// the service yet, so there is no stampede.
func (a *Allocator) AssignWith(ctx context.Context, s vip.Service, commit func(ctx context.Context, ops []Op) error) error {
	if !a.write.LockWithin(lockTimeout) {
		return nil
	}
	defer a.write.Unlock()
	if a.known == nil || a.releases.has(s.Key) {
		return nil
	}
	now := a.now()
	p := newPlan(&a.state, now, 1)
	w := p.service(request{service: &s, frozen: a.undone.frozenUntil(s.Key, now)})
	if w.unplanned || len(w.ops) == 0 || len(w.drops) > 0 || len(w.problems) > 0 {
		return nil
	}
	if err := a.commit(ctx, p.ops, commit); err != nil {
		return err
	}
	if p.failure(w) == nil {
		a.granted(w, now)
	}
	return nil
}

// planOrder returns the order in which services are planned: first those that request an address
// or a port by number, so that no other service gets it automatically.
func planOrder(services []*vip.Service) []int {
	var first, then []int
	for i := range services {
		s := services[i]
		byNumber := len(s.VIPs) > 0 || s.HealthPort.Number != 0 || slices.ContainsFunc(s.Ports, func(p vip.Port) bool { return p.NodePort.Number != 0 })
		if byNumber {
			first = append(first, i)
		} else {
			then = append(then, i)
		}
	}
	return append(first, then...)
}

// assign plans, commits and answers the services at todo. It returns those that met a lease that
// had changed meanwhile, unless this is the last try.
func (a *Allocator) assign(ctx context.Context, services []*vip.Service, todo []int, out []vip.Allocation, again bool) (conflicted []int) {
	now, leader := a.now(), a.leads()
	p := newPlan(&a.state, now, len(todo))
	if !leader {
		p.waiting = a.waitingProblem()
	}
	answers := make([]*answer, len(todo))
	stepsIn := false
	for n, i := range todo {
		k := services[i].Key
		due := a.waiting.isDue(k)
		stepsIn = stepsIn || !leader && due
		answers[n] = p.service(request{service: services[i], waits: !leader && !due, frozen: a.undone.frozenUntil(k, now)})
	}
	err := a.commit(ctx, p.ops, a.store.Commit)
	if stepsIn && len(p.ops) > 0 {
		a.grace.steppedIn(now, a.now(), cmp.Or(err, p.slow()))
		a.wake.Set()
	}
	var moved []*answer
	for n, i := range todo {
		w := answers[n]
		why := err
		if why == nil {
			why = p.failure(w)
		}
		switch {
		case len(w.ops) == 0 || why == nil:
			a.granted(w, now)
			if len(w.drops) > 0 {
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
			w.problems = append(w.problems, storeProblem(err))
		}
	}
	for n, i := range todo {
		if w := answers[n]; w != nil {
			out[i] = w.allocation(a.lease)
		}
	}
	return conflicted
}

// failure returns why the ops of an answer are not all durable.
func (p *plan) failure(w *answer) error {
	for _, op := range w.ops {
		if err := p.ops[op].Err; err != nil {
			return err
		}
	}
	return nil
}

// slow returns the error of an op that failed because the store is slow.
func (p *plan) slow() error {
	for i := range p.ops {
		if errors.Is(p.ops[i].Err, ErrSlow) {
			return p.ops[i].Err
		}
	}
	return nil
}

// granted publishes what is durable now and schedules what has to wait.
func (a *Allocator) granted(w *answer, now time.Time) {
	k := w.service.Key
	for _, r := range w.gained {
		if l, _, ok := a.leases.Get(r); ok {
			message := r.String() + " is given to " + k.String()
			if l.Pool != "" {
				message += " from pool " + l.Pool
			}
			a.events.Add(event.Event{Kind: "lease_given", Service: k.String(), Object: r.String(), Message: message})
		}
	}
	if w.unplanned {
		return
	}
	a.mu.Lock()
	for _, r := range w.claimed {
		if l, _, _ := a.leases.Get(r); l != nil && l.State == Held {
			a.claimed[r] = w.service.Source
		}
	}
	if !w.waits {
		delete(a.vanished, k)
	}
	a.mu.Unlock()
	if w.waits {
		a.waiting.add(k, now.Add(a.grace.length), deferral{since: now})
		a.wake.Set()
	} else {
		a.waiting.remove(k)
	}
	if !w.retry.IsZero() {
		a.retry(k, w.retry)
	}
}

// refused answers a service for which the store wrote nothing.
func (a *Allocator) refused(s *vip.Service, why error, leader bool) *answer {
	problem, soon := refusal(why)
	now := a.now()
	if !leader && a.waiting.isDue(s.Key) && a.grace.next.After(now) {
		a.waiting.again(s.Key, a.grace.next)
		if errors.Is(why, ErrSlow) { // for the leader, too
			problem = a.waitingProblem()
		}
	}
	if soon {
		a.retry(s.Key, now.Add(fencedRetry))
	}
	w := newPlan(&a.state, now, 0).current(s)
	w.problems = append(w.problems, problem)
	return w
}

// retry recalls a service at that time.
func (a *Allocator) retry(k vip.ServiceKey, at time.Time) {
	a.retries.Hasten(k, at)
	a.wake.Set()
}

// releaseDrops releases what services hold besides what they have now.
func (a *Allocator) releaseDrops(ctx context.Context, moved []*answer) error {
	if len(moved) == 0 {
		return nil
	}
	p := newReleasePlan(&a.state, a.now())
	for _, w := range moved {
		for _, resource := range w.drops {
			if p.release(resource, w.service.Key, w.service.DrainTimeout) >= 0 && a.node != "" {
				a.undone.released(w.service.Key)
			}
		}
	}
	if err := a.commit(ctx, p.ops, a.store.Commit); err != nil {
		return err
	}
	fenced := make(map[Resource]bool)
	for i := range p.ops {
		fenced[p.ops[i].Resource()] = isFenced(p.ops[i].Err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range moved { // what changed meanwhile may still have to be dropped
		for _, resource := range w.drops {
			switch l, _ := a.lease(resource); {
			case l.HeldBy(w.service.Key) < 0:
			case fenced[resource]:
				a.retry(w.service.Key, a.now().Add(fencedRetry))
			default:
				a.recalls.Add(w.service.Key)
			}
		}
	}
	return nil
}
