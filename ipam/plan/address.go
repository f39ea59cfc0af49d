package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"slices"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/ipam/pool"
	"github.com/ironvip/ironvip/vip"
)

// addresses plans an address of each family that the service is to have, and drops those of
// other families.
func (p *Plan) addresses(w *Answer, held, kept []ipam.Lease) {
	s := w.Service
	had := append(held[:len(held):len(held)], p.lost(s.Key)...)
	from, noPool := p.poolFor(s, had, kept)
	families := p.families(s, from, held)
	for i, f := range families {
		p.address(w, f, from, noPool, held, addressesOf(kept, f), families[i+1:])
	}
	switch {
	case len(families) > 0:
	case s.Assigned:
		w.problem(unassigned("vips", "address"))
	default:
		w.problem(noPool)
	}
	for _, l := range held {
		if l.Resource.Addr.IsValid() && !slices.Contains(families, vip.FamilyOf(l.Resource.Addr)) {
			w.Drops = append(w.Drops, l.Resource)
		}
	}
}

func addressesOf(leases []ipam.Lease, f vip.Family) (out []ipam.Lease) {
	for _, l := range leases {
		if l.Resource.Addr.IsValid() && vip.FamilyOf(l.Resource.Addr) == f {
			out = append(out, l)
		}
	}
	return out
}

// poolFor returns the pool of a service: the one it names; else the one of a requested address;
// else the one of what it had, which it holds or which vanished from the store; else the one of what
// is reserved for it; else the one of an address that it prefers; else the first with AutoAssign. Without
// one the problem says why.
func (p *Plan) poolFor(s *vip.Service, had, kept []ipam.Lease) (*pool.Pool, vip.Problem) {
	if s.Pool != "" {
		if named := p.state.pool(s.Pool); named != nil {
			return named, vip.Problem{}
		}
		return nil, vip.Problem{Code: vip.CodeNoPool, Field: "pool", Message: fmt.Sprintf("there is no pool %q", s.Pool), Hint: p.poolHint(s.Key.Namespace)}
	}
	for _, v := range s.VIPs {
		for _, from := range p.state.pools {
			if from.Covers(v) {
				return from, vip.Problem{}
			}
		}
	}
	if len(s.VIPs) > 0 {
		return nil, vip.Problem{
			Code: vip.CodeOutsidePool, Field: "vips", Message: fmt.Sprintf("%s is in no pool", s.VIPs[0]),
			Hint: "request an address of a pool, or add a pool for it",
		}
	}
	for _, l := range had {
		if from := p.state.pool(l.Pool); from != nil && l.Resource.Addr.IsValid() {
			return from, vip.Problem{}
		}
	}
	if from := p.poolReserved(s, kept); from != nil {
		return from, vip.Problem{}
	}
	if from := p.poolPreferred(s); from != nil {
		return from, vip.Problem{}
	}
	for _, from := range p.state.pools {
		if from.AutoAssign && from.Serves(s.Key.Namespace) {
			return from, vip.Problem{}
		}
	}
	return nil, vip.Problem{
		Code: vip.CodeNoPool, Field: "pool", Message: fmt.Sprintf("the service names no pool, and none that serves namespace %q has auto_assign", s.Key.Namespace), Hint: p.poolHint(s.Key.Namespace),
	}
}

// poolReserved returns the pool that has the lowest of the addresses that are reserved for a service
// and that it may get, or nil. A lease's own name of its pool may be older than the configuration.
func (p *Plan) poolReserved(s *vip.Service, kept []ipam.Lease) (best *pool.Pool) {
	wanted, lowest := s.Families.List(), ipam.Resource{}
	for i := range kept {
		r := kept[i].Resource
		if kept[i].State != ipam.Reserved || len(wanted) > 0 && !slices.Contains(wanted, vip.FamilyOf(r.Addr)) || best != nil && lowest.Compare(r) < 0 {
			continue
		}
		if from := p.state.poolOf(r.Addr); from != nil && from.Allows(r.Addr) {
			best, lowest = from, r
		}
	}
	return best
}

// poolPreferred returns the pool of the first address that a service prefers and can have, or nil. One with all families of the
// service comes first.
func (p *Plan) poolPreferred(s *vip.Service) (some *pool.Pool) {
	wanted := s.Families.List()
	for _, a := range s.Preferred {
		from := p.state.poolOf(a)
		if from == nil || !from.Serves(s.Key.Namespace) || len(wanted) > 0 && !slices.Contains(wanted, vip.FamilyOf(a)) {
			continue
		}
		if _, ok := p.preferred(s, from, vip.FamilyOf(a), p.newAddress(s, from)); !ok {
			continue
		}
		if !slices.ContainsFunc(wanted, func(f vip.Family) bool { return from.Ranges[f] == nil }) {
			return from
		}
		some = cmp.Or(some, from)
	}
	return some
}

func (p *Plan) poolHint(namespace string) string {
	hint, n := "", 0
	for _, from := range p.state.pools {
		if !from.Serves(namespace) {
			continue
		}
		if n++; n > 10 {
			hint += " ..."
			break
		}
		hint += " " + from.Name
	}
	switch {
	case hint != "":
		return "choose one of the pools" + hint
	case len(p.state.pools) == 0:
		return "add a [[pool]] to the configuration"
	}
	return "add a [[pool]] that serves the namespace, or the namespace to a pool's namespaces"
}

// families returns the families of the addresses that the service is to have: those it names; else
// those of its requested addresses or of its pool, and of what it holds. If its source assigns
// its addresses, they are the families of those, or else of what it holds.
func (p *Plan) families(s *vip.Service, from *pool.Pool, held []ipam.Lease) []vip.Family {
	want := s.Families.List()
	if s.Assigned {
		want = nil
		for _, v := range s.VIPs {
			want = append(want, vip.FamilyOf(v))
		}
		from = nil
	}
	if len(want) == 0 {
		switch {
		case len(s.VIPs) > 0:
			for _, v := range s.VIPs {
				want = append(want, vip.FamilyOf(v))
			}
		case from != nil:
			want = from.Families()
		}
		for _, l := range held {
			if l.Resource.Addr.IsValid() {
				want = append(want, vip.FamilyOf(l.Resource.Addr))
			}
		}
	}
	slices.Sort(want)
	return slices.Compact(want)
}

// address plans the service's address of one family. It keeps the one that it holds if that fits. Later are the families that are
// planned next.
func (p *Plan) address(w *Answer, f vip.Family, from *pool.Pool, noPool vip.Problem, all, kept []ipam.Lease, later []vip.Family) {
	s, held := w.Service, addressesOf(all, f)
	requested := slices.IndexFunc(s.VIPs, func(v netip.Addr) bool { return vip.FamilyOf(v) == f })
	keep := slices.IndexFunc(held, func(l ipam.Lease) bool {
		return requested >= 0 && l.Resource.Addr == s.VIPs[requested] || requested < 0 && fits(s, from, &l)
	})
	if keep < 0 {
		op, problem := p.chooseAddress(w, f, requested, from, noPool, kept)
		if op.New != nil {
			if over := p.overQuota(w, &op, all, later); over.Code != "" {
				op, problem = ipam.Op{}, over
			}
		}
		first := p.isNew(w)
		if problem = p.gain(w, op, problem); problem == (vip.Problem{}) {
			if first {
				p.services[s.Key.Namespace]++
			}
			w.addrs = append(w.addrs, op.New.Resource)
			w.Drops = append(w.Drops, resourcesOf(held)...)
			return
		}
		if len(held) == 0 {
			w.problem(problem)
			return
		}
		keep = 0 // the others are of a move that was cut short
		problem.Message += fmt.Sprintf("; the service keeps %s", held[0].Resource.Addr)
		w.problem(problem)
	}
	p.refresh(w, from, &held[keep])
	w.addrs = append(w.addrs, held[keep].Resource)
	w.Drops = append(w.Drops, resourcesOf(slices.Delete(held, keep, keep+1))...)
}

// chooseAddress returns the op that gives a service an address of one family: the requested one, by
// its index in the service, or one of the pool.
func (p *Plan) chooseAddress(w *Answer, f vip.Family, requested int, from *pool.Pool, noPool vip.Problem, kept []ipam.Lease) (op ipam.Op, problem vip.Problem) {
	s, field := w.Service, "pool"
	switch {
	case from != nil && !from.Serves(s.Key.Namespace) && !s.Assigned && !p.isOwed(s, from, f, kept):
		problem = vip.Problem{
			Code: vip.CodeNoPool, Message: fmt.Sprintf("pool %q does not serve namespace %q", from.Name, s.Key.Namespace), Hint: p.poolHint(s.Key.Namespace),
		}
	case requested >= 0:
		field = fmt.Sprintf("vips[%d]", requested)
		op, problem = p.requestAddress(w, s.VIPs[requested], from, noPool)
	case s.Assigned:
		problem = unassigned("vips", "address")
	case from == nil:
		problem = noPool
	case from.Ranges[f] == nil:
		problem = vip.Problem{
			Code: vip.CodeNoPool, Field: "families", Message: fmt.Sprintf("pool %q has no %s range", from.Name, familyName(f)),
			Hint: "add one to the pool, or state the families of the service",
		}
	default:
		op, problem = p.allocateAddress(s, from, f, kept)
	}
	problem.Field = cmp.Or(problem.Field, field)
	return op, problem
}

// isOwed reports whether a service claims back what vanished from the store, or gets what is reserved for it.
func (p *Plan) isOwed(s *vip.Service, from *pool.Pool, f vip.Family, kept []ipam.Lease) bool {
	own := p.bestKept(from, kept)
	return own != nil && own.State == ipam.Reserved || len(addressesOf(p.lost(s.Key), f)) > 0
}

// unassigned says that a service's source assigns it nothing of what only the source may assign.
func unassigned(field, what string) vip.Problem {
	return vip.Problem{
		Code: vip.CodeInvalid, Field: field, Message: "source provided no " + what,
		Hint: "find out why the source assigns none: ironvip chooses nothing for this service",
	}
}

// fits reports whether a service without a requested address keeps a lease. It moves only if the
// service itself names another pool, never because its pool changes.
func fits(s *vip.Service, from *pool.Pool, l *ipam.Lease) bool {
	return s.Pool == "" || l.Pool == s.Pool || from != nil && from.Covers(l.Resource.Addr)
}

// refresh brings a kept lease up to date with its service: its source, pool name and share key.
func (p *Plan) refresh(w *Answer, from *pool.Pool, l *ipam.Lease) {
	s := w.Service
	now := *l
	now.Holders = slices.Clone(l.Holders)
	h := &now.Holders[now.HeldBy(s.Key)]
	h.Source = s.Source
	if from != nil && from.Name != now.Pool && p.state.pool(now.Pool) == nil && from.Covers(now.Resource.Addr) {
		now.Pool = from.Name // the pool was renamed
	}
	switch {
	case len(now.Holders) == 1:
		now.ShareKey, h.Ports = shareKeyOf(s), sharedPorts(s)
	case shareKeyOf(s) != now.ShareKey:
		w.problem(vip.Problem{
			Code: vip.CodeAddressTaken, Field: "share_key",
			Message: fmt.Sprintf("%s is shared under %q, among others with %s", now.Resource.Addr, now.ShareKey, otherHolder(&now, s.Key)),
			Hint:    fmt.Sprintf("set share_key back to %q, or delete one of the services", path.Base(now.ShareKey)),
		})
	default:
		h.Ports = nil
		for i, port := range s.Ports {
			k := port.Key()
			if other, its := portHolder(&now, k, s.Key); other != nil {
				w.problem(portTaken(now.Resource, k, other, its, fmt.Sprintf("ports[%d].port", i)))
				continue
			}
			h.Ports = append(h.Ports, k)
		}
		slices.SortFunc(h.Ports, comparePorts)
	}
	if now.Equal(*l) || p.isFrozen(w) {
		return
	}
	h.Node = p.state.Node
	*l = now
	p.set(w, ipam.Op{New: &now})
}

// requestAddress returns the op for the address that a service requests.
func (p *Plan) requestAddress(w *Answer, addr netip.Addr, from *pool.Pool, noPool vip.Problem) (ipam.Op, vip.Problem) {
	if from == nil {
		return ipam.Op{}, noPool
	}
	r := ipam.Resource{Addr: addr}
	if problem, unreadable := p.unreadableProblem(r); unreadable {
		return ipam.Op{}, problem
	}
	if l, _ := p.Lease(r); l.State == ipam.Held {
		op, problem := p.join(w.Service, l, from)
		if op.New == nil {
			w.claims(r)
		}
		return op, problem
	}
	if !from.Allows(addr) {
		return ipam.Op{}, from.Refusal(addr)
	}
	return p.request(w.Service, r, p.newAddress(w.Service, from))
}

// claims notes that a service waits for the holder of a resource that its source has assigned to
// it. The service doesn't wait for the resource to cool down.
func (w *Answer) claims(r ipam.Resource) {
	if w.Service.Assigned {
		w.Claimed = append(w.Claimed, r)
	}
}

// join returns the op for a share of an address that others hold.
func (p *Plan) join(s *vip.Service, l ipam.Lease, from *pool.Pool) (ipam.Op, vip.Problem) {
	if s.ShareKey == "" || shareKeyOf(s) != l.ShareKey || l.Pool != from.Name {
		hint := "request another address"
		if l.Holders[0].Service.Namespace == s.Key.Namespace && (l.ShareKey == "" || l.Pool == from.Name) {
			hint += ", or give both services the same share_key"
		}
		return ipam.Op{}, vip.Problem{
			Code: vip.CodeAddressTaken, Message: heldMessage(&l), Hint: hint,
		}
	}
	for i, port := range s.Ports {
		k := port.Key()
		if other, its := portHolder(&l, k, s.Key); other != nil {
			return ipam.Op{}, portTaken(l.Resource, k, other, its, fmt.Sprintf("ports[%d].port", i))
		}
	}
	l.Holders = append(slices.Clone(l.Holders), p.newAddress(s, from).Holders...)
	return ipam.Op{New: &l}, vip.Problem{}
}

// allocateAddress returns the op for an address that the allocator chooses: one that is reserved for
// the service, one that it prefers, one that is shared, the one that cooled down last, one that vanished from the store,
// or a free one.
func (p *Plan) allocateAddress(s *vip.Service, from *pool.Pool, f vip.Family, kept []ipam.Lease) (ipam.Op, vip.Problem) {
	want := p.newAddress(s, from)
	own := p.bestKept(from, kept)
	if own != nil && own.State == ipam.Reserved {
		return p.give(own.Resource, want), vip.Problem{}
	}
	if own == nil && len(p.lost(s.Key)) == 0 {
		if op, ok := p.preferred(s, from, f, want); ok {
			return op, vip.Problem{}
		}
	}
	if s.ShareKey != "" {
		var problem vip.Problem
		for _, r := range p.shared(shareKey{from.Name, f, shareKeyOf(s)}) {
			l, _ := p.Lease(r)
			if shareOf(&l).key != shareKeyOf(s) {
				continue // as planned it isn't shared any more
			}
			joined, why := p.join(s, l, from)
			if joined.New != nil {
				return joined, vip.Problem{}
			}
			if problem.Code == "" {
				problem = why
			}
		}
		if problem.Code != "" {
			problem.Hint = "choose another port, or another share_key for an address of its own"
			return ipam.Op{}, problem
		}
	}
	if own != nil {
		return p.give(own.Resource, want), vip.Problem{}
	}
	for _, l := range addressesOf(p.lost(s.Key), f) {
		if from.Allows(l.Resource.Addr) {
			return p.give(l.Resource, want), vip.Problem{}
		}
	}
	in := from.Ranges[f]
	op, ok := p.free(in, p.state.index.addrs[f], func(k numbers.Number) ipam.Resource { return ipam.Resource{Addr: in.Addr(k)} }, want)
	if !ok {
		return ipam.Op{}, p.poolFull(from, f)
	}
	return op, vip.Problem{}
}

// preferred is give for the first address that a service prefers and can have.
func (p *Plan) preferred(s *vip.Service, from *pool.Pool, f vip.Family, want ipam.Lease) (ipam.Op, bool) {
	for _, a := range s.Preferred {
		r := ipam.Resource{Addr: a}
		if _, unreadable := p.state.unreadable[r]; unreadable || vip.FamilyOf(a) != f || !from.Allows(a) {
			continue
		}
		switch l, there := p.Lease(r); {
		case !there:
			return p.give(r, want), true
		case l.State == ipam.Held:
			if op, _ := p.join(s, l, from); op.New != nil {
				return op, true
			}
		}
	}
	return ipam.Op{}, false
}

// bestKept returns which of the addresses that are kept for a service it gets in a pool: the lowest
// reserved one, or the one that cooled down last; nil for none.
func (p *Plan) bestKept(from *pool.Pool, kept []ipam.Lease) (best *ipam.Lease) {
	for i := range kept {
		l := &kept[i]
		switch {
		case !from.Allows(l.Resource.Addr):
		case best == nil, l.State == ipam.Reserved && best.State == ipam.Cooling:
			best = l
		case l.State != best.State:
		case l.State == ipam.Reserved && l.Resource.Compare(best.Resource) < 0, l.State == ipam.Cooling && l.Until.After(best.Until):
			best = l
		}
	}
	return best
}

// poolFull says that a pool has no free address of a family.
func (p *Plan) poolFull(from *pool.Pool, f vip.Family) vip.Problem {
	u, planned := p.state.index.usage[from.Name], p.planned[from.Name]
	total := usage{u.held + planned.held, u.cooling + planned.cooling, u.reserved + planned.reserved}
	message := fmt.Sprintf("pool %q has no free %s address: %s", from.Name, familyName(f), total)
	return vip.Problem{Code: vip.CodePoolFull, Message: message, Hint: "add a range to the pool's cidrs, or delete services"}
}

// newAddress returns a service's lease of an address of a pool.
func (p *Plan) newAddress(s *vip.Service, from *pool.Pool) ipam.Lease {
	return ipam.Lease{
		Pool: from.Name, ShareKey: shareKeyOf(s),
		Holders: []ipam.Holder{{Service: s.Key, Source: s.Source, Ports: sharedPorts(s), Node: p.state.Node}},
	}
}

// shareKeyOf returns a service's share key as leases have it: with its namespace, unless that is the default, so
// that no namespace gets traffic of another one's address.
func shareKeyOf(s *vip.Service) string {
	if s.ShareKey == "" || s.Key.Namespace == vip.DefaultNamespace {
		return s.ShareKey
	}
	return s.Key.Namespace + "/" + s.ShareKey
}

// sharedPorts returns the ports that a service has on an address it may share, sorted.
func sharedPorts(s *vip.Service) []vip.PortKey {
	if s.ShareKey == "" {
		return nil
	}
	var out []vip.PortKey
	for i := range s.Ports {
		out = append(out, s.Ports[i].Key())
	}
	slices.SortFunc(out, comparePorts)
	return slices.Compact(out)
}

func comparePorts(a, b vip.PortKey) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.LastPort, b.LastPort))
}

// portHolder returns the holder, other than but, that has port k of a shared address or a part of
// that port range, and the port or range that it has.
func portHolder(l *ipam.Lease, k vip.PortKey, but vip.ServiceKey) (*ipam.Holder, vip.PortKey) {
	for i := range l.Holders {
		h := &l.Holders[i]
		if h.Service == but {
			continue
		}
		if j := slices.IndexFunc(h.Ports, k.Overlaps); j >= 0 {
			return h, h.Ports[j]
		}
	}
	return nil, vip.PortKey{}
}

func otherHolder(l *ipam.Lease, but vip.ServiceKey) vip.ServiceKey {
	for _, h := range l.Holders {
		if h.Service != but {
			return h.Service
		}
	}
	return but
}

// portTaken says that a holder has port k of r, or a part of it, as its own port.
func portTaken(r ipam.Resource, k vip.PortKey, by *ipam.Holder, its vip.PortKey, field string) vip.Problem {
	what := fmt.Sprintf("port %s of the shared %s", k, r)
	if k != its {
		what += fmt.Sprintf(" overlaps %s, which", its)
	}
	return vip.Problem{
		Code: vip.CodePortTaken, Field: field,
		Message: fmt.Sprintf("%s is held by service %q of source %s", what, by.Service, by.Source),
		Hint:    "choose another port, or another address",
	}
}

func familyName(f vip.Family) string {
	if f == vip.IPv6 {
		return "IPv6"
	}
	return "IPv4"
}
