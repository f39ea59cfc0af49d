package compile

import (
	"fmt"

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
