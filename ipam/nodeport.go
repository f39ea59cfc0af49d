package ipam

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// wantedNodePort is one node port that a service asks for.
type wantedNodePort struct {
	key   vip.PortKey
	want  vip.NodePort
	field string // where the service asks
	auto  string // how it would ask for any
}

// wantedNodePorts returns what a service asks for, those first that it asks for
// by number, lest one of its other ports gets that automatically.
func wantedNodePorts(s *vip.Service) []wantedNodePort {
	var numbers, autos []wantedNodePort
	add := func(p wantedNodePort) {
		switch {
		case !p.want.Wanted():
		case p.want.Auto:
			autos = append(autos, p)
		default:
			numbers = append(numbers, p)
		}
	}
	for i := range s.Ports {
		add(wantedNodePort{s.Ports[i].Key(), s.Ports[i].NodePort, fmt.Sprintf("ports[%d].node_port", i), "node_port auto"})
	}
	add(wantedNodePort{vip.HealthPortKey, s.HealthPort, "health_check_node_port", "health_check_node_port auto"})
	return append(numbers, autos...)
}

// nodePorts plans the service's node ports and its health port. Each service
// port has its own, whatever its other ports have.
func (d *draft) nodePorts(w *answer, held, cooling []Lease) {
	var kept []Resource
	keep := func(k vip.PortKey, r Resource) {
		w.nodePort(k, r)
		kept = append(kept, r)
	}
	for _, p := range wantedNodePorts(w.service) {
		had := nodePortOf(held, p.key, p.want.Number)
		if had != nil && (p.want.Auto || had.Resource.NodePort == p.want.Number) {
			if had.Holders[0].Source != w.service.Source && !d.contested(w) {
				now := *had
				now.Holders = slices.Clone(had.Holders)
				now.Holders[0].Source, now.Holders[0].Node = w.service.Source, d.a.node
				w.wants = append(w.wants, d.set(&now, w.service.Key))
			}
			keep(p.key, had.Resource)
			continue
		}
		var chosen *Lease
		var problem vip.Problem
		d.moved = moved{}
		switch {
		case p.want.Auto && w.service.Assigned:
			problem = unassigned(p.field, "node ports")
		case p.want.Auto:
			chosen, problem = d.drawNodePort(w.service, p.key, cooling)
		default:
			chosen, problem = d.requestNodePort(w.service, p)
		}
		if chosen != nil && d.defers(w.service, chosen.Resource) {
			chosen, problem = nil, d.pend(w)
		}
		if chosen != nil {
			w.wants = append(w.wants, d.set(chosen, w.service.Key))
			w.drawn = append(w.drawn, chosen.Resource)
			keep(p.key, chosen.Resource)
			continue
		}
		if problem.Code != vip.CodeWaiting {
			problem.Field = p.field
		}
		if had != nil {
			problem.Message += fmt.Sprintf("; the service keeps %d", had.Resource.NodePort)
			keep(p.key, had.Resource)
		}
		w.problem(problem)
	}
	for _, l := range held {
		if l.Resource.NodePort != 0 && !slices.Contains(kept, l.Resource) {
			w.drops = append(w.drops, l.Resource)
		}
	}
}

// nodePortOf finds the lease that stands for a service port, the one with that
// number if there are several.
func nodePortOf(leases []Lease, k vip.PortKey, number uint16) (found *Lease) {
	for i := range leases {
		l := &leases[i]
		if l.Resource.NodePort == 0 || l.Resource.Protocol != k.Protocol || l.Holders[0].Port != k {
			continue
		}
		if found == nil || l.Resource.NodePort == number {
			found = l
		}
	}
	return found
}

// requestNodePort plans a lease on the number that a port asks for.
func (d *draft) requestNodePort(s *vip.Service, p wantedNodePort) (*Lease, vip.Problem) {
	number, k := p.want.Number, p.key
	r := Resource{NodePort: number, Protocol: k.Protocol}
	if set := d.a.cfg.NodePorts; number < set.First || number > set.Last {
		return nil, vip.Problem{
			Code: vip.CodeOutsidePool, Message: fmt.Sprintf("%s is outside of the range %s", r, set),
			Hint: "request a port of the range, or change ipam.node_ports",
		}
	}
	l, taken := d.lease(r)
	switch {
	case d.a.isBlocked(r):
		return nil, blockedProblem(r, d.a.blocked[r].told.Reason)
	case !taken:
		return d.claimNodePort(s, k, r), vip.Problem{}
	case l.State == Held:
		d.await(s, r)
		h := l.Holders[0]
		return nil, vip.Problem{
			Code:    vip.CodePortTaken,
			Message: fmt.Sprintf("%s is held by %s of service %q of source %s since %s", r, standsFor(h.Port), h.Service, h.Source, l.Since.Time().Format(time.RFC3339)),
			Hint:    "request another number, or use " + p.auto,
		}
	case !coolsFor(s, &l):
		return nil, vip.Problem{
			Code:    vip.CodePortTaken,
			Message: fmt.Sprintf("%s was released by service %q and is kept for it until %s", r, l.Holders[0].Service, l.Until.Time().Format(time.RFC3339)),
			Hint:    "wait, or request another number",
		}
	case l.Holders[0].Service != s.Key:
		return d.claimNodePort(s, k, r), vip.Problem{}
	}
	return d.reviveNodePort(s, k, l), vip.Problem{}
}

// drawNodePort plans a node port of the allocator's choice.
func (d *draft) drawNodePort(s *vip.Service, k vip.PortKey, cooling []Lease) (*Lease, vip.Problem) {
	set := d.a.cfg.NodePorts
	if l := nodePortOf(cooling, k, 0); l != nil && l.Resource.NodePort >= set.First && l.Resource.NodePort <= set.Last {
		if now, _ := d.lease(l.Resource); now.State == Cooling {
			return d.reviveNodePort(s, k, *l), vip.Problem{}
		}
	}
	if l := d.lost(s.Key, func(l *Lease) bool {
		if l.Resource.NodePort < set.First || l.Resource.NodePort > set.Last {
			return false
		}
		unnamed := l.Resource.Protocol == k.Protocol && l.holder(s.Key).Port == (vip.PortKey{}) // it could not be read
		return unnamed || nodePortOf([]Lease{*l}, k, 0) != nil
	}); l != nil {
		return d.claimNodePort(s, k, l.Resource), vip.Problem{}
	}
	used := d.a.index.portSet(k.Protocol)
	all := spans{{number{lo: uint64(set.First)}, number{lo: uint64(set.Last)}}}
	static, dynamic := all.split(nodePortBand(set.size()))
	cursor := d.a.index.portCursor(k.Protocol)
	free, ok := dynamic.nextFree(used, *cursor)
	if ok {
		d.move(cursor, free.plus(1))
	} else if free, ok = static.nextFree(used, number{}); !ok {
		return nil, vip.Problem{
			Code: vip.CodePoolFull, Message: fmt.Sprintf("no free %s node port in %s", k.Protocol, set),
			Hint: "extend ipam.node_ports, or delete services",
		}
	}
	return d.claimNodePort(s, k, Resource{NodePort: uint16(free.lo), Protocol: k.Protocol}), vip.Problem{}
}

// standsFor says what of a service has a node port.
func standsFor(k vip.PortKey) string {
	if k == vip.HealthPortKey {
		return "the health check"
	}
	return "port " + k.String()
}

func (d *draft) claimNodePort(s *vip.Service, k vip.PortKey, r Resource) *Lease {
	return &Lease{Resource: r, State: Held, Since: d.a.stamp(), Holders: []Holder{{Service: s.Key, Source: s.Source, Port: k, Node: d.a.node}}}
}

func (d *draft) reviveNodePort(s *vip.Service, k vip.PortKey, l Lease) *Lease {
	l.State, l.Until = Held, 0
	l.Holders = []Holder{{Service: s.Key, Source: s.Source, Port: k, Node: d.a.node}}
	return &l
}
