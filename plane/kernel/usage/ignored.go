package usage

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// Ignored returns the settings of s that have no effect with a dataplane in the kernel: those for relayed
// connections. The kernel forwards packets, so it doesn't connect to backends, doesn't limit the
// connections of a service, and has timeouts of its own for all services. Defaults are no requests.
func Ignored(dataplane, unlimited string, s *vip.Service) []vip.Problem {
	var out []vip.Problem
	check := func(field string, asked, usual any, why string) {
		if asked == usual {
			return
		}
		p := vip.Unsupported(dataplane, field, fmt.Sprintf("%s %v: %s", field, asked, why))
		p.Code = vip.CodeIneffective
		p.Hint = fmt.Sprintf(`remove %s, or use dataplane.mode "proxy"`, field)
		out = append(out, p)
	}
	asked, usual := s.Relay.Get(), (*vip.ProxySettings)(nil).Get()
	const kernels = "connections are forgotten after the kernel's own timeout"
	const longest = "the kernel has one timeout for all services, which is at least the default"
	if slices.ContainsFunc(s.Ports, func(p vip.Port) bool { return p.Protocol == vip.TCP }) {
		check("connect_timeout", asked.ConnectTimeout, usual.ConnectTimeout, "clients connect to the backend themselves")
		check("idle_timeout", min(asked.IdleTimeout, usual.IdleTimeout), usual.IdleTimeout, longest)
		check("half_close_timeout", asked.HalfCloseTimeout, usual.HalfCloseTimeout, kernels)
		check("max_queue", asked.MaxQueue, usual.MaxQueue, unlimited)
	}
	check("max_connections", asked.MaxConnections, usual.MaxConnections, unlimited)
	return out
}

// IdleTimeout returns how long idle connections of f must be remembered. 0: the protocol has none, or only directors
// remember them.
func IdleTimeout(f *vip.Frontend) time.Duration {
	if f.Key.Protocol != vip.TCP || f.Kind == vip.OnRealServer {
		return 0
	}
	return f.Relay.Get().IdleTimeout
}
