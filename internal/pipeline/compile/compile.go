// Package compile turns one service into the frontends that a dataplane
// programs.
//
// In come the service, what the allocator granted it, the operator's word on
// its backends and this node; out come its frontends in the order of their
// keys, or the reasons why there are none. Which backends a frontend has, and
// which of them take new connections, is decided here and nowhere else. It is a
// pure function: the same input gives the same output on every host, and it
// costs nothing that depends on any other service. It does no I/O, remembers
// nothing, and knows no dataplane: draining and conflicts between services are
// decided by those who have them in sight.
package compile

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// Input is everything the frontends of one service depend on. Nothing in it is
// changed but Room, and the frontends share no other memory with it but SourceRanges.
type Input struct {
	Service    *vip.Service
	Allocation *vip.Allocation
	// State returns the operator's word on a backend, which overrides the
	// source's; nil when there is none on any.
	State func(vip.BackendKey) (vip.State, bool)
	Node  Node
	// Room is where the frontends may be put, so that who compiles many services
	// needs it once; nil makes room.
	Room []vip.Frontend
}

// Service returns the frontends of one service, sorted by key: one for each
// granted VIP and port, and one for each granted node port and node-port address
// of a family that the service has. Where clients inside the cluster are to be
// served otherwise than those outside, a VIP's port has two, one for each
// audience. On a real server see realServer.
//
// Frontends of one port, family and traffic policy share their slice of
// backends, which nobody may change. It costs O(ports x backends). A service that asks for something that is
// not supported has no frontends at all, and a problem for each such thing.
func Service(in Input) ([]vip.Frontend, []vip.Problem) {
	if problems := Unsupported(in.Service); len(problems) > 0 {
		return nil, problems
	}
	var out []vip.Frontend
	if in.Node.RealServer {
		out = realServer(&in)
	} else {
		out = director(&in)
	}
	slices.SortStableFunc(out, func(a, b vip.Frontend) int { return vip.CompareFrontendKeys(a.Key, b.Key) })
	return slices.CompactFunc(out, func(a, b vip.Frontend) bool { return a.Key == b.Key }), nil
}

// director makes the frontends of a host that balances.
func director(in *Input) []vip.Frontend {
	s, granted := in.Service, in.Allocation
	external, internal := Policies(s)
	chosen := choices{byPort: byPort(s)}
	out := in.Room[:0]
	if n := count(in); cap(out) < n {
		out = make([]vip.Frontend, 0, n)
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		chosen.next()
		for _, a := range granted.VIPs {
			f := onVIP(s, p, a)
			f.Masquerade = masquerade(s, external)
			f.Backends = chosen.endpoints(in, p, a, external)
			out = append(out, f)
			if internal != external {
				f.Key.Audience = vip.InternalClients
				f.Masquerade = masquerade(s, internal)
				f.Backends = chosen.endpoints(in, p, a, internal)
				out = append(out, f)
			}
		}
		number := nodePort(p, granted)
		if number == 0 {
			continue
		}
		for _, a := range in.Node.NodePortAddrs {
			if servesFamily(in, a) {
				f := frontend(s, p, vip.OnHost, vip.FrontendKey{Addr: a, Port: number, Protocol: p.Protocol})
				f.Masquerade = masquerade(s, external)
				f.Backends = chosen.endpoints(in, p, a, external)
				out = append(out, f)
			}
		}
	}
	return out
}

// Policies returns the policies of clients outside, and of those inside the
// cluster. Where they differ, those inside have frontends of their own.
func Policies(s *vip.Service) (external, internal vip.TrafficPolicy) {
	return cmp.Or(s.ExternalTraffic, vip.Cluster), cmp.Or(s.InternalTraffic, vip.Cluster)
}

// servesFamily reports whether the service has a VIP of the address's family.
// On another family there would be no backends for a node port, and clients
// that the service never meant would be refused. Before any VIP is granted,
// every address will do.
func servesFamily(in *Input, a netip.Addr) bool {
	if len(in.Allocation.VIPs) == 0 {
		return true
	}
	family := vip.FamilyOf(a)
	return slices.ContainsFunc(in.Allocation.VIPs, func(v netip.Addr) bool { return vip.FamilyOf(v) == family })
}

// count returns how many frontends a director has of in, at most.
func count(in *Input) int {
	audiences := 1
	if external, internal := Policies(in.Service); internal != external {
		audiences = 2
	}
	n := len(in.Service.Ports) * len(in.Allocation.VIPs) * audiences
	for i := range in.Service.Ports {
		if nodePort(&in.Service.Ports[i], in.Allocation) != 0 {
			n += len(in.Node.NodePortAddrs)
		}
	}
	return n
}

// nodePort returns the node port that p wants and was granted, or 0. A range
// has none.
func nodePort(p *vip.Port, granted *vip.Allocation) uint16 {
	if !p.NodePort.Wanted() || p.LastPort != 0 {
		return 0
	}
	return granted.NodePorts[p.Key()]
}

// onVIP is the frontend of a port on a VIP, without backends. Source ranges
// count there alone: node ports are for who may reach the host.
func onVIP(s *vip.Service, p *vip.Port, a netip.Addr) vip.Frontend {
	f := frontend(s, p, vip.OnVIP, vip.FrontendKey{Addr: a, Port: p.Port, LastPort: p.LastPort, Protocol: p.Protocol})
	f.SourceRanges = s.SourceRanges
	return f
}

func frontend(s *vip.Service, p *vip.Port, kind vip.FrontendKind, key vip.FrontendKey) vip.Frontend {
	return vip.Frontend{
		Key:               key,
		Kind:              kind,
		Service:           s.Key,
		Port:              p.Name,
		Scheduler:         s.Scheduler,
		SchedulerFallback: s.SchedulerFallback,
		SchedulerPort:     s.SchedulerPort,
		OnePacket:         s.OnePacket && p.Protocol == vip.UDP,
		Forward:           s.Forward,
		Affinity:          s.Affinity,
		DrainTimeout:      s.DrainTimeout,
	}
}

// masquerade returns whose addresses are replaced on the way to the backends of
// a policy. With direct routing and tunnels the backends answer the clients
// themselves; under the local policy clients keep their address.
func masquerade(s *vip.Service, policy vip.TrafficPolicy) vip.Masquerade {
	switch {
	case bypassed(s):
		return vip.MasqueradeNever
	case s.Masquerade != 0 && s.Masquerade != vip.MasqueradeAuto:
		return s.Masquerade
	case policy == vip.Local:
		return vip.MasqueradeOwn
	}
	return vip.MasqueradeAuto
}

// bypassed reports whether the replies of the service's backends bypass the
// balancing host.
func bypassed(s *vip.Service) bool {
	return s.Forward == vip.ForwardDirect || s.Forward == vip.ForwardTunnel
}
