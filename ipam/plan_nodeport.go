package ipam

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/ipam/internal/pool"
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
func (p *plan) nodePorts(w *answer, held, cooling []Lease) {
	var kept []Resource
	keep := func(k vip.PortKey, r Resource) {
		w.nodePort(k, r)
		kept = append(kept, r)
	}
	for _, q := range wantedNodePorts(w.service) {
		had := nodePortOf(held, q.key, q.want.Number)
		if had != nil && (q.want.Auto || had.Resource.NodePort == q.want.Number) {
			if had.Holders[0].Source != w.service.Source && !p.isFrozen(w) {
				now := *had
				now.Holders = slices.Clone(had.Holders)
				now.Holders[0].Source, now.Holders[0].Node = w.service.Source, p.node
				p.set(w, &now)
			}
			keep(q.key, had.Resource)
			continue
		}
		var chosen *Lease
		var problem vip.Problem
		p.move = cursorMove{}
		switch {
		case q.want.Auto && w.service.Assigned:
			problem = unassigned(q.field, "node port")
		case q.want.Auto:
			chosen, problem = p.allocateNodePort(w.service, q.key, cooling)
		default:
			chosen, problem = p.requestNodePort(w, q)
		}
		if chosen != nil && p.leftToLeader(w.service, chosen.Resource) {
			chosen, problem, w.waits = nil, p.waiting, true
		}
		if chosen != nil {
			p.set(w, chosen)
			w.gained = append(w.gained, chosen.Resource)
			keep(q.key, chosen.Resource)
			continue
		}
		if problem.Code != vip.CodeWaiting {
			problem.Field = q.field
		}
		if had != nil {
			problem.Message += fmt.Sprintf("; the service keeps %d", had.Resource.NodePort)
			keep(q.key, had.Resource)
		}
		w.problem(problem)
	}
	for _, l := range held {
		if l.Resource.NodePort != 0 && !slices.Contains(kept, l.Resource) {
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

// requestNodePort plans a lease of the number that a port requests.
func (p *plan) requestNodePort(w *answer, q wantedNodePort) (*Lease, vip.Problem) {
	s, k := w.service, q.key
	r := Resource{NodePort: q.want.Number, Protocol: k.Protocol}
	if set := p.cfg.NodePorts; r.NodePort < set.First || r.NodePort > set.Last {
		return nil, vip.Problem{
			Code: vip.CodeOutsidePool, Message: fmt.Sprintf("%s is outside of the range %s", r, set),
			Hint: "request a port of the range, or change ipam.node_ports",
		}
	}
	l, taken := p.lease(r)
	switch {
	case p.isUnreadable(r):
		return nil, unreadableProblem(r, p.unreadable[r].stored.Reason)
	case !taken:
		return p.newNodePort(s, k, r), vip.Problem{}
	case l.State == Held:
		w.claims(r)
		h := l.Holders[0]
		return nil, vip.Problem{
			Code:    vip.CodePortTaken,
			Message: fmt.Sprintf("%s is held by %s of service %q of source %s since %s", r, nodePortUse(h.Port), h.Service, h.Source, l.Since.Time().Format(time.RFC3339)),
			Hint:    "request another number, or use " + q.auto,
		}
	case !coolsFor(s, &l):
		return nil, vip.Problem{
			Code:    vip.CodePortTaken,
			Message: fmt.Sprintf("%s was released by service %q and is kept for it until %s", r, l.Holders[0].Service, l.Until.Time().Format(time.RFC3339)),
			Hint:    "wait, or request another number",
		}
	case l.Holders[0].Service != s.Key:
		return p.newNodePort(s, k, r), vip.Problem{}
	}
	return p.reviveNodePort(s, k, l), vip.Problem{}
}

// allocateNodePort plans a lease of a node port that the allocator chooses.
func (p *plan) allocateNodePort(s *vip.Service, k vip.PortKey, cooling []Lease) (*Lease, vip.Problem) {
	set := p.cfg.NodePorts
	if l := nodePortOf(cooling, k, 0); l != nil && l.Resource.NodePort >= set.First && l.Resource.NodePort <= set.Last {
		if now, _ := p.lease(l.Resource); now.State == Cooling {
			return p.reviveNodePort(s, k, *l), vip.Problem{}
		}
	}
	if l := p.lost(s.Key, func(l *Lease) bool {
		if l.Resource.NodePort < set.First || l.Resource.NodePort > set.Last {
			return false
		}
		portless := l.Resource.Protocol == k.Protocol && l.holder(s.Key).Port == (vip.PortKey{}) // it could not be read
		return portless || nodePortOf([]Lease{*l}, k, 0) != nil
	}); l != nil {
		return p.newNodePort(s, k, l.Resource), vip.Problem{}
	}
	all := numbers.Spans{{First: numbers.OfPort(set.First), Last: numbers.OfPort(set.Last)}}
	static, dynamic := all.Split(pool.NodePortBand(all.Size()))
	r, ok := p.free(dynamic, static, p.index.ports[k.Protocol], p.index.cursor[k.Protocol], func(n numbers.Number) Resource {
		return Resource{NodePort: n.Port(), Protocol: k.Protocol}
	})
	if !ok {
		return nil, vip.Problem{
			Code: vip.CodePoolFull, Message: fmt.Sprintf("no free %s node port in %s", k.Protocol, set),
			Hint: "extend ipam.node_ports, or delete services",
		}
	}
	return p.newNodePort(s, k, r), vip.Problem{}
}

// nodePortUse says what of a service has a node port.
func nodePortUse(k vip.PortKey) string {
	if k == vip.HealthPortKey {
		return "the health check"
	}
	return "port " + k.String()
}

func (p *plan) newNodePort(s *vip.Service, k vip.PortKey, r Resource) *Lease {
	return &Lease{Resource: r, State: Held, Since: p.now, Holders: p.nodePortHolder(s, k)}
}

func (p *plan) reviveNodePort(s *vip.Service, k vip.PortKey, l Lease) *Lease {
	l.State, l.Until, l.Holders = Held, 0, p.nodePortHolder(s, k)
	return &l
}

func (p *plan) nodePortHolder(s *vip.Service, k vip.PortKey) []Holder {
	return []Holder{{Service: s.Key, Source: s.Source, Port: k, Node: p.node}}
}
