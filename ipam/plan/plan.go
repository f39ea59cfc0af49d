package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/ipam/pool"
	"github.com/ironvip/ironvip/vip"
)

// Plan computes the ops that give services what they ask for. It reads a state and changes
// nothing: a plan that isn't committed leaves no trace. Each service sees what was planned for
// those before it. The caller commits Ops, which sets their Err. Create one with New.
type Plan struct {
	Ops     []ipam.Op   // in order; several on one resource build on each other
	Waiting vip.Problem // of services that wait for the leader

	state    *State
	now      vip.Instant
	found    map[ipam.Resource]*pool.Ranges  // where automatic allocation found a resource
	pending  map[ipam.Resource]*ipam.Lease   // the leases that the ops make; none is nil
	planned  map[string]usage                // what the ops add to the usage of pools (modulo 2^64)
	spaces   map[space]use                   // what they add to the addresses of namespaces (modulo 2^64)
	services map[string]int                  // what they add to the services with addresses of namespaces
	shares   map[shareKey][]ipam.Resource    // addresses that become shareable
	cursors  map[*pool.Ranges]numbers.Number // where automatic allocation continues after the ops

	// of the service in hand
	waits   bool            // the leader allocates what it lacks
	frozen  time.Time       // until then it keeps what it holds as it is
	holding []ipam.Resource // what it holds as planned
}

// New returns an empty plan with room for n services.
func New(s *State, now time.Time, n int) *Plan {
	return &Plan{
		Ops:      make([]ipam.Op, 0, n),
		state:    s,
		now:      vip.InstantOf(now),
		found:    make(map[ipam.Resource]*pool.Ranges),
		pending:  make(map[ipam.Resource]*ipam.Lease, n),
		planned:  make(map[string]usage),
		spaces:   make(map[space]use),
		services: make(map[string]int),
		shares:   make(map[shareKey][]ipam.Resource),
		cursors:  make(map[*pool.Ranges]numbers.Number),
	}
}

// Durable has automatic allocation continue behind what an op, by its index, has made durable. The caller may
// change the state.
func (p *Plan) Durable(op int) {
	r := p.Ops[op].Resource()
	if in := p.found[r]; in != nil { // failed ops don't use up a pool: what nobody got is the next to be allocated
		in.Cursor = numberOf(r).Plus(1)
	}
}

// Lease returns the lease of r as planned, or as it is.
func (p *Plan) Lease(r ipam.Resource) (ipam.Lease, bool) {
	if l := p.pending[r]; l != nil {
		return *l, true
	}
	return p.state.Lease(r)
}

// leasesOf returns the leases that a service holds and those that are kept for it. In a fleet
// the older ones come first, so that every host chooses the same among them.
func (p *Plan) leasesOf(k vip.ServiceKey) (held, kept []ipam.Lease) {
	for r := range p.state.index.owned.Of(k) {
		l, ok := p.Lease(r)
		switch {
		case !ok:
		case l.HeldBy(k) >= 0:
			held = append(held, l)
		case l.KeptFor(k):
			kept = append(kept, l)
		}
	}
	if p.state.Node != "" {
		slices.SortFunc(held, olderFirst)
	}
	return held, kept
}

func olderFirst(a, b ipam.Lease) int {
	return cmp.Or(cmp.Compare(a.Since, b.Since), a.Resource.Compare(b.Resource))
}

func resourcesOf(leases []ipam.Lease) []ipam.Resource {
	out := make([]ipam.Resource, len(leases))
	for i := range leases {
		out[i] = leases[i].Resource
	}
	return out
}

// shared returns the addresses that are shared under k, planned ones last.
func (p *Plan) shared(k shareKey) []ipam.Resource {
	var out []ipam.Resource
	for _, a := range p.state.index.shares[k] {
		out = append(out, ipam.Resource{Addr: a})
	}
	for _, r := range p.shares[k] {
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// lost returns the leases of a service that vanished from the store and have no holder now.
func (p *Plan) lost(k vip.ServiceKey) (out []ipam.Lease) {
	for _, l := range p.state.vanished[k] {
		_, taken := p.Lease(l.Resource)
		if _, unreadable := p.state.unreadable[l.Resource]; !taken && !unreadable {
			out = append(out, l)
		}
	}
	return out
}

// leftToLeader reports whether the service in hand waits for the leader to allocate r. It takes
// back itself what is kept for it and what vanished from the store, so that no address leaves
// a host for a moment.
func (p *Plan) leftToLeader(s *vip.Service, r ipam.Resource) bool {
	if !p.waits {
		return false
	}
	if l, there := p.Lease(r); there && l.KeptFor(s.Key) {
		return false
	}
	return p.state.vanishedLease(s.Key, r) == nil
}

// vanishedLease returns the lease of r that a service held when it vanished from the store, the
// newest if it vanished repeatedly, or nil.
func (s *State) vanishedLease(k vip.ServiceKey, r ipam.Resource) *ipam.Lease {
	for i := range slices.Backward(s.vanished[k]) {
		if l := &s.vanished[k][i]; l.Resource == r {
			return l
		}
	}
	return nil
}

// isFrozen reports whether the service in hand keeps what it holds as it is, and notes in the
// answer until when.
func (p *Plan) isFrozen(w *Answer) bool {
	if p.frozen.IsZero() {
		return false
	}
	w.Retry = p.frozen
	return true
}

// gain plans the op that gives the service in hand something new, unless the leader does that. It
// returns the problem why not, which is why if there is no op.
func (p *Plan) gain(w *Answer, op ipam.Op, why vip.Problem) vip.Problem {
	switch {
	case op.New == nil:
		return why
	case p.leftToLeader(w.Service, op.New.Resource):
		w.Waits = true
		return p.Waiting
	}
	p.set(w, op)
	w.Gained = append(w.Gained, op.New.Resource)
	return vip.Problem{}
}

// set plans an op, which has a New with the service in hand among its holders. Nobody changes it
// afterwards.
func (p *Plan) set(w *Answer, op ipam.Op) {
	r, by := op.New.Resource, w.Service.Key
	if now, there := p.Lease(r); there {
		op.Old = new(now)
	}
	if op.Old == nil || op.Old.HeldBy(by) < 0 {
		held := p.holding
		op.Claim = &ipam.Claim{Service: by, Holds: held[:len(held):len(held)]}
		p.holding = append(held, r)
	}
	if in := p.found[r]; in != nil {
		p.cursors[in] = numberOf(r).Plus(1)
	}
	w.Ops = append(w.Ops, len(p.Ops))
	p.Ops = append(p.Ops, op)
	p.pending[r] = op.New
	if op.Old != nil {
		count(p.planned, op.Old, ^uint64(0))
		countSpace(p.spaces, op.Old, ^uint64(0))
	}
	count(p.planned, op.New, 1)
	countSpace(p.spaces, op.New, 1)
	if k := shareOf(op.New); k.key != "" {
		p.shares[k] = append(p.shares[k], r)
	}
}

// give returns the op that makes l, which has a pool, a share key and a holder, the lease of r. Only
// one to be reserved has no holder. A lease that cools down for the holder keeps its age and its pool.
// A reserved one stays reserved, also if it vanished from the store and the holder claims it back.
func (p *Plan) give(r ipam.Resource, l ipam.Lease) ipam.Op {
	l.Resource, l.State, l.Since = r, ipam.Held, p.now
	if was, there := p.Lease(r); there {
		if was.State == ipam.Cooling && was.KeptFor(l.Holders[0].Service) {
			l.Pool, l.Since = was.Pool, was.Since
		}
		l.Reservation = was.Reservation
	} else if len(l.Holders) > 0 {
		if was := p.state.vanishedLease(l.Holders[0].Service, r); was != nil {
			l.Reservation = was.Reservation
		}
	}
	return ipam.Op{New: &l}
}

// request is give for a resource that the service requests and that is not held. The service gets
// what cools down for another one only if its source has assigned it: the source knows that the
// former holder is done with it. A resource that is reserved for another service is never granted.
func (p *Plan) request(s *vip.Service, r ipam.Resource, l ipam.Lease) (ipam.Op, vip.Problem) {
	kind := "address"
	if r.NodePort != 0 {
		kind = "number"
	}
	switch now, there := p.Lease(r); {
	case !there || now.KeptFor(s.Key):
	case now.State == ipam.Reserved && len(now.Holders) > 0:
		return ipam.Op{}, vip.Problem{
			Code: takenCode(r), Message: ReservedMessage(&now),
			Hint: "request another " + kind + ", or release the reservation: ironvip vip release " + r.String(),
		}
	case now.State == ipam.Cooling && !s.Assigned:
		return ipam.Op{}, vip.Problem{
			Code: takenCode(r), Message: cooledMessage(&now),
			Hint: "wait, or request another " + kind,
		}
	}
	return p.give(r, l), vip.Problem{}
}

// cooledMessage says for whom a lease cools down.
func cooledMessage(l *ipam.Lease) string {
	return fmt.Sprintf("%s was released by service %q and is kept for it until %s", l.Resource, l.Holders[0].Service, l.Until.Time().Format(time.RFC3339))
}

// free is give for the next free resource of some ranges, or else the lowest free one of their
// static part. It reports whether there is one.
func (p *Plan) free(in *pool.Ranges, used *numbers.Set, resource func(numbers.Number) ipam.Resource, l ipam.Lease) (ipam.Op, bool) {
	planned := func(k numbers.Number) bool { return p.pending[resource(k)] != nil }
	from, moved := p.cursors[in]
	if !moved {
		from = in.Cursor
	}
	if k, ok := in.Dynamic.NextFree(used, from, planned); ok {
		p.found[resource(k)] = in
		return p.give(resource(k), l), true
	}
	k, ok := in.Static.NextFree(used, numbers.Number{}, planned)
	if !ok {
		return ipam.Op{}, false
	}
	return p.give(resource(k), l), true
}

// Answer is what was planned for one service.
type Answer struct {
	Service   *vip.Service
	Ops       []int           // the plan's ops for it
	Gained    []ipam.Resource // what is new to the service
	Drops     []ipam.Resource // to be released once all ops are durable
	Claimed   []ipam.Resource // what others hold and its source has assigned to it
	Unplanned bool            // nothing was planned for it
	Waits     bool            // the leader allocates a part of it
	Retry     time.Time       // when to ask again for what other hosts keep changing; zero: not
	Problems  []vip.Problem

	addrs    []ipam.Resource // IPv4 first
	ports    map[vip.PortKey]ipam.Resource
	unstored []ipam.Lease // what it has without a lease: unreadable, or vanished
}

func (w *Answer) nodePort(k vip.PortKey, r ipam.Resource) {
	if w.ports == nil {
		w.ports = make(map[vip.PortKey]ipam.Resource)
	}
	w.ports[k] = r
}

func (w *Answer) problem(p vip.Problem) {
	p.Service = w.Service.Key.String()
	if !slices.Contains(w.Problems, p) { // two resources may wait for the same host
		w.Problems = append(w.Problems, p)
	}
}

// Allocation returns the answer with the leases that lease finds.
func (w *Answer) Allocation(lease func(ipam.Resource) (ipam.Lease, bool)) vip.Allocation {
	out := vip.Allocation{Asked: w.Service, Problems: w.Problems}
	held := func(r ipam.Resource) (ipam.Lease, bool) {
		i := slices.IndexFunc(w.unstored, func(l ipam.Lease) bool { return l.Resource == r })
		l, ok := ipam.Lease{}, i >= 0
		if ok {
			l = w.unstored[i]
		} else {
			l, ok = lease(r)
		}
		if !ok || l.HeldBy(w.Service.Key) < 0 {
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
		out.Problems[i].Service = w.Service.Key.String()
	}
	return out
}

// unreadableProblem says that nobody can have a resource, if the store can't read its lease.
func (p *Plan) unreadableProblem(r ipam.Resource) (problem vip.Problem, unreadable bool) {
	u, unreadable := p.state.unreadable[r]
	return vip.Problem{
		Code: takenCode(r), Message: fmt.Sprintf("lease of %s unreadable: %s", r, u.Stored.Reason),
		Hint: "fix or remove that key, or request another",
	}, unreadable
}

// takenCode returns the code of a problem with a resource that is not free.
func takenCode(r ipam.Resource) string {
	if r.NodePort != 0 {
		return vip.CodePortTaken
	}
	return vip.CodeAddressTaken
}

// Failure returns why the ops of an answer are not all durable.
func (p *Plan) Failure(w *Answer) error {
	for _, op := range w.Ops {
		if err := p.Ops[op].Err; err != nil {
			return err
		}
	}
	return nil
}

// Slow returns the error of an op that failed because the store is slow.
func (p *Plan) Slow() error {
	for i := range p.Ops {
		if errors.Is(p.Ops[i].Err, ipam.ErrSlow) {
			return p.Ops[i].Err
		}
	}
	return nil
}
