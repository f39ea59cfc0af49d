package ipam

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// nodePorts plans the service's node ports. Each service port has its own,
// whatever its other ports have.
func (d *draft) nodePorts(w *answer, held, cooling []Lease) {
	var kept []Resource
	for i := range w.service.Ports {
		port := &w.service.Ports[i]
		if !port.NodePort.Wanted() {
			continue
		}
		k := vip.PortKey{Port: port.Port, Protocol: port.Protocol}
		had := nodePortOf(held, k, port.NodePort.Number)
		if had != nil && (port.NodePort.Auto || had.Resource.NodePort == port.NodePort.Number) {
			if had.Holders[0].Source != w.service.Source {
				had.Holders = slices.Clone(had.Holders)
				had.Holders[0].Source = w.service.Source
				d.set(*had, w.service.Key)
				w.wants = append(w.wants, had.Resource)
			}
			w.nodePort(k, had.Resource)
			kept = append(kept, had.Resource)
			continue
		}
		var chosen *Lease
		var problem vip.Problem
		if port.NodePort.Auto {
			chosen, problem = d.drawNodePort(w.service, k, cooling)
		} else {
			chosen, problem = d.requestNodePort(w.service, k, port.NodePort.Number)
		}
		if chosen != nil {
			d.set(*chosen, w.service.Key)
			w.wants = append(w.wants, chosen.Resource)
			w.drawn = append(w.drawn, chosen.Resource)
			w.nodePort(k, chosen.Resource)
			kept = append(kept, chosen.Resource)
			continue
		}
		problem.Field = fmt.Sprintf("ports[%d].node_port", i)
		if had != nil {
			problem.Message += fmt.Sprintf("; the service keeps %d", had.Resource.NodePort)
			w.nodePort(k, had.Resource)
			kept = append(kept, had.Resource)
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
func (d *draft) requestNodePort(s *vip.Service, k vip.PortKey, number uint16) (*Lease, vip.Problem) {
	r := Resource{NodePort: number, Protocol: k.Protocol}
	if set := d.a.cfg.NodePorts; number < set.First || number > set.Last {
		return nil, vip.Problem{
			Code: vip.CodeOutsidePool, Message: fmt.Sprintf("%s is outside of the range %s", r, set),
			Hint: "request a port of the range, or change ipam.node_ports",
		}
	}
	l, taken := d.lease(r)
	switch {
	case !taken:
		return d.claimNodePort(s, k, r), vip.Problem{}
	case l.State == Held:
		h := l.Holders[0]
		return nil, vip.Problem{
			Code:    vip.CodePortTaken,
			Message: fmt.Sprintf("%s is held by port %s of service %q of source %s since %s", r, h.Port, h.Service, h.Source, l.Since.Format(time.RFC3339)),
			Hint:    `request another number, or use node_port = "auto"`,
		}
	case l.Holders[0].Service != s.Key:
		return nil, vip.Problem{
			Code:    vip.CodePortTaken,
			Message: fmt.Sprintf("%s was released by service %q and is kept for it until %s", r, l.Holders[0].Service, l.Until.Format(time.RFC3339)),
			Hint:    "wait, or request another number",
		}
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

func (d *draft) claimNodePort(s *vip.Service, k vip.PortKey, r Resource) *Lease {
	return &Lease{Resource: r, State: Held, Since: d.a.stamp(), Holders: []Holder{{Service: s.Key, Source: s.Source, Port: k}}}
}

func (d *draft) reviveNodePort(s *vip.Service, k vip.PortKey, l Lease) *Lease {
	l.State, l.Until = Held, time.Time{}
	l.Holders = []Holder{{Service: s.Key, Source: s.Source, Port: k}}
	return &l
}
