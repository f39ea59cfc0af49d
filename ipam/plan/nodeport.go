package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/ipam"
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
func (p *Plan) nodePorts(w *Answer, held, kept []ipam.Lease) {
	var has []ipam.Resource
	keep := func(k vip.PortKey, r ipam.Resource) {
		w.nodePort(k, r)
		has = append(has, r)
	}
	for _, q := range wantedNodePorts(w.Service) {
		had := nodePortOf(held, q.key, q.want.Number)
		if had != nil && (q.want.Auto || had.Resource.NodePort == q.want.Number) {
			if had.Holders[0].Source != w.Service.Source && !p.isFrozen(w) {
				now := *had
				now.Holders = slices.Clone(had.Holders)
				now.Holders[0].Source, now.Holders[0].Node = w.Service.Source, p.state.Node
				p.set(w, ipam.Op{New: &now})
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
			w.Drops = append(w.Drops, l.Resource)
		}
	}
}

// nodePortOf returns the lease of a service port's node port; of several, the one with that number.
func nodePortOf(leases []ipam.Lease, k vip.PortKey, number uint16) (found *ipam.Lease) {
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
func (p *Plan) chooseNodePort(w *Answer, q wantedNodePort, kept []ipam.Lease) (ipam.Op, vip.Problem) {
	s := w.Service
	want := ipam.Lease{Holders: []ipam.Holder{{Service: s.Key, Source: s.Source, Port: q.key, Node: p.state.Node}}}
	switch {
	case !q.want.Auto:
		return p.requestNodePort(w, q, want)
	case s.Assigned:
		return ipam.Op{}, unassigned(q.field, "node port")
	}
	return p.allocateNodePort(s, q.key, want, kept)
}

func (p *Plan) requestNodePort(w *Answer, q wantedNodePort, want ipam.Lease) (ipam.Op, vip.Problem) {
	r := ipam.Resource{NodePort: q.want.Number, Protocol: q.key.Protocol}
	if set := p.state.Config.NodePorts; !set.Contains(r.NodePort) {
		return ipam.Op{}, vip.Problem{
			Code: vip.CodeOutsidePool, Message: fmt.Sprintf("%s is outside of the range %s", r, set),
			Hint: "request a port of the range, or change ipam.node_ports",
		}
	}
	if problem, unreadable := p.unreadableProblem(r); unreadable {
		return ipam.Op{}, problem
	}
	if l, _ := p.Lease(r); l.State == ipam.Held {
		w.claims(r)
		h := l.Holders[0]
		return ipam.Op{}, vip.Problem{
			Code:    vip.CodePortTaken,
			Message: fmt.Sprintf("%s is held by %s of service %q of source %s since %s", r, nodePortUse(h.Port), h.Service, h.Source, l.Since.Time().Format(time.RFC3339)),
			Hint:    "request another number, or use " + q.auto,
		}
	}
	return p.request(w.Service, r, want)
}

// allocateNodePort returns the op for a node port that the allocator chooses: the one that cools
// down for the service port, the one that vanished from the store, or a free one.
func (p *Plan) allocateNodePort(s *vip.Service, k vip.PortKey, want ipam.Lease, kept []ipam.Lease) (ipam.Op, vip.Problem) {
	set := p.state.Config.NodePorts
	if l := nodePortOf(kept, k, 0); l != nil && set.Contains(l.Resource.NodePort) {
		if now, _ := p.Lease(l.Resource); now.State == ipam.Cooling {
			return p.give(l.Resource, want), vip.Problem{}
		}
	}
	for _, l := range p.lost(s.Key) {
		its := l.HolderOf(s.Key).Port // none if it could not be read
		if set.Contains(l.Resource.NodePort) && l.Resource.Protocol == k.Protocol && (its == k || its == vip.PortKey{}) {
			return p.give(l.Resource, want), vip.Problem{}
		}
	}
	op, ok := p.free(p.state.ports[k.Protocol], p.state.index.ports[k.Protocol], func(n numbers.Number) ipam.Resource {
		return ipam.Resource{NodePort: n.Port(), Protocol: k.Protocol}
	}, want)
	if !ok {
		return ipam.Op{}, vip.Problem{
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
