// Package pipelinetest has the sample services and hosts of the tests of the stages, and of the
// packages that read their tables.
package pipelinetest

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/vip"
)

// Key returns the key of a service in the namespace "default".
func Key(name string) vip.ServiceKey { return vip.ServiceKey{Namespace: "default", Name: name} }

// Addrs parses addresses.
func Addrs(texts ...string) (out []netip.Addr) {
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// Service returns a service with port 80/tcp and the given backends on their port 80, with changes.
func Service(name string, backends []string, change ...func(*vip.Service)) vip.Service {
	s := vip.Service{
		Key: Key(name), Source: "static", Origin: "services.d/" + name + ".toml:1",
		Ports: []vip.Port{{Name: "80/tcp", Protocol: vip.TCP, Port: 80, TargetPort: 80}},
		Settings: vip.Settings{
			Scheduler: vip.WeightedRoundRobin, Forward: vip.ForwardNAT,
			InternalTraffic: vip.Cluster, ExternalTraffic: vip.Cluster, Masquerade: vip.MasqueradeAuto,
			DrainTimeout: time.Minute,
		},
	}
	for _, a := range Addrs(backends...) {
		s.Backends = append(s.Backends, vip.Backend{Address: a, Weight: 1, State: vip.Ready})
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

// Protocol sets the protocol of every port.
func Protocol(p vip.Protocol) func(*vip.Service) {
	return func(s *vip.Service) {
		for i := range s.Ports {
			s.Ports[i].Protocol = p
		}
	}
}

// Port adds a TCP port.
func Port(number uint16) func(*vip.Service) {
	return func(s *vip.Service) {
		s.Ports = append(slices.Clone(s.Ports), vip.Port{Name: fmt.Sprint(number), Protocol: vip.TCP, Port: number, TargetPort: number})
	}
}

// NodePort requests a node port for the first port.
func NodePort(s *vip.Service) { s.Ports[0].NodePort = vip.NodePort{Auto: true} }

// On requests an address under a share key.
func On(share, address string) func(*vip.Service) {
	return func(s *vip.Service) { s.ShareKey, s.VIPs = share, Addrs(address) }
}

// HostAddrs returns a host with these addresses on eth0.
func HostAddrs(prefixes ...string) (s hostnet.Snapshot) {
	for _, p := range prefixes {
		s.Addrs = append(s.Addrs, hostnet.Addr{Prefix: netip.MustParsePrefix(p), Link: "eth0"})
	}
	return s
}

// UnknownProtocol is a protocol that no dataplane supports.
const UnknownProtocol vip.Protocol = 33

// Unsupported makes a service request what no dataplane supports.
func Unsupported(s *vip.Service) {
	s.Ports = append(s.Ports, vip.Port{Name: "strange", Port: 33, TargetPort: 33, Protocol: UnknownProtocol})
}

// Local sets both traffic policies to local.
func Local(s *vip.Service) { s.ExternalTraffic, s.InternalTraffic = vip.Local, vip.Local }

// OnNode sets the node of the i-th backend.
func OnNode(i int, node string) func(*vip.Service) {
	return func(s *vip.Service) { s.Backends[i].Node = node }
}
