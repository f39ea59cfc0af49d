package ipam

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/vip"
)

// plan computes the ops that give services what they ask for. It reads a state and changes
// nothing: a plan that isn't committed leaves no trace. Each service sees what was planned for
// those before it.
type plan struct {
	*state
	now     vip.Instant
	ops     []Op                               // in order; several on one resource build on each other
	pending map[Resource]*Lease                // the leases that the ops make; none is nil
	shares  map[shareKey][]Resource            // addresses that become shareable
	cursors map[*numbers.Number]numbers.Number // the positions of automatic allocation after the ops
	moves   []cursorMove                       // what each op does to a position
	waiting vip.Problem                        // of services that wait for the leader

	// of the service in hand
	waits   bool       // the leader allocates what it lacks
	frozen  time.Time  // until then it keeps what it holds as it is; see undoBackoff
	holding []Resource // what it holds as planned
	move    cursorMove // what the lease that was chosen last does to a position
}

// cursorMove is the position from which automatic allocation continues once an op is durable.
type cursorMove struct {
	cursor *numbers.Number // nil: it stays
	to     numbers.Number
}

// newPlan returns an empty plan with room for n services.
func newPlan(s *state, now time.Time, n int) *plan {
	return &plan{
		state:   s,
		now:     vip.InstantOf(now),
		ops:     make([]Op, 0, n),
		pending: make(map[Resource]*Lease, n),
		shares:  make(map[shareKey][]Resource),
		cursors: make(map[*numbers.Number]numbers.Number),
		moves:   make([]cursorMove, 0, n),
	}
}

// lease returns the lease of r as planned, or as it is.
func (p *plan) lease(r Resource) (Lease, bool) {
	if l := p.pending[r]; l != nil {
		return *l, true
	}
	return p.state.lease(r)
}

// leasesOf returns the leases that a service holds and those that cool down for it. In a fleet
// the older ones come first, so that every host chooses the same among them.
func (p *plan) leasesOf(k vip.ServiceKey) (held, cooling []Lease) {
	for r := range p.index.owned.Of(k) {
		l, ok := p.lease(r)
		switch {
		case !ok:
		case l.HeldBy(k) >= 0:
			held = append(held, l)
		case l.State == Cooling && l.Holders[0].Service == k:
			cooling = append(cooling, l)
		}
	}
	if p.node != "" {
		slices.SortFunc(held, olderFirst)
	}
	return held, cooling
}

func olderFirst(a, b Lease) int {
	return cmp.Or(cmp.Compare(a.Since, b.Since), a.Resource.Addr.Compare(b.Resource.Addr),
		cmp.Compare(a.Resource.NodePort, b.Resource.NodePort), cmp.Compare(a.Resource.Protocol, b.Resource.Protocol))
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

// lost returns a fitting lease of the service that vanished from the store and has no holder now.
func (p *plan) lost(k vip.ServiceKey, fits func(*Lease) bool) *Lease {
	for i := range p.vanished[k] {
		l := &p.vanished[k][i]
		if _, taken := p.lease(l.Resource); !taken && !p.isUnreadable(l.Resource) && fits(l) {
			return l
		}
	}
	return nil
}

// leftToLeader reports whether the service in hand waits for the leader to allocate r. It takes
// back itself what cools down for it and what vanished from the store, so that no address leaves
// a host for a moment.
func (p *plan) leftToLeader(s *vip.Service, r Resource) bool {
	if !p.waits {
		return false
	}
	if l, there := p.lease(r); there && l.State == Cooling && l.Holders[0].Service == s.Key {
		return false
	}
	return !slices.ContainsFunc(p.vanished[s.Key], func(l Lease) bool { return l.Resource == r })
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

// set plans that the lease of its resource becomes l, for the service in hand, which is one of
// its holders. Nobody changes l afterwards.
func (p *plan) set(w *answer, l *Lease) {
	r, by := l.Resource, w.service.Key
	op, move := Op{New: l}, cursorMove{}
	if now, there := p.lease(r); there {
		op.Old = new(now)
	}
	if op.Old == nil || op.Old.HeldBy(by) < 0 {
		held := p.holding
		op.Claim = &Claim{Service: by, Holds: held[:len(held):len(held)]}
		p.holding = append(held, r)
		if move = p.move; move.cursor != nil {
			p.cursors[move.cursor] = move.to
		}
	}
	w.ops = append(w.ops, len(p.ops))
	p.ops, p.moves = append(p.ops, op), append(p.moves, move)
	p.pending[r] = l
	if k := shareOf(l); k.key != "" {
		p.shares[k] = append(p.shares[k], r)
	}
}

// free returns the next free number after a position, or else the lowest free one of the static
// part. It notes the move of the position.
func (p *plan) free(dynamic, static numbers.Spans, used *numbers.Set, cursor *numbers.Number, resource func(numbers.Number) Resource) (Resource, bool) {
	planned := func(k numbers.Number) bool { return p.pending[resource(k)] != nil }
	from, moved := p.cursors[cursor]
	if !moved {
		from = *cursor
	}
	k, ok := dynamic.NextFree(used, from, planned)
	if ok {
		p.move = cursorMove{cursor, k.Plus(1)}
	} else if k, ok = static.NextFree(used, numbers.Number{}, planned); !ok {
		return Resource{}, false
	}
	return resource(k), true
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

// unreadableProblem says that nobody can have a resource.
func unreadableProblem(r Resource, reason string) vip.Problem {
	p := vip.Problem{
		Code: vip.CodeAddressTaken, Message: fmt.Sprintf("lease of %s unreadable: %s", r, reason),
		Hint: "fix or remove that key, or request another",
	}
	if r.NodePort != 0 {
		p.Code = vip.CodePortTaken
	}
	return p
}
