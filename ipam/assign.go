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

// tries is how often a service is planned anew because someone else changed a
// lease meanwhile.
const tries = 3

// Assign answers each service with what it holds, in the same order. None comes
// twice. Services that lack something get it where it is to be had, all with one durable
// commit; what can't be granted is a problem that says why and who has it, and
// what the service holds is kept. A CodeStore problem says that the store
// could not be written and that trying again may help; a CodeWaiting problem
// that another host has the first word (Options.Turn), or that what the service
// holds can't be read or changed for now; Run recalls it. One service costs
// O(its own leases, ports and the pool's ranges).
func (a *Allocator) Assign(ctx context.Context, services []*vip.Service) []vip.Allocation {
	a.write.Lock()
	defer a.write.Unlock()
	out := make([]vip.Allocation, len(services))
	for i := range services {
		a.leaving.remove(services[i].Key) // it is here again
		delete(a.cooldowns, services[i].Key)
	}
	todo := turns(services)
	for try := 0; len(todo) > 0; try++ {
		todo = a.assign(ctx, services, todo, out, try+1 < tries)
	}
	return out
}

// Preview answers as Assign would if it were this host's turn, and changes
// nothing.
func (a *Allocator) Preview(proposed []vip.Service) []vip.Allocation {
	services := make([]*vip.Service, len(proposed))
	for i := range proposed {
		services[i] = &proposed[i]
	}
	a.write.Lock()
	defer a.write.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	d := newDraft(a, len(services))
	defer d.undo()
	out := make([]vip.Allocation, len(services))
	answers := make([]*answer, len(services))
	for _, i := range turns(services) {
		answers[i] = d.service(services[i])
	}
	for i := range answers {
		out[i] = answers[i].allocation(d.lease)
	}
	return out
}

// turns is the order that services are served in: those first that ask for
// something by number, lest another gets it automatically.
func turns(services []*vip.Service) []int {
	var first, then []int
	for i := range services {
		s := services[i]
		asks := len(s.VIPs) > 0 || s.HealthPort.Number != 0 || slices.ContainsFunc(s.Ports, func(p vip.Port) bool { return p.NodePort.Number != 0 })
		if asks {
			first = append(first, i)
		} else {
			then = append(then, i)
		}
	}
	return append(first, then...)
}

// assign plans, commits and answers the services at todo. It returns those
// that met a lease that had changed meanwhile, unless this is the last try.
func (a *Allocator) assign(ctx context.Context, services []*vip.Service, todo []int, out []vip.Allocation, again bool) (conflicted []int) {
	now, mine := a.now(), a.mine()
	a.mu.Lock()
	d := newDraft(a, len(todo))
	answers := make([]*answer, len(todo))
	impatient := false
	for n, i := range todo {
		past := a.later.past(services[i].Key, now)
		d.waits = !mine && !past
		impatient = impatient || !mine && past
		answers[n] = d.service(services[i])
	}
	a.mu.Unlock()

	err := d.commit(ctx, a.store.Commit)
	if impatient {
		a.tried(now, cmp.Or(err, d.slow()))
	}
	var moves []*answer
	for n, i := range todo {
		w := answers[n]
		why := err
		for _, op := range w.wants {
			if why == nil {
				why = d.ops[op].Err
			}
		}
		switch conflict := (*ConflictError)(nil); {
		case len(w.wants) == 0:
		case why == nil:
			a.tell(w)
		case again && errors.As(why, &conflict):
			conflicted = append(conflicted, i)
			continue
		default:
			problem, soon := refusal(why)
			answers[n] = a.holding(services[i])
			if k := services[i].Key; !mine && a.later.past(k, now) && a.restraint.next.After(a.now()) {
				a.later.putOff(k, a.restraint.next)
				if errors.Is(why, ErrSlow) { // whoever is elected has no easier time of it
					problem = a.turnProblem()
				}
			}
			answers[n].problems = append(answers[n].problems, problem)
			if soon {
				a.revisit.add(services[i].Key, now.Add(fencedRetry))
				a.nudge()
			}
			continue
		}
		a.settle(w, now)
		if len(w.drops) > 0 {
			moves = append(moves, w)
		}
	}
	if err := a.drop(ctx, moves); err != nil {
		for _, m := range moves {
			m.problems = append(m.problems, storeProblem(err))
		}
	}
	for n, i := range todo {
		if !slices.Contains(conflicted, i) {
			out[i] = answers[n].allocation(a.lease)
		}
	}
	return conflicted
}

// holding answers with what a service has and nothing more.
func (a *Allocator) holding(s *vip.Service) *answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return newDraft(a, 0).holdingOf(s)
}

// drop releases what services gave up for something else, which they have by
// now.
func (a *Allocator) drop(ctx context.Context, moves []*answer) error {
	if len(moves) == 0 {
		return nil
	}
	r := a.newRelease()
	for _, m := range moves {
		for _, resource := range m.drops {
			if r.leave(resource, m.service.Key, m.service.DrainTimeout) >= 0 {
				a.ended(m.service.Key)
			}
		}
	}
	if err := a.commit(ctx, r.ops); err != nil {
		return err
	}
	fenced := make(map[Resource]bool)
	for i := range r.ops {
		fenced[r.ops[i].resource()] = isFenced(r.ops[i].Err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range moves { // what changed meanwhile may be theirs to drop still
		for _, resource := range m.drops {
			switch l, _ := a.lease(resource); {
			case l.HeldBy(m.service.Key) < 0:
			case fenced[resource]:
				a.revisit.add(m.service.Key, a.now().Add(fencedRetry))
				a.nudge()
			default:
				a.recall.add(m.service.Key)
			}
		}
	}
	return nil
}

// tell books addresses that are new to a service as events.
func (a *Allocator) tell(w *answer) {
	for _, r := range w.drawn {
		if l, _, ok := a.leases.Get(r); ok {
			message := r.String() + " is given to " + w.service.Key.String()
			if l.Pool != "" {
				message += " from pool " + l.Pool
			}
			a.events.Add(event.Event{Kind: "lease_given", Service: w.service.Key.String(), Object: r.String(), Message: message})
		}
	}
}

// answer is what was planned for one service.
type answer struct {
	service  *vip.Service
	addrs    []Resource // IPv4 first
	ports    map[vip.PortKey]Resource
	wants    []int      // the draft's ops for it
	drawn    []Resource // what is new to the service
	drops    []Resource // to be released once everything in wants is durable
	kept     []Lease    // what it has that is no lease now: it can't be read, or vanished
	stays    bool       // nothing was planned for it
	putOff   bool       // another host has the first word in something of it
	revisit  time.Time  // when to ask again about something that other hosts keep changing
	problems []vip.Problem
}

func (w *answer) nodePort(k vip.PortKey, r Resource) {
	if w.ports == nil {
		w.ports = make(map[vip.PortKey]Resource)
	}
	w.ports[k] = r
}

func (w *answer) problem(p vip.Problem) {
	p.Service = w.service.Key.String()
	if !slices.Contains(w.problems, p) { // of two things that wait for the same host
		w.problems = append(w.problems, p)
	}
}

// allocation puts the answer into words, with the leases as lease tells them.
func (w *answer) allocation(lease func(Resource) (Lease, bool)) vip.Allocation {
	out := vip.Allocation{Asked: w.service, Problems: w.problems}
	note := func(l Lease) {
		if out.Since.IsZero() || !l.Since.IsZero() && l.Since.Before(out.Since) {
			out.Since = l.Since
		}
	}
	durable := lease
	lease = func(r Resource) (Lease, bool) {
		if i := slices.IndexFunc(w.kept, func(l Lease) bool { return l.Resource == r }); i >= 0 {
			return w.kept[i], true
		}
		return durable(r)
	}
	for _, r := range w.addrs {
		if l, ok := lease(r); ok && l.HeldBy(w.service.Key) >= 0 {
			out.VIPs = append(out.VIPs, r.Addr)
			if out.Pool == "" {
				out.Pool = l.Pool
			}
			note(l)
		}
	}
	for k, r := range w.ports {
		if l, ok := lease(r); ok && l.HeldBy(w.service.Key) >= 0 {
			if out.NodePorts == nil {
				out.NodePorts = make(map[vip.PortKey]uint16)
			}
			out.NodePorts[k] = r.NodePort
			note(l)
		}
	}
	for i := range out.Problems {
		out.Problems[i].Service = w.service.Key.String()
	}
	return out
}
