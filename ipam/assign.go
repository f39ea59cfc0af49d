package ipam

import (
	"context"
	"errors"
	"slices"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/event"
)

// tries is how often a service is planned anew because someone else changed a
// lease meanwhile.
const tries = 3

// Assign answers each service with what it holds, in the same order. Services
// that lack something get it where it is to be had, all with one durable
// commit; what can't be granted is a problem that says why and who has it, and
// what the service holds is kept. A CodeStore problem says that the store
// could not be written and that trying again may help. One service costs
// O(its own leases, ports and the pool's ranges).
func (a *Allocator) Assign(ctx context.Context, services []vip.Service) []vip.Allocation {
	a.write.Lock()
	defer a.write.Unlock()
	out := make([]vip.Allocation, len(services))
	todo := turns(services)
	for try := 0; len(todo) > 0; try++ {
		todo = a.assign(ctx, services, todo, out, try+1 < tries)
	}
	return out
}

// Preview answers as Assign would and changes nothing.
func (a *Allocator) Preview(services []vip.Service) []vip.Allocation {
	a.write.Lock()
	defer a.write.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	d := newDraft(a)
	defer d.undo()
	out := make([]vip.Allocation, len(services))
	answers := make([]*answer, len(services))
	for _, i := range turns(services) {
		answers[i] = d.service(&services[i])
	}
	for i := range answers {
		out[i] = answers[i].allocation(d.lease)
	}
	return out
}

// turns is the order that services are served in: those first that ask for
// something by number, lest another gets it automatically.
func turns(services []vip.Service) []int {
	var first, then []int
	for i := range services {
		s := &services[i]
		asks := len(s.VIPs) > 0 || slices.ContainsFunc(s.Ports, func(p vip.Port) bool { return p.NodePort.Number != 0 })
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
func (a *Allocator) assign(ctx context.Context, services []vip.Service, todo []int, out []vip.Allocation, again bool) (conflicted []int) {
	a.mu.Lock()
	d := newDraft(a)
	answers := make([]*answer, len(todo))
	for n, i := range todo {
		answers[n] = d.service(&services[i])
	}
	a.mu.Unlock()

	failed, err := d.commit(ctx)
	var moves []*answer
	for n, i := range todo {
		why := err
		for _, r := range answers[n].wants {
			if why == nil {
				why = failed[r]
			}
		}
		switch conflict := (*ConflictError)(nil); {
		case len(answers[n].wants) == 0:
		case why == nil:
			a.tell(answers[n])
		case again && errors.As(why, &conflict):
			conflicted = append(conflicted, i)
			continue
		default:
			answers[n] = a.holding(&services[i])
			answers[n].problems = append(answers[n].problems, storeProblem(why))
		}
		if len(answers[n].drops) > 0 {
			moves = append(moves, answers[n])
		}
	}
	if err := a.drop(ctx, moves); err != nil {
		for _, m := range moves {
			m.problems = append(m.problems, storeProblem(err))
		}
	}
	for n, i := range todo {
		if !slices.Contains(conflicted, i) {
			out[i] = answers[n].allocation(a.durable)
		}
	}
	return conflicted
}

// durable returns a lease as it is.
func (a *Allocator) durable(r Resource) (Lease, bool) {
	l, _, ok := a.leases.Get(r)
	return l, ok
}

// holding answers with what a service has and nothing more.
func (a *Allocator) holding(s *vip.Service) *answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := newDraft(a)
	held, _ := d.of(s.Key)
	out := &answer{service: s}
	for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
		for _, l := range held {
			if l.Resource.Addr.IsValid() && vip.FamilyOf(l.Resource.Addr) == f {
				out.addrs = append(out.addrs, l.Resource)
				break
			}
		}
	}
	for _, l := range held {
		if l.Resource.NodePort != 0 {
			out.nodePort(l.Holders[0].Port, l.Resource)
		}
	}
	return out
}

// drop releases what services gave up for something else, which they have by
// now.
func (a *Allocator) drop(ctx context.Context, moves []*answer) error {
	if len(moves) == 0 {
		return nil
	}
	changes := make(map[Resource]*Op) // a shared address may lose several holders at once
	var order []Resource
	for _, m := range moves {
		for _, r := range m.drops {
			l, _, ok := a.leases.Get(r)
			if !ok {
				continue
			}
			op := changes[r]
			if op == nil {
				op = &Op{Old: &l, New: &l}
				changes[r] = op
				order = append(order, r)
			}
			if op.New != nil && op.New.HeldBy(m.service.Key) >= 0 {
				op.New = a.released(*op.New, m.service.Key, m.service.DrainTimeout)
			}
		}
	}
	var ops []Op
	for _, r := range order {
		ops = append(ops, *changes[r])
	}
	_, err := a.commit(ctx, ops) // what changed meanwhile is no longer theirs to drop
	return err
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
	wants    []Resource // of these and no others the leases are to change
	drawn    []Resource // those of wants that are new to the service
	drops    []Resource // to be released once everything in wants is durable
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
	w.problems = append(w.problems, p)
}

// allocation puts the answer into words, with the leases as lease tells them.
func (w *answer) allocation(lease func(Resource) (Lease, bool)) vip.Allocation {
	out := vip.Allocation{Service: w.service.Key, Problems: w.problems}
	note := func(l Lease) {
		if out.Since.IsZero() || l.Since.Before(out.Since) {
			out.Since = l.Since
		}
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
