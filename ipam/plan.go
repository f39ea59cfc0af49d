package ipam

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/ipam/internal/pool"
	"github.com/ironvip/ironvip/vip"
)

// plan computes the ops that give services what they ask for. It reads a state and changes
// nothing: a plan that isn't committed leaves no trace. Each service sees what was planned for
// those before it.
type plan struct {
	*state
	now     vip.Instant
	ops     []Op                            // in order; several on one resource build on each other
	pending map[Resource]*Lease             // the leases that the ops make; none is nil
	planned map[string]usage                // what the ops add to the usage of pools (modulo 2^64)
	shares  map[shareKey][]Resource         // addresses that become shareable
	cursors map[*pool.Ranges]numbers.Number // where automatic allocation continues after the ops
	waiting vip.Problem                     // of services that wait for the leader

	// of the service in hand
	waits   bool       // the leader allocates what it lacks
	frozen  time.Time  // until then it keeps what it holds as it is; see undoBackoff
	holding []Resource // what it holds as planned
}

// newPlan returns an empty plan with room for n services.
func newPlan(s *state, now time.Time, n int) *plan {
	return &plan{
		state:   s,
		now:     vip.InstantOf(now),
		ops:     make([]Op, 0, n),
		pending: make(map[Resource]*Lease, n),
		planned: make(map[string]usage),
		shares:  make(map[shareKey][]Resource),
		cursors: make(map[*pool.Ranges]numbers.Number),
	}
}

// lease returns the lease of r as planned, or as it is.
func (p *plan) lease(r Resource) (Lease, bool) {
	if l := p.pending[r]; l != nil {
		return *l, true
	}
	return p.state.lease(r)
}

// leasesOf returns the leases that a service holds and those that are kept for it. In a fleet
// the older ones come first, so that every host chooses the same among them.
func (p *plan) leasesOf(k vip.ServiceKey) (held, kept []Lease) {
	for r := range p.index.owned.Of(k) {
		l, ok := p.lease(r)
		switch {
		case !ok:
		case l.HeldBy(k) >= 0:
			held = append(held, l)
		case l.KeptFor(k):
			kept = append(kept, l)
		}
	}
	if p.node != "" {
		slices.SortFunc(held, olderFirst)
	}
	return held, kept
}

func olderFirst(a, b Lease) int {
	return cmp.Or(cmp.Compare(a.Since, b.Since), a.Resource.Compare(b.Resource))
}

func resourcesOf(leases []Lease) []Resource {
	out := make([]Resource, len(leases))
	for i := range leases {
		out[i] = leases[i].Resource
	}
	return out
}

// shared returns the addresses that are shared under k, planned ones last.
func (p *plan) shared(k shareKey) []Resource {
	var out []Resource
	for _, a := range p.index.shares[k] {
		out = append(out, Resource{Addr: a})
	}
	for _, r := range p.shares[k] {
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// lost returns the leases of a service that vanished from the store and have no holder now.
func (p *plan) lost(k vip.ServiceKey) (out []Lease) {
	for _, l := range p.vanished[k] {
		_, taken := p.lease(l.Resource)
		if _, unreadable := p.unreadable[l.Resource]; !taken && !unreadable {
			out = append(out, l)
		}
	}
	return out
}

// leftToLeader reports whether the service in hand waits for the leader to allocate r. It takes
// back itself what is kept for it and what vanished from the store, so that no address leaves
// a host for a moment.
func (p *plan) leftToLeader(s *vip.Service, r Resource) bool {
	if !p.waits {
		return false
	}
	if l, there := p.lease(r); there && l.KeptFor(s.Key) {
		return false
	}
	return p.vanishedLease(s.Key, r) == nil
}

// vanishedLease returns the lease of r that a service held when it vanished from the store, the
// newest if it vanished repeatedly, or nil.
func (s *state) vanishedLease(k vip.ServiceKey, r Resource) *Lease {
	for i := range slices.Backward(s.vanished[k]) {
		if l := &s.vanished[k][i]; l.Resource == r {
			return l
		}
	}
	return nil
}

// isFrozen reports whether the service in hand keeps what it holds as it is, and notes in the
// answer until when.
func (p *plan) isFrozen(w *answer) bool {
	if p.frozen.IsZero() {
		return false
	}
	w.retry = p.frozen
	return true
}

// gain plans the op that gives the service in hand something new, unless the leader does that. It
// returns the problem why not, which is why if there is no op.
func (p *plan) gain(w *answer, op Op, why vip.Problem) vip.Problem {
	switch {
	case op.New == nil:
		return why
	case p.leftToLeader(w.service, op.New.Resource):
		w.waits = true
		return p.waiting
	}
	p.set(w, op)
	w.gained = append(w.gained, op.New.Resource)
	return vip.Problem{}
}

// set plans an op, which has a New with the service in hand among its holders. Nobody changes it
// afterwards.
func (p *plan) set(w *answer, op Op) {
	r, by := op.New.Resource, w.service.Key
	if now, there := p.lease(r); there {
		op.Old = new(now)
	}
	if op.Old == nil || op.Old.HeldBy(by) < 0 {
		held := p.holding
		op.Claim = &Claim{Service: by, Holds: held[:len(held):len(held)]}
		p.holding = append(held, r)
	}
	if op.from != nil {
		p.cursors[op.from] = r.number().Plus(1)
	}
	w.ops = append(w.ops, len(p.ops))
	p.ops = append(p.ops, op)
	p.pending[r] = op.New
	if op.Old != nil {
		count(p.planned, op.Old, ^uint64(0))
	}
	count(p.planned, op.New, 1)
	if k := shareOf(op.New); k.key != "" {
		p.shares[k] = append(p.shares[k], r)
	}
}

// give returns the op that makes l, which has a pool, a share key and a holder, the lease of r. Only
// one to be reserved has no holder. A lease that cools down for the holder keeps its age and its pool.
// A reserved one stays reserved, also if it vanished from the store and the holder claims it back.
func (p *plan) give(r Resource, l Lease) Op {
	l.Resource, l.State, l.Since = r, Held, p.now
	if was, there := p.lease(r); there {
		if was.State == Cooling && was.KeptFor(l.Holders[0].Service) {
			l.Pool, l.Since = was.Pool, was.Since
		}
		l.Reservation = was.Reservation
	} else if len(l.Holders) > 0 {
		if was := p.vanishedLease(l.Holders[0].Service, r); was != nil {
			l.Reservation = was.Reservation
		}
	}
	return Op{New: &l}
}

// request is give for a resource that the service requests and that is not held. The service gets
// what cools down for another one only if its source has assigned it: the source knows that the
// former holder is done with it. A resource that is reserved for another service is never granted.
func (p *plan) request(s *vip.Service, r Resource, l Lease) (Op, vip.Problem) {
	kind := "address"
	if r.NodePort != 0 {
		kind = "number"
	}
	switch now, there := p.lease(r); {
	case !there || now.KeptFor(s.Key):
	case now.State == Reserved && len(now.Holders) > 0:
		return Op{}, vip.Problem{
			Code: takenCode(r), Message: reservedMessage(&now),
			Hint: "request another " + kind + ", or release the reservation: ironvip vip release " + r.String(),
		}
	case now.State == Cooling && !s.Assigned:
		return Op{}, vip.Problem{
			Code: takenCode(r), Message: cooledMessage(&now),
			Hint: "wait, or request another " + kind,
		}
	}
	return p.give(r, l), vip.Problem{}
}

// cooledMessage says for whom a lease cools down.
func cooledMessage(l *Lease) string {
	return fmt.Sprintf("%s was released by service %q and is kept for it until %s", l.Resource, l.Holders[0].Service, l.Until.Time().Format(time.RFC3339))
}

// free is give for the next free resource of some ranges, or else the lowest free one of their
// static part. It reports whether there is one.
func (p *plan) free(in *pool.Ranges, used *numbers.Set, resource func(numbers.Number) Resource, l Lease) (Op, bool) {
	planned := func(k numbers.Number) bool { return p.pending[resource(k)] != nil }
	from, moved := p.cursors[in]
	if !moved {
		from = in.Cursor
	}
	if k, ok := in.Dynamic.NextFree(used, from, planned); ok {
		op := p.give(resource(k), l)
		op.from = in
		return op, true
	}
	k, ok := in.Static.NextFree(used, numbers.Number{}, planned)
	if !ok {
		return Op{}, false
	}
	return p.give(resource(k), l), true
}

// answer is what was planned for one service.
type answer struct {
	service   *vip.Service
	addrs     []Resource // IPv4 first
	ports     map[vip.PortKey]Resource
	ops       []int      // the plan's ops for it
	gained    []Resource // what is new to the service
	drops     []Resource // to be released once all ops are durable
	claimed   []Resource // what others hold and its source has assigned to it
	unstored  []Lease    // what it has without a lease: unreadable, or vanished
	unplanned bool       // nothing was planned for it
	waits     bool       // the leader allocates a part of it
	retry     time.Time  // when to ask again for what other hosts keep changing
	problems  []vip.Problem
}

func (w *answer) nodePort(k vip.PortKey, r Resource) {
	if w.ports == nil {
		w.ports = make(map[vip.PortKey]Resource)
	}
	w.ports[k] = r
}

func (w *answer) problem(p vip.Problem) {
	p.Service = w.service.Key.String()
	if !slices.Contains(w.problems, p) { // two resources may wait for the same host
		w.problems = append(w.problems, p)
	}
}

// allocation returns the answer with the leases that lease finds.
func (w *answer) allocation(lease func(Resource) (Lease, bool)) vip.Allocation {
	out := vip.Allocation{Asked: w.service, Problems: w.problems}
	held := func(r Resource) (Lease, bool) {
		i := slices.IndexFunc(w.unstored, func(l Lease) bool { return l.Resource == r })
		l, ok := Lease{}, i >= 0
		if ok {
			l = w.unstored[i]
		} else {
			l, ok = lease(r)
		}
		if !ok || l.HeldBy(w.service.Key) < 0 {
			return l, false
		}
		if out.Since.IsZero() || !l.Since.IsZero() && l.Since.Before(out.Since) {
			out.Since = l.Since
		}
		return l, true
	}
	for _, r := range w.addrs {
		if l, ok := held(r); ok {
			out.Reserved[len(out.VIPs)] = l.Reservation != nil
			out.VIPs = append(out.VIPs, r.Addr)
			if out.Pool == "" {
				out.Pool = l.Pool
			}
		}
	}
	for k, r := range w.ports {
		if _, ok := held(r); ok {
			if out.NodePorts == nil {
				out.NodePorts = make(map[vip.PortKey]uint16)
			}
			out.NodePorts[k] = r.NodePort
		}
	}
	for i := range out.Problems {
		out.Problems[i].Service = w.service.Key.String()
	}
	return out
}

// unreadableProblem says that nobody can have a resource, if the store can't read its lease.
func (p *plan) unreadableProblem(r Resource) (problem vip.Problem, unreadable bool) {
	u, unreadable := p.unreadable[r]
	return vip.Problem{
		Code: takenCode(r), Message: fmt.Sprintf("lease of %s unreadable: %s", r, u.stored.Reason),
		Hint: "fix or remove that key, or request another",
	}, unreadable
}

// takenCode returns the code of a problem with a resource that is not free.
func takenCode(r Resource) string {
	if r.NodePort != 0 {
		return vip.CodePortTaken
	}
	return vip.CodeAddressTaken
}
