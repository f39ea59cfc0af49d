package compile

import (
	"fmt"

	"github.com/ironvip/ironvip/vip"
)

// Unsupported returns a problem for each thing that s asks for and no dataplane
// of this version can do. They are refused by name, never silently ignored.
func Unsupported(s *vip.Service) []vip.Problem {
	var problems []vip.Problem
	refuse := func(field, feature string) {
		p := vip.Unsupported("this version", field, feature)
		p.Service, p.Place = s.Key.String(), s.Origin
		problems = append(problems, p)
	}
	if s.Forward != "" && s.Forward != vip.ForwardNAT {
		refuse("forward", fmt.Sprintf("forward %q, only %q", s.Forward, vip.ForwardNAT))
	}
	if s.InternalTraffic != "" && s.InternalTraffic != vip.Cluster {
		refuse("internal_traffic", fmt.Sprintf("internal_traffic %q, only %q", s.InternalTraffic, vip.Cluster))
	}
	if s.ExternalTraffic != "" && s.ExternalTraffic != vip.Cluster {
		refuse("external_traffic", fmt.Sprintf("external_traffic %q, only %q", s.ExternalTraffic, vip.Cluster))
	}
	if len(s.SourceRanges) > 0 {
		refuse("source_ranges", "source_ranges")
	}
	for i := range s.Ports {
		if p := s.Ports[i].Protocol; p != vip.TCP && p != vip.UDP {
			refuse(fmt.Sprintf("ports[%d].protocol", i), fmt.Sprintf("protocol %q", p))
		}
	}
	return problems
}
