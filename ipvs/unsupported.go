package ipvs

import (
	"slices"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// Unsupported returns what the ipvs dataplane can't do of f on any host: a vip.Problem of
// code unsupported, or nil. Apply rejects the same.
func Unsupported(f *vip.Frontend) error {
	r := refusals{usage.Refusals{Dataplane: "the ipvs dataplane"}}
	// A real server has no scheduler.
	if f.Kind != vip.OnRealServer && !kernel.HasScheduler(f.Scheduler) {
		r.Add("scheduler", "scheduler %q", f.Scheduler)
	}
	if !slices.Contains([]vip.Protocol{vip.TCP, vip.UDP, vip.SCTP}, f.Key.Protocol) {
		r.Add("protocol", "protocol %s", f.Key.Protocol)
	}
	r.forwarding(f)
	if f.OnePacket {
		r.onePacket(f)
	}
	r.ProxyProtocol(f)
	r.sourceLimits(f)
	if f.Affinity > 0 && hasMark(f) {
		r.affinityByMark(f)
	}
	return r.Err()
}

// refusals are the features that aren't supported.
type refusals struct{ usage.Refusals }

// forwarding checks the forwarding method. Only nat rewrites packets, so the others need
// the same port and family.
func (r *refusals) forwarding(f *vip.Frontend) {
	method := usage.Forward(f)
	nat := method == vip.ForwardNAT
	if !slices.Contains(forwards, method) {
		r.Add("forward", "forward %q", method)
		return
	}
	switch {
	case f.Kind == vip.OnRealServer && nat:
		r.Add("forward", "a real server with forward %q", method)
	case f.Kind == vip.OnHost && !nat:
		r.Add("forward", "forward %q on a node port", method)
	case f.Masquerade == vip.MasqueradeAlways && !nat:
		r.Add("masquerade", "masquerade %q with forward %q", f.Masquerade, method)
	}
	own := f.Key.Port
	if f.Key.Ranged() {
		own = 0
	}
	for _, b := range f.Backends {
		if family := vip.FamilyOf(f.Key.Addr); vip.FamilyOf(b.Addr.Addr()) != family {
			r.Add("backends", "backend %s behind an %s address", b.Addr, family)
		}
		if !nat && b.Addr.Port() != own {
			r.Add("backends", "backend %s of %s with forward %q, which can't change the port", b.Addr, f.Key, method)
		}
	}
}

// sourceLimits checks the limits of each client and of all. A real server leaves them to the director.
func (r *refusals) sourceLimits(f *vip.Frontend) {
	if f.MaxConnectionsPerSource > 0 && f.Kind != vip.OnRealServer {
		r.Add(vip.MaxConnectionsPerSource, vip.MaxConnectionsPerSource)
		r.Hint(`remove it, or use dataplane.mode "nft" or "proxy"`)
	}
	if f.MaxRatePerSource > 0 && f.Kind != vip.OnRealServer {
		r.Add(vip.MaxRatePerSource, vip.MaxRatePerSource)
		r.Hint(`remove it, or use dataplane.mode "nft"`)
	}
	if f.SynProxy && f.Kind != vip.OnRealServer {
		r.Add(vip.SynProxy, vip.SynProxy)
		r.Hint(`remove it, or use dataplane.mode "nft" or "proxy"`)
	}
}

// onePacket checks the combinations with one-packet scheduling, which has no connections
// to remember.
func (r *refusals) onePacket(f *vip.Frontend) {
	if f.Key.Protocol != vip.UDP {
		r.Add("scheduler_flags", "one-packet for %s", f.Key.Protocol)
	}
	if usage.Forward(f) == vip.ForwardNAT {
		r.Add("scheduler_flags", "one-packet with forward %q", vip.ForwardNAT)
	}
	if f.Affinity > 0 {
		r.Add("scheduler_flags", "one-packet with affinity")
	}
}

// affinityByMark checks the ports of a service by mark with affinity. The kernel's
// ip_vs_sched_persist uses a destination's port only if the client asked for the
// service's port, which a service by mark doesn't have. A remembered client is sent to
// the port that it asked for.
func (r *refusals) affinityByMark(f *vip.Frontend) {
	for _, b := range f.Backends {
		if p := b.Addr.Port(); p != 0 && (f.Key.Ranged() || p != f.Key.Port) {
			r.Add("affinity", "affinity on %s with backends at port %d: the kernel takes a remembered client to the port that it asked for", f.Key, p)
			r.Hint("let the backends listen on the service's own port, or remove affinity")
			return
		}
	}
}

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
