package ipvs

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// op is one change of the kernel's services: one netlink message.
type op struct {
	cmd     uint8
	service *kernel.Service
	dest    kernel.Dest
	moves   bool // one of two ops that add a destination again
	item    int  // index of its item
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

func desiredService(f *vip.Frontend, mark uint32) kernel.Service {
	s := kernel.Service{Key: f.Key, Mark: mark, Scheduler: f.Scheduler.String(), Netmask: kernel.Netmask4}
	if f.Key.Addr.Is6() {
		s.Netmask = kernel.Netmask6
	}
	if isHash(f.Scheduler) {
		// Set the flag even if the frontend doesn't: without it the kernel's tables keep a
		// destination of weight 0, and refuse the clients that are hashed to it while it
		// drains.
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
	method := methodOf(usage.Forward(f))
	for _, b := range f.Backends {
		all = append(all, kernel.Dest{Addr: b.Addr, Weight: uint32(b.Weight), Forward: method, Upper: b.MaxConnections})
	}
	return all
}

var forwards = []vip.Forward{vip.ForwardNAT, vip.ForwardDirect, vip.ForwardTunnel}

// methodOf returns the kernel's number of a forwarding method.
func methodOf(f vip.Forward) uint32 {
	switch f {
	case vip.ForwardDirect:
		return kernel.ForwardDirect
	case vip.ForwardTunnel:
		return kernel.ForwardTunnel
	}
	return kernel.ForwardNAT
}

// forwardOf returns the forwarding method of the first destination. It returns nat
// without destinations, and for a method that frontends don't have.
func forwardOf(dests []kernel.Dest) vip.Forward {
	for _, name := range forwards {
		if len(dests) > 0 && dests[0].Forward == methodOf(name) {
			return name
		}
	}
	return vip.ForwardNAT
}

// isHash reports whether a scheduler has the flags fallback and port.
func isHash(s vip.Scheduler) bool { return s == vip.SourceHash || s == vip.MaglevHash }

// dependsOnOrder reports whether a scheduler fills a table in the order in which
// destinations were added. Hosts with another order choose differently for some
// clients, so destinations with a part of the table are added in the order of
// CompareDests.
func dependsOnOrder(sched string) bool {
	return sched == maglev || sched == vip.SourceHash.String() || sched == vip.DestinationHash.String()
}

var maglev = vip.MaglevHash.String()

// inTable reports whether a destination has a part of its service's table. Mh sizes
// the part by the last weight above 0 since the destination was added. A destination
// that gets weight 0 is therefore added again, so that the table depends on the
// weights alone.
func inTable(sched string, d *kernel.Dest) bool {
	return d != nil && dependsOnOrder(sched) && (d.Weight > 0 || sched != maglev)
}

// firstMisplaced returns the lowest destination in the table that was added before a
// lower one, or the zero value.
func firstMisplaced(s *kernel.State) netip.AddrPort {
	o := addOrderOf(s)
	for i := range s.Dests {
		if d := &s.Dests[i]; inTable(s.Scheduler, d) && !o.inOrder(d) {
			return d.Addr
		}
	}
	return netip.AddrPort{}
}

// addOrder checks in which order destinations were added. Call inOrder from the
// lowest to the highest.
type addOrder struct {
	ages map[netip.AddrPort]int
	last int
}

func addOrderOf(s *kernel.State) addOrder { return addOrder{s.Ages, math.MinInt} }

// inOrder reports whether d was added later than all destinations of earlier calls.
func (o *addOrder) inOrder(d *kernel.Dest) bool {
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

// noScheduler is the kernel's name for a service without a scheduler.
const noScheduler = "none"

// initialService returns the service in the form in which it is added. Mh fills its
// table at each change of a destination, so a service with several destinations gets
// its scheduler after them.
func initialService(s *kernel.State) *kernel.Service {
	if s.Scheduler != maglev || len(s.Dests) < 2 {
		return &s.Service
	}
	bare := s.Service
	bare.Scheduler = noScheduler
	return &bare
}

// planner collects the changes of one service.
type planner struct {
	ops     []op
	item    int
	service *kernel.Service
}

func (p *planner) put(cmd uint8, d kernel.Dest) {
	p.ops = append(p.ops, op{cmd: cmd, service: p.service, dest: d, item: p.item})
}

// readd deletes and adds a destination, which makes it the newest of its service. Its
// connections stay with it, but in between their packets meet the kernel's rule for
// deleted destinations.
func (p *planner) readd(d kernel.Dest) {
	for _, cmd := range []uint8{kernel.CmdDelDest, kernel.CmdNewDest} {
		p.ops = append(p.ops, op{cmd: cmd, service: p.service, dest: d, moves: true, item: p.item})
	}
}

// plan appends the changes from have to want. Nil means no service. Additions of
// capacity come first. It costs O(destinations).
func plan(ops []op, item int, have, want *kernel.State) []op {
	switch {
	case want == nil && have == nil:
		return ops
	case want == nil:
		return append(ops, op{cmd: kernel.CmdDelService, service: &have.Service, item: item})
	}
	from := have
	if from == nil {
		initial := initialService(want)
		ops = append(ops, op{cmd: kernel.CmdNewService, service: initial, item: item})
		from = &kernel.State{Service: *initial}
	}
	p := planner{ops: ops, item: item, service: &want.Service}
	edited := from.Service != want.Service
	// Set the scheduler last, so that the kernel fills the table once.
	late := edited && dependsOnOrder(want.Scheduler) && !dependsOnOrder(from.Scheduler)
	edit := op{cmd: kernel.CmdSetService, service: p.service, item: item}
	if edited && !late {
		p.ops = append(p.ops, edit)
	}
	p.fill(from, want)
	if late {
		p.ops = append(p.ops, edit)
	}
	return p.ops
}

// fill appends the changes of destinations: additions and higher weights, then lower
// weights, then deletions. An added destination is the newest. If the order matters,
// all destinations after it are added again.
func (p *planner) fill(have, want *kernel.State) {
	sched := want.Scheduler
	present, fresh, moving := addOrderOf(have), sched == maglev && have.Scheduler != maglev, false
	walk(have.Dests, want.Dests, func(old, new *kernel.Dest) {
		in := inTable(sched, new)
		if in && (!inTable(sched, old) || !present.inOrder(old)) {
			moving = true
		}
		switch {
		case new == nil:
		case old == nil:
			p.put(kernel.CmdNewDest, *new)
		case in && moving, fresh && !in && old.Weight == 0:
			d := *new
			d.Weight = max(d.Weight, old.Weight)
			p.readd(d)
		case *old != *new && new.Weight >= old.Weight:
			p.put(kernel.CmdSetDest, *new)
		}
	})
	walk(have.Dests, want.Dests, func(old, new *kernel.Dest) {
		switch {
		case old == nil || new == nil || new.Weight >= old.Weight:
		case sched == maglev && new.Weight == 0:
			p.readd(*new)
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
		var old, new *kernel.Dest
		if len(want) == 0 || len(have) > 0 && kernel.CompareDests(have[0], want[0]) <= 0 {
			old = &have[0]
		}
		if old == nil || len(want) > 0 && old.Addr == want[0].Addr {
			new, want = &want[0], want[1:]
		}
		if old != nil {
			have = have[1:]
		}
		each(old, new)
	}
}

// runOps sends ops to the kernel.
func runOps(ctx context.Context, k *kernel.Conn, ops []op, done func(i int, err error)) error {
	return k.Run(ctx, len(ops), func(b []byte, i int, family uint16) []byte { return ops[i].append(b, family) }, done)
}
