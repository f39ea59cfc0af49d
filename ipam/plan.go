package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// service plans what one service is to hold. The caller holds both locks.
func (d *draft) service(s *vip.Service) *answer {
	if len(d.a.stuck[s.Key]) > 0 {
		return d.stick(s)
	}
	w := &answer{service: s}
	held, cooling := d.of(s.Key)
	d.holding = resourcesOf(held)
	pool, noPool := d.poolFor(s, held)
	families := d.families(s, pool, held)
	for _, f := range families {
		d.address(w, f, pool, noPool, addressesOf(held, f), addressesOf(cooling, f))
	}
	switch {
	case len(families) > 0:
	case s.Assigned:
		w.problem(unassigned("vips", "addresses"))
	default:
		w.problem(noPool)
	}
	for _, l := range held {
		if l.Resource.Addr.IsValid() && !slices.Contains(families, vip.FamilyOf(l.Resource.Addr)) {
			w.drops = append(w.drops, l.Resource)
		}
	}
	d.nodePorts(w, held, cooling)
	d.deferDrops(w)
	return w
}

func resourcesOf(leases []Lease) []Resource {
	out := make([]Resource, len(leases))
	for i := range leases {
		out[i] = leases[i].Resource
	}
	return out
}

func addressesOf(leases []Lease, f vip.Family) (out []Lease) {
	for _, l := range leases {
		if l.Resource.Addr.IsValid() && vip.FamilyOf(l.Resource.Addr) == f {
			out = append(out, l)
		}
	}
	return out
}

// poolFor returns the pool that a service draws from: the one it names; else
// the one that a requested address is in; else the one of what it holds; else
// the first with AutoAssign. Without one the problem says why.
func (d *draft) poolFor(s *vip.Service, held []Lease) (*pool, vip.Problem) {
	if s.Pool != "" {
		if p := d.a.pool(s.Pool); p != nil {
			return p, vip.Problem{}
		}
		return nil, vip.Problem{Code: vip.CodeNoPool, Field: "pool", Message: fmt.Sprintf("there is no pool %q", s.Pool), Hint: d.poolHint()}
	}
	for _, v := range s.VIPs {
		for _, p := range d.a.pools {
			if p.covers(v) {
				return p, vip.Problem{}
			}
		}
	}
	if len(s.VIPs) > 0 {
		return nil, vip.Problem{
			Code: vip.CodeOutsidePool, Field: "vips", Message: fmt.Sprintf("%s is in no pool", s.VIPs[0]),
			Hint: "request an address of a pool, or add a pool for it",
		}
	}
	for _, l := range held {
		if p := d.a.pool(l.Pool); p != nil && l.Resource.Addr.IsValid() {
			return p, vip.Problem{}
		}
	}
	for _, p := range d.a.pools {
		if p.AutoAssign {
			return p, vip.Problem{}
		}
	}
	return nil, vip.Problem{
		Code: vip.CodeNoPool, Field: "pool", Message: "the service names no pool, and none has auto_assign", Hint: d.poolHint(),
	}
}

func (d *draft) poolHint() string {
	if len(d.a.pools) == 0 {
		return "add a [[pool]] to the configuration"
	}
	hint := "the pools are"
	for i, p := range d.a.pools {
		if i == 10 {
			return hint + " ..."
		}
		hint += " " + p.Name
	}
	return hint
}

// families returns those the service is to have an address of: what it says;
// else those of the addresses it requests, or else of its pool, and in both
// cases what it holds already. Of one whose addresses were assigned elsewhere it
// is those of the addresses or, for want of any, of what it holds.
func (d *draft) families(s *vip.Service, p *pool, held []Lease) []vip.Family {
	want := s.Families.List()
	if s.Assigned {
		want = nil
		for _, v := range s.VIPs {
			want = append(want, vip.FamilyOf(v))
		}
		p = nil
	}
	if len(want) == 0 {
		switch {
		case len(s.VIPs) > 0:
			for _, v := range s.VIPs {
				want = append(want, vip.FamilyOf(v))
			}
		case p != nil:
			want = p.families()
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

// address plans the service's address of one family.
func (d *draft) address(w *answer, f vip.Family, p *pool, noPool vip.Problem, held, cooling []Lease) {
	s := w.service
	var chosen *Lease
	field, n := "pool", slices.IndexFunc(s.VIPs, func(v netip.Addr) bool { return vip.FamilyOf(v) == f })
	for i := range held {
		if n >= 0 && held[i].Resource.Addr == s.VIPs[n] || n < 0 && d.fits(s, p, &held[i]) {
			chosen = &held[i]
			break
		}
	}
	if chosen != nil {
		d.refresh(w, p, chosen)
	} else {
		var problem vip.Problem
		d.moved = moved{}
		switch {
		case n >= 0:
			field = fmt.Sprintf("vips[%d]", n)
			chosen, problem = d.request(s, s.VIPs[n], p, noPool)
		case s.Assigned:
			problem = unassigned("vips", "addresses")
		case p == nil:
			problem = noPool
		case p.ranges[f] == nil:
			problem = vip.Problem{
				Code: vip.CodeNoPool, Message: fmt.Sprintf("pool %q has no %s range", p.Name, familyName(f)),
				Hint: "add one to the pool, or state the families of the service",
			}
			field = "families"
		default:
			chosen, problem = d.draw(s, p, f, cooling)
		}
		if chosen != nil && d.defers(s, chosen.Resource) {
			chosen, problem = nil, d.pend(w)
		}
		if chosen == nil {
			if problem.Field == "" && problem.Code != vip.CodeWaiting {
				problem.Field = field
			}
			if len(held) > 0 {
				problem.Message += fmt.Sprintf("; the service keeps %s", held[0].Resource.Addr)
				d.refresh(w, p, &held[0])
				w.addrs = append(w.addrs, held[0].Resource)
				w.drops = append(w.drops, resourcesOf(held[1:])...) // of a move that was cut short
			}
			w.problem(problem)
			return
		}
		w.wants = append(w.wants, d.set(chosen, s.Key))
		w.drawn = append(w.drawn, chosen.Resource)
	}
	w.addrs = append(w.addrs, chosen.Resource)
	for _, l := range held {
		if l.Resource != chosen.Resource {
			w.drops = append(w.drops, l.Resource)
		}
	}
}

// unassigned says that a service is to take what it was assigned, and was
// assigned nothing.
func unassigned(field, what string) vip.Problem {
	return vip.Problem{
		Code: vip.CodeInvalid, Field: field, Message: fmt.Sprintf("its source assigns its %s, and has assigned none here", what),
		Hint: "see why the source names none: nothing is chosen for such a service",
	}
}

// fits reports whether a held lease is what a service without a requested
// address may go on with. Only another pool in the service itself makes it
// move, never what became of the pool.
func (d *draft) fits(s *vip.Service, p *pool, l *Lease) bool {
	return s.Pool == "" || l.Pool == s.Pool || p != nil && p.covers(l.Resource.Addr)
}

// refresh brings a kept lease up to date with its service: where it comes
// from, its pool's name, what it shares.
func (d *draft) refresh(w *answer, p *pool, l *Lease) {
	s := w.service
	now := *l
	now.Holders = slices.Clone(l.Holders)
	h := &now.Holders[now.HeldBy(s.Key)]
	h.Source = s.Source
	if p != nil && p.Name != now.Pool && d.a.pool(now.Pool) == nil && p.covers(now.Resource.Addr) {
		now.Pool = p.Name // the pool has another name now
	}
	switch {
	case len(now.Holders) == 1:
		now.ShareKey, h.Ports = s.ShareKey, sharedPorts(s)
	case s.ShareKey != now.ShareKey:
		w.problem(vip.Problem{
			Code: vip.CodeAddressTaken, Field: "share_key",
			Message: fmt.Sprintf("%s is shared under %q, among others with %s", now.Resource.Addr, now.ShareKey, otherHolder(&now, s.Key)),
			Hint:    fmt.Sprintf("set share_key back to %q, or delete one of the services", now.ShareKey),
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
	if now.Equal(*l) || d.contested(w) {
		return
	}
	h.Node = d.a.node
	*l = now
	w.wants = append(w.wants, d.set(&now, s.Key))
}

// request plans a lease on the address that a service asks for.
func (d *draft) request(s *vip.Service, addr netip.Addr, p *pool, noPool vip.Problem) (*Lease, vip.Problem) {
	if p == nil {
		return nil, noPool
	}
	r := Resource{Addr: addr}
	if b, is := d.a.blocked[r]; is {
		return nil, blockedProblem(r, b.told.Reason)
	}
	if l, taken := d.lease(r); taken && l.State == Held {
		joined, problem := d.join(s, l, p)
		if joined == nil {
			d.await(s, r)
		}
		return joined, problem
	}
	if !p.allows(addr) {
		return nil, p.refusal(addr, d.a.guard)
	}
	l, taken := d.lease(r)
	if taken && !coolsFor(s, &l) {
		return nil, vip.Problem{
			Code:    vip.CodeAddressTaken,
			Message: fmt.Sprintf("%s was released by service %q and is kept for it until %s", addr, l.Holders[0].Service, l.Until.Time().Format(time.RFC3339)),
			Hint:    "wait, or request another address",
		}
	}
	if taken && l.Holders[0].Service == s.Key {
		return d.revive(s, l), vip.Problem{}
	}
	return d.claim(s, r, p), vip.Problem{}
}

// coolsFor reports whether a service may have what cools: its own or, since
// whoever assigned it has seen to the former holder, one that was assigned to it.
func coolsFor(s *vip.Service, l *Lease) bool { return s.Assigned || l.Holders[0].Service == s.Key }

// await notes that a service that was assigned r waits for the holder to give it
// up, and not for it to cool.
func (d *draft) await(s *vip.Service, r Resource) {
	if s.Assigned {
		d.a.awaited[r] = s.Source
	}
}

// join plans to share an address that others hold.
func (d *draft) join(s *vip.Service, l Lease, p *pool) (*Lease, vip.Problem) {
	first := l.Holders[0]
	if s.ShareKey == "" || s.ShareKey != l.ShareKey || l.Pool != p.Name {
		hint := "request another address"
		if l.ShareKey == "" || l.Pool == p.Name {
			hint += ", or give both services the same share_key"
		}
		return nil, vip.Problem{
			Code:    vip.CodeAddressTaken,
			Message: fmt.Sprintf("%s is held by service %q of source %s since %s", l.Resource.Addr, first.Service, first.Source, l.Since.Time().Format(time.RFC3339)),
			Hint:    hint,
		}
	}
	for i, port := range s.Ports {
		k := port.Key()
		if other, its := portHolder(&l, k, s.Key); other != nil {
			return nil, portTaken(l.Resource, k, other, its, fmt.Sprintf("ports[%d].port", i))
		}
	}
	l.Holders = append(slices.Clone(l.Holders), Holder{Service: s.Key, Source: s.Source, Ports: sharedPorts(s), Node: d.a.node})
	return &l, vip.Problem{}
}

// draw plans an address of the allocator's choice.
func (d *draft) draw(s *vip.Service, p *pool, f vip.Family, cooling []Lease) (*Lease, vip.Problem) {
	if s.ShareKey != "" {
		var problem vip.Problem
		shared := d.shared(shareKey{p.Name, f, s.ShareKey})
		for _, r := range shared {
			l, _ := d.lease(r)
			if shareOf(&l).key != s.ShareKey {
				continue // planned to be shared no more
			}
			joined, why := d.join(s, l, p)
			if joined != nil {
				return joined, vip.Problem{}
			}
			if problem.Code == "" {
				problem = why
			}
		}
		if problem.Code != "" {
			problem.Hint = "choose another port, or another share_key for an address of its own"
			return nil, problem
		}
	}
	var own *Lease
	for i := range cooling {
		l := &cooling[i]
		if p.allows(l.Resource.Addr) && (own == nil || l.Until.After(own.Until)) {
			own = l
		}
	}
	if own != nil {
		return d.revive(s, *own), vip.Problem{}
	}
	if l := d.lost(s.Key, func(l *Lease) bool {
		return l.Resource.Addr.IsValid() && p.allows(l.Resource.Addr) && vip.FamilyOf(l.Resource.Addr) == f
	}); l != nil {
		return d.claim(s, l.Resource, p), vip.Problem{}
	}
	r := p.ranges[f]
	used := d.a.index.addrs[f]
	k, ok := r.dynamic.nextFree(used, r.cursor)
	if ok {
		d.move(&r.cursor, k.plus(1))
	} else if k, ok = r.static.nextFree(used, number{}); !ok {
		u := d.a.index.usage[p.Name]
		if u == nil {
			u = &usage{}
		}
		return nil, vip.Problem{
			Code:    vip.CodePoolFull,
			Message: fmt.Sprintf("pool %q has no free %s address: %d are held, %d cool down", p.Name, familyName(f), u.held, u.cooling),
			Hint:    "add a range to the pool's cidrs, or delete services",
		}
	}
	return d.claim(s, Resource{Addr: k.addr(r.v4)}, p), vip.Problem{}
}

// claim is the first lease on a resource.
func (d *draft) claim(s *vip.Service, r Resource, p *pool) *Lease {
	return &Lease{
		Resource: r, Pool: p.Name, State: Held, ShareKey: s.ShareKey, Since: d.a.stamp(),
		Holders: []Holder{{Service: s.Key, Source: s.Source, Ports: sharedPorts(s), Node: d.a.node}},
	}
}

// revive gives a cooling address back to its last holder.
func (d *draft) revive(s *vip.Service, l Lease) *Lease {
	l.State, l.Until, l.ShareKey = Held, 0, s.ShareKey
	l.Holders = []Holder{{Service: s.Key, Source: s.Source, Ports: sharedPorts(s), Node: d.a.node}}
	return &l
}

// stamp is the time as leases keep it.
func (a *Allocator) stamp() vip.Instant { return vip.InstantOf(a.now()) }

// sharedPorts returns what a service claims on an address it is ready to share.
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

// portHolder returns who but the service has a port of a shared address, or
// one of a range of ports, and as which port or range of its own.
func portHolder(l *Lease, k vip.PortKey, but vip.ServiceKey) (*Holder, vip.PortKey) {
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

func otherHolder(l *Lease, but vip.ServiceKey) vip.ServiceKey {
	for _, h := range l.Holders {
		if h.Service != but {
			return h.Service
		}
	}
	return but
}

// portTaken says that a holder of r has the port k, or a part of it, as its.
func portTaken(r Resource, k vip.PortKey, by *Holder, its vip.PortKey, field string) vip.Problem {
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
