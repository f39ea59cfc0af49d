package ipam

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/vip"
)

// wantedNodePort is one node port that a service asks for.
type wantedNodePort struct {
	key   vip.PortKey
	want  vip.NodePort
	field string // where the service asks
	auto  string // the setting for any number
}

// wantedNodePorts returns what a service asks for. Requested numbers come first, so that no other
// port of the service gets one of them automatically.
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

// nodePorts plans the node ports of the service and its health port. Each service port has a node
// port of its own.
func (p *plan) nodePorts(w *answer, held, kept []Lease) {
	var has []Resource
	keep := func(k vip.PortKey, r Resource) {
		w.nodePort(k, r)
		has = append(has, r)
	}
	for _, q := range wantedNodePorts(w.service) {
		had := nodePortOf(held, q.key, q.want.Number)
		if had != nil && (q.want.Auto || had.Resource.NodePort == q.want.Number) {
			if had.Holders[0].Source != w.service.Source && !p.isFrozen(w) {
				now := *had
				now.Holders = slices.Clone(had.Holders)
				now.Holders[0].Source, now.Holders[0].Node = w.service.Source, p.node
				p.set(w, Op{New: &now})
			}
			keep(q.key, had.Resource)
			continue
		}
		op, problem := p.chooseNodePort(w, q, kept)
		problem.Field = q.field
		if problem = p.gain(w, op, problem); problem == (vip.Problem{}) {
			keep(q.key, op.New.Resource)
			continue
		}
		if had != nil {
			problem.Message += fmt.Sprintf("; the service keeps %d", had.Resource.NodePort)
			keep(q.key, had.Resource)
		}
		w.problem(problem)
	}
	for _, l := range held {
		if l.Resource.NodePort != 0 && !slices.Contains(has, l.Resource) {
			w.drops = append(w.drops, l.Resource)
		}
	}
}

// nodePortOf returns the lease of a service port's node port; of several, the one with that number.
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

// chooseNodePort returns the op that gives a service a node port.
func (p *plan) chooseNodePort(w *answer, q wantedNodePort, kept []Lease) (Op, vip.Problem) {
	s := w.service
	want := Lease{Holders: []Holder{{Service: s.Key, Source: s.Source, Port: q.key, Node: p.node}}}
	switch {
	case !q.want.Auto:
		return p.requestNodePort(w, q, want)
	case s.Assigned:
		return Op{}, unassigned(q.field, "node port")
	}
	return p.allocateNodePort(s, q.key, want, kept)
}

func (p *plan) requestNodePort(w *answer, q wantedNodePort, want Lease) (Op, vip.Problem) {
	r := Resource{NodePort: q.want.Number, Protocol: q.key.Protocol}
	if set := p.cfg.NodePorts; !set.contains(r.NodePort) {
		return Op{}, vip.Problem{
			Code: vip.CodeOutsidePool, Message: fmt.Sprintf("%s is outside of the range %s", r, set),
			Hint: "request a port of the range, or change ipam.node_ports",
		}
	}
	if problem, unreadable := p.unreadableProblem(r); unreadable {
		return Op{}, problem
	}
	if l, _ := p.lease(r); l.State == Held {
		w.claims(r)
		h := l.Holders[0]
		return Op{}, vip.Problem{
			Code:    vip.CodePortTaken,
			Message: fmt.Sprintf("%s is held by %s of service %q of source %s since %s", r, nodePortUse(h.Port), h.Service, h.Source, l.Since.Time().Format(time.RFC3339)),
			Hint:    "request another number, or use " + q.auto,
		}
	}
	return p.request(w.service, r, want)
}

// allocateNodePort returns the op for a node port that the allocator chooses: the one that cools
// down for the service port, the one that vanished from the store, or a free one.
func (p *plan) allocateNodePort(s *vip.Service, k vip.PortKey, want Lease, kept []Lease) (Op, vip.Problem) {
	set := p.cfg.NodePorts
	if l := nodePortOf(kept, k, 0); l != nil && set.contains(l.Resource.NodePort) {
		if now, _ := p.lease(l.Resource); now.State == Cooling {
			return p.give(l.Resource, want), vip.Problem{}
		}
	}
	for _, l := range p.lost(s.Key) {
		its := l.holder(s.Key).Port // none if it could not be read
		if set.contains(l.Resource.NodePort) && l.Resource.Protocol == k.Protocol && (its == k || its == vip.PortKey{}) {
			return p.give(l.Resource, want), vip.Problem{}
		}
	}
	op, ok := p.free(p.ports[k.Protocol], p.index.ports[k.Protocol], func(n numbers.Number) Resource {
		return Resource{NodePort: n.Port(), Protocol: k.Protocol}
	}, want)
	if !ok {
		return Op{}, vip.Problem{
			Code: vip.CodePoolFull, Message: fmt.Sprintf("no free %s node port in %s", k.Protocol, set),
			Hint: "extend ipam.node_ports, or delete services",
		}
	}
	return op, vip.Problem{}
}

// nodePortUse says what of a service has a node port.
func nodePortUse(k vip.PortKey) string {
	if k == vip.HealthPortKey {
		return "the health check"
	}
	return "port " + k.String()
}
