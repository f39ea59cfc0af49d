package status

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/vip"
)

func key(name string) vip.ServiceKey { return vip.ServiceKey{Namespace: "default", Name: name} }

func addrs(texts ...string) (out []netip.Addr) {
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// service returns a service with port 80/tcp and the given backends on their port 80, with changes.
func service(name string, backends []string, change ...func(*vip.Service)) vip.Service {
	s := vip.Service{
		Key: key(name), Source: "static", Origin: "services.d/" + name + ".toml:1",
		Ports:     []vip.Port{{Name: "80/tcp", Protocol: vip.TCP, Port: 80, TargetPort: 80}},
		Scheduler: vip.WeightedRoundRobin, Forward: vip.ForwardNAT,
		InternalTraffic: vip.Cluster, ExternalTraffic: vip.Cluster, Masquerade: vip.MasqueradeAuto,
		DrainTimeout: time.Minute,
	}
	for _, a := range addrs(backends...) {
		s.Backends = append(s.Backends, vip.Backend{Address: a, Weight: 1, State: vip.Ready})
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

func protocol(p vip.Protocol) func(*vip.Service) {
	return func(s *vip.Service) {
		for i := range s.Ports {
			s.Ports[i].Protocol = p
		}
	}
}

func port(number uint16) func(*vip.Service) {
	return func(s *vip.Service) {
		s.Ports = append(slices.Clone(s.Ports), vip.Port{Name: fmt.Sprint(number), Protocol: vip.TCP, Port: number, TargetPort: number})
	}
}

func nodePort(s *vip.Service) { s.Ports[0].NodePort = vip.NodePort{Auto: true} }

func on(share, address string) func(*vip.Service) {
	return func(s *vip.Service) { s.ShareKey, s.VIPs = share, addrs(address) }
}

func hostAddrs(prefixes ...string) (s hostnet.Snapshot) {
	for _, p := range prefixes {
		s.Addrs = append(s.Addrs, hostnet.Addr{Prefix: netip.MustParsePrefix(p), Link: "eth0"})
	}
	return s
}

// unknownProtocol is a protocol that no dataplane supports.
const unknownProtocol vip.Protocol = 33

// unsupported makes a service request what no dataplane supports.
func unsupported(s *vip.Service) {
	s.Ports = append(s.Ports, vip.Port{Name: "strange", Port: 33, TargetPort: 33, Protocol: unknownProtocol})
}

func local(s *vip.Service) { s.ExternalTraffic, s.InternalTraffic = vip.Local, vip.Local }

// onNode sets the node of the i-th backend.
func onNode(i int, node string) func(*vip.Service) {
	return func(s *vip.Service) { s.Backends[i].Node = node }
}
