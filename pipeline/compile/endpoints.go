package compile

import (
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// endpoints returns the backends that a choice reaches at its port, sorted, each address and port
// once. It is never nil, so that callers can distinguish it from "not computed yet". Backends that
// take no new connections are included with weight 0: their open connections continue.
//
// A backend without its own port uses the port's TargetPort. If it then equals a backend that
// states its port, the one that states it is kept. TargetPort 0, of a range, stays 0.
func endpoints(in *Input, c *choice, p *vip.Port) []vip.Endpoint {
	backends := in.Service.Backends
	out := make([]vip.Endpoint, 0, len(backends))
	for i := range backends {
		if b := &backends[i]; c.reaches(in, b) {
			out = append(out, vip.Endpoint{Addr: b.Endpoint(p.TargetPort), Weight: c.weight(in, b), Reset: c.resets(in, b), MaxConnections: b.MaxConnections})
		}
	}
	// Backends are sorted by address and stated port, so a sort is needed only where a stated port
	// is below the target port. The sort must be stable: of two equal endpoints the later one
	// states its port.
	if !slices.IsSortedFunc(out, vip.CompareEndpoints) {
		slices.SortStableFunc(out, vip.CompareEndpoints)
	}
	kept := out[:0]
	for _, e := range out {
		if n := len(kept); n > 0 && kept[n-1].Addr == e.Addr {
			kept[n-1] = e
			continue
		}
		kept = append(kept, e)
	}
	in.Share(p.Name, kept)
	return kept
}
