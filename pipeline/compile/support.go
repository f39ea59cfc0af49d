package compile

import (
	"fmt"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// Unsupported returns a problem for each thing that s requests and no dataplane can do. Such
// requests are rejected by name, never silently ignored. Each dataplane itself rejects what only
// other dataplanes can do.
func Unsupported(s *vip.Service) []vip.Problem {
	var problems []vip.Problem
	for i := range s.Ports {
		if p := s.Ports[i].Protocol; p != vip.TCP && p != vip.UDP && p != vip.SCTP {
			problem := vip.Unsupported("this version", fmt.Sprintf("ports[%d].protocol", i), fmt.Sprintf("protocol %q", p))
			problem.Service, problem.Place = s.Key.String(), s.Origin
			problems = append(problems, problem)
		}
	}
	return problems
}

// OwnBackends returns a problem for each backend of direct routing or a tunnel that is this director,
// which therefore sends it no clients. Other hosts do.
func OwnBackends(s *vip.Service, n *Node) (problems []vip.Problem) {
	for i := range s.Backends {
		if b := &s.Backends[i]; n.isRealServerOf(s, b) {
			problems = append(problems, vip.Problem{Code: vip.CodeIneffective, Service: s.Key.String(), Place: s.Origin, Field: fmt.Sprintf("backends[%d].address", i),
				Message: fmt.Sprintf("backend %s gets no clients from this host, which has that address: forward %q reaches other hosts only", b.ID(), s.Forward),
				Hint:    `use forward "nat", or a director that is no backend`})
		}
	}
	return problems
}

// Ineffective returns a problem for each setting of s that has no effect on any dataplane because of
// its other settings. The service is served. Validation can't reject it: backends with a limit of
// their own may register later, or leave.
func Ineffective(s *vip.Service) []vip.Problem {
	relay := s.Relay.Get()
	limited := func(b vip.Backend) bool { return b.MaxConnections > 0 }
	if relay.MaxQueue == 0 || relay.MaxConnections > 0 || len(s.Backends) == 0 || slices.ContainsFunc(s.Backends, limited) {
		return nil
	}
	return []vip.Problem{{Code: vip.CodeIneffective, Service: s.Key.String(), Place: s.Origin, Field: "max_queue",
		Message: "has no effect: clients wait only at a limit, and neither the service nor a backend has max_connections",
		Hint:    "add max_connections to the service or its backends, or remove max_queue"}}
}
