package ipvs

import (
	"fmt"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// state is a service with its destinations, these sorted by compareDests.
type state struct {
	service
	dests []dest
}

// op is one change of the kernel's services: one netlink message.
type op struct {
	cmd     uint8
	service *service
	dest    dest
	item    int // which update of a batch it is for
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

// desired is what the kernel must have for f.
func desired(f *vip.Frontend) state {
	s := state{service: service{key: f.Key, sched: string(f.Scheduler), netmask: netmask4}}
	if f.Key.Addr.Is6() {
		s.netmask = netmask6
	}
	if hashes(f.Scheduler) {
		if f.SchedulerFallback {
			s.flags |= flagSched1
		}
		if f.SchedulerPort {
			s.flags |= flagSched2
		}
	}
	if f.Affinity > 0 {
		s.flags |= flagPersistent
		s.timeout = uint32((f.Affinity + time.Second - 1) / time.Second)
	}
	s.dests = make([]dest, len(f.Backends))
	for i, b := range f.Backends {
		s.dests[i] = dest{addr: b.Addr, weight: b.Weight, forward: forwardNAT}
	}
	return s
}

// hashes reports whether a scheduler takes the flags fallback and port.
func hashes(s vip.Scheduler) bool { return s == vip.SourceHash || s == vip.MaglevHash }

// plan appends the changes that turn have into want; nil is no service. What
// adds capacity comes before what takes it away. It costs O(destinations).
func plan(ops []op, item int, have, want *state) []op {
	switch {
	case want == nil && have == nil:
		return ops
	case want == nil:
		return append(ops, op{cmd: cmdDelService, service: &have.service, item: item})
	case have == nil:
		ops = append(ops, op{cmd: cmdNewService, service: &want.service, item: item})
		have = &state{}
	case have.service != want.service:
		ops = append(ops, op{cmd: cmdSetService, service: &want.service, item: item})
	}
	// Three walks over two sorted lists: what is new or takes more, what takes
	// less, what goes.
	put := func(cmd uint8, d dest) {
		ops = append(ops, op{cmd: cmd, service: &want.service, dest: d, item: item})
	}
	walk(have.dests, want.dests, func(old, new *dest) {
		switch {
		case old == nil:
			put(cmdNewDest, *new)
		case new != nil && *old != *new && new.weight >= old.weight:
			put(cmdSetDest, *new)
		}
	})
	walk(have.dests, want.dests, func(old, new *dest) {
		if old != nil && new != nil && new.weight < old.weight {
			put(cmdSetDest, *new)
		}
	})
	walk(have.dests, want.dests, func(old, new *dest) {
		if new == nil {
			put(cmdDelDest, *old)
		}
	})
	return ops
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

// unsupported says what this dataplane can't do of what f asks for; nil when it
// can do all.
func unsupported(f *vip.Frontend) error {
	var problems []vip.Problem
	not := func(field, feature string) {
		problems = append(problems, vip.Unsupported("the ipvs dataplane", field, feature))
	}
	switch f.Scheduler {
	case vip.RoundRobin, vip.WeightedRoundRobin, vip.LeastConnection, vip.WeightedLeastConnection, vip.SourceHash, vip.MaglevHash:
	default:
		not("scheduler", fmt.Sprintf("scheduler %q", f.Scheduler))
	}
	if !forwardsNAT(f) {
		not("forward", fmt.Sprintf("forward %q", f.Forward))
	}
	if f.Key.Protocol != vip.TCP && f.Key.Protocol != vip.UDP {
		not("protocol", fmt.Sprintf("protocol %s", f.Key.Protocol))
	}
	if len(f.SourceRanges) > 0 {
		not("source_ranges", "source_ranges")
	}
	for _, b := range f.Backends {
		if vip.FamilyOf(b.Addr.Addr()) != vip.FamilyOf(f.Key.Addr) {
			not("backends", fmt.Sprintf("backend %s behind an %s address with nat", b.Addr, vip.FamilyOf(f.Key.Addr)))
		}
	}
	if len(problems) == 0 {
		return nil
	}
	for _, p := range problems[1:] {
		problems[0].Message += "; " + strings.TrimPrefix(p.Message, "the ipvs dataplane ")
	}
	return problems[0]
}

func forwardsNAT(f *vip.Frontend) bool { return f.Forward == "" || f.Forward == vip.ForwardNAT }
