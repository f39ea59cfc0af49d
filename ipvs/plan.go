package ipvs

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/vip"
)

// op is one change of the kernel's services: one netlink message.
type op struct {
	cmd     uint8
	service *kernel.Service
	dest    kernel.Dest
	moves   bool // one of two that only move a destination within its service
	pauses  bool // while it is carried out the service has no scheduler
	item    int  // which update of a batch it is for
}

func (o *op) append(b []byte, family uint16) []byte {
	b = kernel.AppendCommand(b, family, o.cmd, 0)
	b = kernel.AppendService(b, o.service, o.cmd == kernel.CmdNewService || o.cmd == kernel.CmdSetService)
	switch o.cmd {
	case kernel.CmdNewDest, kernel.CmdSetDest:
		b = kernel.AppendDest(b, &o.dest, true)
	case kernel.CmdDelDest:
		b = kernel.AppendDest(b, &o.dest, false)
	}
	return b
}

func (o *op) String() string {
	switch o.cmd {
	case kernel.CmdNewService:
		return fmt.Sprintf("add ipvs service %s (%s)", o.service.Key, o.service.Scheduler)
	case kernel.CmdSetService:
		return fmt.Sprintf("change ipvs service %s (%s)", o.service.Key, o.service.Scheduler)
	case kernel.CmdDelService:
		return fmt.Sprintf("delete ipvs service %s", o.service.Key)
	case kernel.CmdNewDest:
		return fmt.Sprintf("add destination %s to %s", o.dest.Addr, o.service.Key)
	case kernel.CmdSetDest:
		return fmt.Sprintf("change destination %s of %s", o.dest.Addr, o.service.Key)
	case kernel.CmdDelDest:
		return fmt.Sprintf("delete destination %s of %s", o.dest.Addr, o.service.Key)
	}
	return fmt.Sprintf("ipvs command %d on %s", o.cmd, o.service.Key)
}

// desired is what the kernel must have for f, which is a service by mark where
// mark isn't 0.
func desired(f *vip.Frontend, mark uint32) kernel.State {
	return kernel.State{Service: desiredService(f, mark), Dests: appendDests(make([]kernel.Dest, 0, len(f.Backends)), f)}
}

func desiredService(f *vip.Frontend, mark uint32) kernel.Service {
	s := kernel.Service{Key: f.Key, Mark: mark, Scheduler: f.Scheduler.String(), Netmask: kernel.Netmask4}
	if f.Key.Addr.Is6() {
		s.Netmask = kernel.Netmask6
	}
	if hashes(f.Scheduler) {
		// Asked for or not: without it the kernel's tables keep a destination
		// whose weight went to 0, and refuse the clients that it falls to for as
		// long as it drains.
		s.Flags |= kernel.FlagSched1
		if f.SchedulerPort {
			s.Flags |= kernel.FlagSched2
		}
	}
	if f.OnePacket {
		s.Flags |= kernel.FlagOnePacket
	}
	if f.Affinity > 0 {
		s.Flags |= kernel.FlagPersistent
		s.Timeout = uint32((f.Affinity + time.Second - 1) / time.Second)
	}
	return s
}

// appendDests appends f's destinations.
func appendDests(all []kernel.Dest, f *vip.Frontend) []kernel.Dest {
	method := methodOf(forward(f))
	for _, b := range f.Backends {
		all = append(all, kernel.Dest{Addr: b.Addr, Weight: b.Weight, Forward: method})
	}
	return all
}

var forwards = []vip.Forward{vip.ForwardNAT, vip.ForwardDirect, vip.ForwardTunnel}

// methodOf is the forwarding method that the kernel has for one of ours.
func methodOf(f vip.Forward) uint32 {
	switch f {
	case vip.ForwardDirect:
		return kernel.ForwardDirect
	case vip.ForwardTunnel:
		return kernel.ForwardTunnel
	}
	return kernel.ForwardNAT
}

// forwardOf is the forwarding method of a service's first destination, nat where
// it has none or one that frontends can't have. With none it is as good as any.
func forwardOf(dests []kernel.Dest) vip.Forward {
	for _, name := range forwards {
		if len(dests) > 0 && dests[0].Forward == methodOf(name) {
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
// CompareDests, the lowest first.
func ordered(sched string) bool {
	return sched == maglev || sched == vip.SourceHash.String() || sched == vip.DestinationHash.String()
}

var maglev = vip.MaglevHash.String()

// counts reports whether a destination has a part of its service's table. Mh
// gives it one by the last weight that was not 0, unless it never had another
// since it was added. So that what a host chooses depends on the weights alone,
// a destination whose weight becomes 0 is added anew.
func counts(sched string, d *kernel.Dest) bool {
	return d != nil && ordered(sched) && (d.Weight > 0 || sched != maglev)
}

// astray returns the lowest of those destinations that count which the kernel
// was given before a lower one; zero where there is none.
func astray(s *kernel.State) netip.AddrPort {
	o := orderOf(s)
	for i := range s.Dests {
		if d := &s.Dests[i]; counts(s.Scheduler, d) && !o.follows(d) {
			return d.Addr
		}
	}
	return netip.AddrPort{}
}

// order is asked about destinations from the lowest to the highest.
type order struct {
	ages map[netip.AddrPort]int
	last int
}

func orderOf(s *kernel.State) order { return order{s.Ages, math.MinInt} }

// follows reports whether d was given to the kernel later than all that were
// asked about before.
func (o *order) follows(d *kernel.Dest) bool {
	if o.ages == nil {
		return true
	}
	age := o.ages[d.Addr]
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
func begin(s *kernel.State) *kernel.Service {
	if s.Scheduler != maglev || len(s.Dests) < 2 {
		return &s.Service
	}
	bare := s.Service
	bare.Scheduler = noScheduler
	return &bare
}

// planner writes down changes of one service.
type planner struct {
	ops     []op
	item    int
	service *kernel.Service
}

func (p *planner) put(cmd uint8, d kernel.Dest) {
	p.ops = append(p.ops, op{cmd: cmd, service: p.service, dest: d, item: p.item})
}

// move makes a destination the newest of its service. Its connections stay with
// it, but while it is gone the kernel does with their packets as it does with
// those of a deleted one.
func (p *planner) move(d kernel.Dest) {
	for _, cmd := range []uint8{kernel.CmdDelDest, kernel.CmdNewDest} {
		p.ops = append(p.ops, op{cmd: cmd, service: p.service, dest: d, moves: true, item: p.item})
	}
}

// plan appends the changes that turn have into want; nil is no service. What
// adds capacity comes before what takes it away. It costs O(destinations).
func plan(ops []op, item int, have, want *kernel.State) []op {
	switch {
	case want == nil && have == nil:
		return ops
	case want == nil:
		return append(ops, op{cmd: kernel.CmdDelService, service: &have.Service, item: item})
	}
	if have == nil {
		begun := kernel.State{Service: *begin(want)}
		ops = append(ops, op{cmd: kernel.CmdNewService, service: begin(want), item: item})
		return alter(ops, item, &begun, want, false)
	}
	return alter(ops, item, have, want, true)
}

// alter appends the changes of a service that is there, and serves or has just
// been added.
func alter(ops []op, item int, have, want *kernel.State, serves bool) []op {
	p := planner{ops: ops, item: item, service: &want.Service}
	edited := have.Service != want.Service
	// The table is filled once, from what is there in the end.
	late := edited && ordered(want.Scheduler) && !ordered(have.Scheduler)
	edit := op{cmd: kernel.CmdSetService, service: p.service, pauses: serves && have.Scheduler != want.Scheduler, item: item}
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
func (p *planner) fill(have, want *kernel.State) {
	sched := want.Scheduler
	standing, fresh, moving := orderOf(have), sched == maglev && have.Scheduler != maglev, false
	walk(have.Dests, want.Dests, func(old, new *kernel.Dest) {
		in := counts(sched, new)
		if in && (!counts(sched, old) || !standing.follows(old)) {
			moving = true
		}
		switch {
		case new == nil:
		case old == nil:
			p.put(kernel.CmdNewDest, *new)
		case in && moving, fresh && !in && old.Weight == 0:
			d := *new
			d.Weight = max(d.Weight, old.Weight)
			p.move(d)
		case *old != *new && new.Weight >= old.Weight:
			p.put(kernel.CmdSetDest, *new)
		}
	})
	walk(have.Dests, want.Dests, func(old, new *kernel.Dest) {
		switch {
		case old == nil || new == nil || new.Weight >= old.Weight:
		case sched == maglev && new.Weight == 0:
			p.move(*new)
		default:
			p.put(kernel.CmdSetDest, *new)
		}
	})
	walk(have.Dests, want.Dests, func(old, new *kernel.Dest) {
		if new == nil {
			p.put(kernel.CmdDelDest, *old)
		}
	})
}

// walk pairs two sorted lists by address.
func walk(have, want []kernel.Dest, each func(old, new *kernel.Dest)) {
	for len(have) > 0 || len(want) > 0 {
		var c int
		switch {
		case len(have) == 0:
			c = 1
		case len(want) == 0:
			c = -1
		default:
			c = kernel.CompareDests(have[0], want[0])
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

// runOps carries out ops, see kernel.run.
func runOps(ctx context.Context, k *kernel.Conn, ops []op, done func(i int, err error)) error {
	return k.Run(ctx, len(ops), func(b []byte, i int, family uint16) []byte { return ops[i].append(b, family) }, done)
}
