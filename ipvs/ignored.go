package ipvs

import (
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// Ignored implements reconcile.Plane. A real server only delivers what a director sends.
func (t *Target) Ignored(s *vip.Service) []vip.Problem {
	if t.opt.RealServer {
		return nil
	}
	return Ignored(s)
}

// Ignored returns the settings of s that have no effect with the ipvs dataplane.
func Ignored(s *vip.Service) []vip.Problem {
	return usage.Ignored("the ipvs dataplane", "only max_connections of a backend limits connections", s)
}
