package ipvs

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// state is a service with its destinations, these sorted by compareDests.
type state struct {
	service
	dests []dest
	// ages tells which destinations the kernel was given earlier: the higher, the
	// later. Nil where they are as this package gives them, see ordered.
	ages map[netip.AddrPort]int
}

// op is one change of the kernel's services: one netlink message.
type op struct {
	cmd     uint8
	service *service
	dest    dest
	moves   bool // one of two that only move a destination within its service
	pauses  bool // while it is carried out the service has no scheduler
	item    int  // which update of a batch it is for
}

func compareDests(a, b dest) int { return a.addr.Compare(b.addr) }

func (o *op) append(b []byte, family uint16) []byte {
	b = appendCommand(b, family, o.cmd, 0)
	b = appendService(b, o.service, o.cmd == cmdNewService || o.cmd == cmdSetService)
	switch o.cmd {
	case cmdNewDest, cmdSetDest:
		b = appendDest(b, &o.dest, true)
	case cmdDelDest:
		b = appendDest(b, &o.dest, false)
	}
	return b
}

func (o *op) String() string {
	switch o.cmd {
	case cmdNewService:
		return fmt.Sprintf("add ipvs service %s (%s)", o.service.key, o.service.sched)
	case cmdSetService:
		return fmt.Sprintf("change ipvs service %s (%s)", o.service.key, o.service.sched)
	case cmdDelService:
		return fmt.Sprintf("delete ipvs service %s", o.service.key)
	case cmdNewDest:
		return fmt.Sprintf("add destination %s to %s", o.dest.addr, o.service.key)
	case cmdSetDest:
		return fmt.Sprintf("change destination %s of %s", o.dest.addr, o.service.key)
	case cmdDelDest:
		return fmt.Sprintf("delete destination %s of %s", o.dest.addr, o.service.key)
	}
	return fmt.Sprintf("ipvs command %d on %s", o.cmd, o.service.key)
}

// desired is what the kernel must have for f, which is a service by mark where
// mark isn't 0.
func desired(f *vip.Frontend, mark uint32) state {
	return state{service: desiredService(f, mark), dests: appendDests(make([]dest, 0, len(f.Backends)), f)}
}

func desiredService(f *vip.Frontend, mark uint32) service {
	s := service{key: f.Key, fwmark: mark, sched: f.Scheduler.String(), netmask: netmask4}
	if f.Key.Addr.Is6() {
		s.netmask = netmask6
	}
	if hashes(f.Scheduler) {
		// Asked for or not: without it the kernel's tables keep a destination
		// whose weight went to 0, and refuse the clients that it falls to for as
		// long as it drains.
		s.flags |= flagSched1
		if f.SchedulerPort {
			s.flags |= flagSched2
		}
	}
	if f.OnePacket {
		s.flags |= flagOnePacket
	}
	if f.Affinity > 0 {
		s.flags |= flagPersistent
		s.timeout = uint32((f.Affinity + time.Second - 1) / time.Second)
	}
	return s
}

// appendDests appends f's destinations.
func appendDests(all []dest, f *vip.Frontend) []dest {
	method := methodOf(forward(f))
	for _, b := range f.Backends {
		all = append(all, dest{addr: b.Addr, weight: b.Weight, forward: method})
	}
	return all
}

var forwards = []vip.Forward{vip.ForwardNAT, vip.ForwardDirect, vip.ForwardTunnel}

// methodOf is the forwarding method that the kernel has for one of ours.
func methodOf(f vip.Forward) uint32 {
	switch f {
	case vip.ForwardDirect:
		return forwardDirect
	case vip.ForwardTunnel:
		return forwardTunnel
	}
	return forwardNAT
}

// forwardOf is the forwarding method of a service's first destination, nat where
// it has none or one that frontends can't have. With none it is as good as any.
func forwardOf(dests []dest) vip.Forward {
	for _, name := range forwards {
		if len(dests) > 0 && dests[0].forward == methodOf(name) {
			return name
		}
	}
	return vip.ForwardNAT
}

// forward is f's forwarding method in normal form.
func forward(f *vip.Frontend) vip.Forward { return cmp.Or(f.Forward, vip.ForwardNAT) }

// hashes reports whether a scheduler takes the flags fallback and port.
func hashes(s vip.Scheduler) bool { return s == vip.SourceHash || s == vip.MaglevHash }

// ordered reports whether a scheduler fills a table by walking the destinations,
// so that hosts with the same destinations in another order choose differently
// for some clients. Those that count are given to the kernel in the order of
// compareDests, the lowest first.
func ordered(sched string) bool {
	return sched == maglev || sched == vip.SourceHash.String() || sched == vip.DestinationHash.String()
}

var maglev = vip.MaglevHash.String()

// counts reports whether a destination has a part of its service's table. Mh
// gives it one by the last weight that was not 0, unless it never had another
// since it was added. So that what a host chooses depends on the weights alone,
// a destination whose weight becomes 0 is added anew.
func counts(sched string, d *dest) bool {
	return d != nil && ordered(sched) && (d.weight > 0 || sched != maglev)
}

// astray returns the lowest of those destinations that count which the kernel
// was given before a lower one; zero where there is none.
func (s *state) astray() netip.AddrPort {
	o := s.order()
	for i := range s.dests {
		if d := &s.dests[i]; counts(s.sched, d) && !o.follows(d) {
			return d.addr
		}
	}
	return netip.AddrPort{}
}

// order is asked about destinations from the lowest to the highest.
type order struct {
	ages map[netip.AddrPort]int
	last int
}

func (s *state) order() order { return order{s.ages, math.MinInt} }

// follows reports whether d was given to the kernel later than all that were
// asked about before.
func (o *order) follows(d *dest) bool {
	if o.ages == nil {
		return true
	}
	age := o.ages[d.addr]
	if age < o.last {
		return false
	}
	o.last = age
	return true
}

// noScheduler is a service's scheduler until it is given one.
const noScheduler = "none"

// begin returns the service as it is when it has just been added. Each change of
// a destination makes mh fill its table anew, so a service that
// has several to come gets its scheduler after them.
func (s *state) begin() *service {
	if s.sched != maglev || len(s.dests) < 2 {
		return &s.service
	}
	bare := s.service
	bare.sched = noScheduler
	return &bare
}

// planner writes down changes of one service.
type planner struct {
	ops     []op
	item    int
	service *service
}

func (p *planner) put(cmd uint8, d dest) {
	p.ops = append(p.ops, op{cmd: cmd, service: p.service, dest: d, item: p.item})
}

// move makes a destination the newest of its service. Its connections stay with
// it, but while it is gone the kernel does with their packets as it does with
// those of a deleted one.
func (p *planner) move(d dest) {
	for _, cmd := range []uint8{cmdDelDest, cmdNewDest} {
		p.ops = append(p.ops, op{cmd: cmd, service: p.service, dest: d, moves: true, item: p.item})
	}
}

// plan appends the changes that turn have into want; nil is no service. What
// adds capacity comes before what takes it away. It costs O(destinations).
func plan(ops []op, item int, have, want *state) []op {
	switch {
	case want == nil && have == nil:
		return ops
	case want == nil:
		return append(ops, op{cmd: cmdDelService, service: &have.service, item: item})
	}
	if have == nil {
		begun := state{service: *want.begin()}
		ops = append(ops, op{cmd: cmdNewService, service: want.begin(), item: item})
		return alter(ops, item, &begun, want, false)
	}
	return alter(ops, item, have, want, true)
}

// alter appends the changes of a service that is there, and serves or has just
// been added.
func alter(ops []op, item int, have, want *state, serves bool) []op {
	p := planner{ops: ops, item: item, service: &want.service}
	edited := have.service != want.service
	// The table is filled once, from what is there in the end.
	late := edited && ordered(want.sched) && !ordered(have.sched)
	edit := op{cmd: cmdSetService, service: p.service, pauses: serves && have.sched != want.sched, item: item}
	if edited && !late {
		p.ops = append(p.ops, edit)
	}
	p.fill(have, want)
	if late {
		p.ops = append(p.ops, edit)
	}
	return p.ops
}

// fill appends the changes of destinations: what is new or takes more, what takes
// less, what goes. What is added is the newest of all; where the order counts,
// all that belongs behind it follows.
func (p *planner) fill(have, want *state) {
	sched := want.sched
	standing, fresh, moving := have.order(), sched == maglev && have.sched != maglev, false
	walk(have.dests, want.dests, func(old, new *dest) {
		in := counts(sched, new)
		if in && (!counts(sched, old) || !standing.follows(old)) {
			moving = true
		}
		switch {
		case new == nil:
		case old == nil:
			p.put(cmdNewDest, *new)
		case in && moving, fresh && !in && old.weight == 0:
			d := *new
			d.weight = max(d.weight, old.weight)
			p.move(d)
		case *old != *new && new.weight >= old.weight:
			p.put(cmdSetDest, *new)
		}
	})
	walk(have.dests, want.dests, func(old, new *dest) {
		switch {
		case old == nil || new == nil || new.weight >= old.weight:
		case sched == maglev && new.weight == 0:
			p.move(*new)
		default:
			p.put(cmdSetDest, *new)
		}
	})
	walk(have.dests, want.dests, func(old, new *dest) {
		if new == nil {
			p.put(cmdDelDest, *old)
		}
	})
}

// walk pairs two sorted lists by address.
func walk(have, want []dest, each func(old, new *dest)) {
	for len(have) > 0 || len(want) > 0 {
		var c int
		switch {
		case len(have) == 0:
			c = 1
		case len(want) == 0:
			c = -1
		default:
			c = compareDests(have[0], want[0])
		}
		switch {
		case c < 0:
			each(&have[0], nil)
			have = have[1:]
		case c > 0:
			each(nil, &want[0])
			want = want[1:]
		default:
			each(&have[0], &want[0])
			have, want = have[1:], want[1:]
		}
	}
}
