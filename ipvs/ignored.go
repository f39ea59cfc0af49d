package ipvs

import (
	"fmt"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// Ignored implements pipeline.Partial. A real server only delivers what a director sends.
func (t *Target) Ignored(s *vip.Service) []vip.Problem {
	if t.opt.RealServer {
		return nil
	}
	return Ignored(s)
}

// Ignored returns the settings of s that have no effect with the ipvs dataplane: those for relayed
// connections. The kernel forwards packets, so it doesn't connect to backends, limits only the
// connections of a backend, and has timeouts of its own for all services. Defaults are no requests.
func Ignored(s *vip.Service) []vip.Problem {
	var out []vip.Problem
	check := func(field string, asked, usual any, why string) {
		if asked == usual {
			return
		}
		p := vip.Unsupported("the ipvs dataplane", field, fmt.Sprintf("%s %v: %s", field, asked, why))
		p.Hint = fmt.Sprintf(`remove %s, or use dataplane.mode "proxy"`, field)
		out = append(out, p)
	}
	asked, usual := s.Relay.Get(), (*vip.Relay)(nil).Get()
	const kernels, unlimited = "connections are forgotten after the kernel's own timeout", "only max_connections of a backend limits connections"
	if slices.ContainsFunc(s.Ports, func(p vip.Port) bool { return p.Protocol == vip.TCP }) {
		check("connect_timeout", asked.ConnectTimeout, usual.ConnectTimeout, "clients connect to the backend themselves")
		check("idle_timeout", asked.IdleTimeout, usual.IdleTimeout, kernels)
		check("half_close_timeout", asked.HalfCloseTimeout, usual.HalfCloseTimeout, kernels)
		check("max_queue", asked.MaxQueue, usual.MaxQueue, unlimited)
	}
	check("max_connections", asked.MaxConnections, usual.MaxConnections, unlimited)
	return out
}
