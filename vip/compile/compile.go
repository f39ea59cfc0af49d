// Package compile turns one service into the frontends that a dataplane
// programs.
//
// In come the service, what the allocator granted it, the operator's word on
// its backends and this node's addresses; out come its frontends in the order
// of their keys, or the reasons why there are none. It is a pure function: the
// same input gives the same output on every host, and it costs nothing that
// depends on any other service. It does no I/O, remembers nothing, and knows
// no dataplane: draining, conflicts between services and masquerading are
// decided by those who have them in sight.
package compile

import (
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// Node is what compile must know of the host it runs on.
type Node struct {
	NodePortAddrs []netip.Addr // the host's addresses that node ports are served on
}

// Input is everything the frontends of one service depend on. Nothing in it is
// changed, and the frontends share no memory with it but SourceRanges.
type Input struct {
	Service    vip.Service
	Allocation vip.Allocation
	// State returns the operator's word on a backend, which overrides the
	// source's; nil when there is none on any.
	State func(vip.BackendKey) (vip.State, bool)
	Node  Node
}

// Service returns the frontends of one service, sorted by key: one for each
// granted VIP and port, and one for each granted node port and node-port address
// of a family that the service has. Frontends of one port and family share their slice of backends, which
// nobody may change. A service that asks for something that is not supported
// has no frontends at all, and a problem for each such thing.
func Service(in Input) ([]vip.Frontend, []vip.Problem) {
	s, granted := &in.Service, &in.Allocation
	if problems := Unsupported(s); len(problems) > 0 {
		return nil, problems
	}
	out := make([]vip.Frontend, 0, count(&in))
	for i := range s.Ports {
		p := &s.Ports[i]
		var v4, v6 []vip.Endpoint
		backends := func(a netip.Addr) []vip.Endpoint {
			list, family := &v4, vip.FamilyOf(a)
			if family == vip.IPv6 {
				list = &v6
			}
			if *list == nil {
				*list = endpoints(&in, p, family)
			}
			return *list
		}
		for _, a := range granted.VIPs {
			out = append(out, frontend(s, p, vip.OnVIP, a, p.Port, backends(a)))
		}
		if number := nodePort(p, granted); number != 0 {
			for _, a := range in.Node.NodePortAddrs {
				if onHost(&in, a) {
					out = append(out, frontend(s, p, vip.OnHost, a, number, backends(a)))
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b vip.Frontend) int { return vip.CompareFrontendKeys(a.Key, b.Key) })
	return slices.CompactFunc(out, func(a, b vip.Frontend) bool { return a.Key == b.Key }), nil
}

// onHost reports whether node ports are served on an address of the host: where
// the service has a VIP of its family. On another family there would be no
// backends, and clients that the service never meant would be refused. Before
// any VIP is granted, every address will do.
func onHost(in *Input, a netip.Addr) bool {
	if len(in.Allocation.VIPs) == 0 {
		return true
	}
	family := vip.FamilyOf(a)
	return slices.ContainsFunc(in.Allocation.VIPs, func(v netip.Addr) bool { return vip.FamilyOf(v) == family })
}

// count returns how many frontends in has at most.
func count(in *Input) int {
	n := len(in.Service.Ports) * len(in.Allocation.VIPs)
	for i := range in.Service.Ports {
		if nodePort(&in.Service.Ports[i], &in.Allocation) != 0 {
			n += len(in.Node.NodePortAddrs)
		}
	}
	return n
}

// nodePort returns the node port that p wants and was granted, or 0.
func nodePort(p *vip.Port, granted *vip.Allocation) uint16 {
	if !p.NodePort.Wanted() {
		return 0
	}
	return granted.NodePorts[vip.PortKey{Port: p.Port, Protocol: p.Protocol}]
}

func frontend(s *vip.Service, p *vip.Port, kind vip.FrontendKind, a netip.Addr, number uint16, backends []vip.Endpoint) vip.Frontend {
	return vip.Frontend{
		Key:               vip.FrontendKey{Addr: a, Port: number, Protocol: p.Protocol},
		Kind:              kind,
		Service:           s.Key,
		Port:              p.Name,
		Scheduler:         s.Scheduler,
		SchedulerFallback: s.SchedulerFallback,
		SchedulerPort:     s.SchedulerPort,
		Forward:           s.Forward,
		Affinity:          s.Affinity,
		Masquerade:        s.Masquerade,
		SourceRanges:      s.SourceRanges,
		DrainTimeout:      s.DrainTimeout,
		Backends:          backends,
	}
}
