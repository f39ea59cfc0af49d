package compile

import (
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// realServer returns the frontends of a host that is a real server. They cover services with direct
// routing or tunnels: each VIP and port of a family in which the service has a backend at one of
// the host's addresses. Such a frontend adds the VIP to the host, and delivers what a director
// sends to the host's own listener. Its backends are those of this host, with the director's
// weights, for display only.
//
// A backend that takes no new connections still counts, because it may have open ones.
func realServer(in *Input) []vip.Frontend {
	s := in.Service
	if !bypassed(s) {
		return nil
	}
	out := in.Room[:0]
	perPort := in.byPort()
	for _, a := range in.Allocation.VIPs {
		c := choice{family: vip.FamilyOf(a)}
		c.takers(in)
		for i := range s.Ports {
			p := &s.Ports[i]
			if perPort {
				c.port = p.Name
				c.takers(in)
			}
			here := c.here(in, p)
			if len(here) == 0 {
				if perPort {
					continue
				}
				break // nor for the other ports
			}
			f := frontend(s, p, vip.OnRealServer, vip.FrontendKey{Addr: a, Port: p.Port, LastPort: p.LastPort, Protocol: p.Protocol})
			f.Masquerade = vip.MasqueradeNever
			f.Backends = here
			out = append(out, f)
		}
	}
	return out
}

// here returns the endpoints of a port at the host's own addresses. It ignores the node that their
// source states, because the address decides which host receives the packets.
func (c *choice) here(in *Input, p *vip.Port) []vip.Endpoint {
	return slices.DeleteFunc(endpoints(in, c, p), func(e vip.Endpoint) bool { return !in.Node.owns(e.Addr.Addr()) })
}
