package compile

import (
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// endpoints returns the backends of one port in one family, sorted, each
// address and port once. It is never nil, so that callers can tell it from
// "not made yet".
//
// Backends of the other family are left to the VIP of their family: NAT can't
// cross families. A backend without a port of its own uses the port's
// TargetPort; where that makes it the same as one that states its port, the
// one that states it is meant.
func endpoints(in *Input, p *vip.Port, family vip.Family) []vip.Endpoint {
	s := &in.Service
	out := make([]vip.Endpoint, 0, len(s.Backends))
	for i := range s.Backends {
		b := &s.Backends[i]
		if vip.FamilyOf(b.Address) != family {
			continue
		}
		out = append(out, vip.Endpoint{Addr: b.Endpoint(p.TargetPort), Weight: weight(in, b)})
	}
	// Backends come sorted by address and stated port, so this finds work only
	// where a stated port is below the target port. The sort must be stable: of
	// two alike the later is the one with a port of its own.
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
	return kept
}

// weight returns the share of new connections that b takes: none unless it is
// ready, by the operator's word or else the source's.
func weight(in *Input, b *vip.Backend) uint32 {
	if EffectiveState(in.Service.Key, b, in.State) != vip.Ready {
		return 0
	}
	return b.Weight
}

// EffectiveState returns the state that is in force for a backend: the
// operator's word, else the source's. A backend without a state is ready.
// Override may be nil.
func EffectiveState(service vip.ServiceKey, b *vip.Backend, override func(vip.BackendKey) (vip.State, bool)) vip.State {
	if override != nil {
		if state, ok := override(b.Key(service)); ok {
			return state
		}
	}
	if b.State == "" {
		return vip.Ready
	}
	return b.State
}
