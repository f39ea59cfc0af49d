package ipvs

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// Ignored implements pipeline.Partial. It names the settings of s for relayed connections: the
// kernel forwards packets, so it doesn't connect to backends and has timeouts of its own for all
// services. Defaults are no requests. A real server only delivers what a director sends.
func (t *Target) Ignored(s *vip.Service) []vip.Problem {
	tcp := func(p vip.Port) bool { return p.Protocol == vip.TCP }
	if t.opt.RealServer || !slices.ContainsFunc(s.Ports, tcp) {
		return nil
	}
	var out []vip.Problem
	check := func(field string, asked, usual time.Duration, why string) {
		if asked == usual {
			return
		}
		p := vip.Unsupported("the ipvs dataplane", field, fmt.Sprintf("%s %s: %s", field, asked, why))
		p.Hint = fmt.Sprintf(`remove %s, or use dataplane.mode "proxy"`, field)
		out = append(out, p)
	}
	asked, usual := s.Relay.Get(), (*vip.Relay)(nil).Get()
	const kernels = "connections are forgotten after the kernel's own timeout"
	check("connect_timeout", asked.ConnectTimeout, usual.ConnectTimeout, "clients connect to the backend themselves")
	check("idle_timeout", asked.IdleTimeout, usual.IdleTimeout, kernels)
	check("half_close_timeout", asked.HalfCloseTimeout, usual.HalfCloseTimeout, kernels)
	return out
}
