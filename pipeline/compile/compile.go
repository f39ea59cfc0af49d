// Package compile computes the frontends of one service for a dataplane.
//
// Its input is the service, its allocation, the overrides and the health of its backends, and this node. Its
// output is the frontends in the order of their keys, or the reasons why the service has no
// frontends. Only this package decides which backends a frontend has and which of them take new
// connections.
//
// It is a pure function: the same input gives the same output on every host, and the cost depends
// on no other service. It does no I/O, keeps no state and knows no dataplane. Its callers decide
// draining and conflicts between services.
package compile

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// Input is everything that the frontends of one service depend on. Only Room is changed. The
// frontends share memory with Input only through SourceRanges and Room.
type Input struct {
	View
	Allocation *vip.Allocation
	Node       Node
	// Room is memory for the frontends, so that a caller that compiles many services allocates it
	// once. If it is nil or too small, Service allocates memory.
	Room []vip.Frontend
}

// Service returns the frontends of one service, sorted by key. There is one for each granted VIP
// and port, and one for each granted node port and each node-port address of a family that the
// service has. Where the policies for clients inside and outside the cluster differ, a VIP's port
// has two frontends, one for each audience. For a real server, see realServer.
//
// Frontends of one port, family and traffic policy share their slice of backends. Callers must not
// change it. The cost is O(ports x backends). A service outside of this host's scope has no frontends. A service that requests something unsupported has no
// frontends, and one problem for each unsupported thing.
func Service(in Input) ([]vip.Frontend, []vip.Problem) {
	if in.Service.NotHere {
		return nil, nil
	}
	if problems := Unsupported(in.Service); len(problems) > 0 {
		return nil, problems
	}
	var out []vip.Frontend
	switch {
	case in.Node.RealServer:
		out = realServer(&in)
	case in.Service.Forward == vip.ForwardHost:
		out = whole(&in)
	default:
		out = director(&in)
	}
	slices.SortStableFunc(out, func(a, b vip.Frontend) int { return vip.CompareFrontendKeys(a.Key, b.Key) })
	return slices.CompactFunc(out, func(a, b vip.Frontend) bool { return a.Key == b.Key }), nil
}

// whole returns the frontends of a service with forward host: its whole VIPs, for programs of this host. The backend of each
// is this host. It is usable if its check has passed, and not while the check has no result yet: the VIP may be elsewhere. With a panic threshold, its owner
// keeps the VIP nevertheless, unless an operator has drained this host as the backend.
func whole(in *Input) []vip.Frontend {
	s, out := in.Service, in.Room[:0]
	if vip.HasCode(in.Allocation.Problems, vip.CodeAddressTaken) {
		return nil // it still shares the VIP with ports of others
	}
	b := s.Backends[0]
	if !in.Usable(&b) || !in.passed(&b) {
		b.Weight = 0
	}
	for _, a := range in.Allocation.VIPs {
		f := frontend(s, &vip.Port{}, vip.OnVIP, vip.FrontendKey{Addr: a})
		f.DrainTimeout = 0 // the connections are those of programs
		f.KeepsOwner = s.PanicThreshold > 0 && in.rank(&s.Backends[0], "", true) == ready
		f.Backends = []vip.Endpoint{{Addr: b.Endpoint(0), Weight: uint16(b.Weight)}}
		out = append(out, f)
	}
	return out
}

// director returns the frontends of a host that balances.
func director(in *Input) []vip.Frontend {
	s, granted := in.Service, in.Allocation
	external, internal := Policies(s)
	chosen := choices{byPort: in.byPort()}
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

// Policies returns the policies for clients outside the cluster and for clients inside it. Where
// they differ, inside clients have their own frontends.
func Policies(s *vip.Service) (external, internal vip.TrafficPolicy) {
	return cmp.Or(s.ExternalTraffic, vip.Cluster), cmp.Or(s.InternalTraffic, vip.Cluster)
}

// servesFamily reports whether the service has a VIP of the address's family. In another family a
// node port would have no backends, and clients for which the service was not intended would be
// rejected. Before any VIP is granted, every address is accepted.
func servesFamily(in *Input, a netip.Addr) bool {
	if len(in.Allocation.VIPs) == 0 {
		return true
	}
	family := vip.FamilyOf(a)
	return slices.ContainsFunc(in.Allocation.VIPs, func(v netip.Addr) bool { return vip.FamilyOf(v) == family })
}

// count returns the maximum number of frontends that a director has for in.
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

// nodePort returns the node port that p requests and was granted, or 0. A range has no node port.
func nodePort(p *vip.Port, granted *vip.Allocation) uint16 {
	if !p.NodePort.Wanted() || p.LastPort != 0 {
		return 0
	}
	return granted.NodePorts[p.Key()]
}

// onVIP returns the frontend of a port on a VIP, without backends. Only these frontends have source
// ranges: a node port is for every client that can reach the host.
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
		SourceLimits:      s.SourceLimits,
		SynProxy:          s.SynProxy && p.Protocol == vip.TCP,
		DrainTimeout:      s.DrainTimeout,
		Relay:             s.Relay,
	}
}

// masquerade returns which source addresses are replaced on the way to the backends of a policy.
// With direct routing and tunnels, the backends answer the clients themselves. Under the local
// policy, clients keep their address.
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

// bypassed reports whether the replies of the service's backends bypass the balancing host.
func bypassed(s *vip.Service) bool {
	return s.Forward == vip.ForwardDirect || s.Forward == vip.ForwardTunnel
}
