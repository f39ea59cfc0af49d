package ipvs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/vip"
)

// Unsupported returns what the ipvs dataplane can't do of f on any host: a vip.Problem of
// code unsupported, or nil. Apply rejects the same.
func Unsupported(f *vip.Frontend) error {
	r := refusals{}
	// A real server has no scheduler.
	if f.Kind != vip.OnRealServer && !kernel.HasScheduler(f.Scheduler) {
		r.add("scheduler", "scheduler %q", f.Scheduler)
	}
	if !slices.Contains([]vip.Protocol{vip.TCP, vip.UDP, vip.SCTP}, f.Key.Protocol) {
		r.add("protocol", "protocol %s", f.Key.Protocol)
	}
	r.forwarding(f)
	if f.OnePacket {
		r.onePacket(f)
	}
	if f.Key.Protocol == vip.TCP {
		r.proxyProtocol(f.Relay.Get())
	}
	if f.Affinity > 0 && hasMark(f) {
		r.affinityByMark(f)
	}
	return r.err()
}

// refusals are the features that aren't supported.
type refusals []vip.Problem

func (r *refusals) add(field, feature string, args ...any) {
	*r = append(*r, vip.Unsupported("the ipvs dataplane", field, fmt.Sprintf(feature, args...)))
}

// hint sets the hint of the last refusal.
func (r refusals) hint(text string) { r[len(r)-1].Hint = text }

func (r refusals) err() error {
	if len(r) == 0 {
		return nil
	}
	for _, p := range r[1:] {
		r[0].Message += "; " + strings.TrimPrefix(p.Message, "the ipvs dataplane ")
	}
	return r[0]
}

// proxyProtocol checks the headers of the PROXY protocol, which only a proxy can write and read.
func (r *refusals) proxyProtocol(relay vip.Relay) {
	if v := relay.ProxyProtocol; v != 0 {
		r.add("proxy_protocol", "proxy_protocol %q: it forwards packets", v)
		r.hint(`remove it, or use dataplane.mode "proxy"`)
	}
	if len(relay.AcceptProxyFrom) > 0 {
		r.add("accept_proxy_from", "accept_proxy_from: it forwards packets and reads none of their content")
		r.hint(`remove it, or use dataplane.mode "proxy"`)
	}
}

// forwarding checks the forwarding method. Only nat rewrites packets, so the others need
// the same port and family.
func (r *refusals) forwarding(f *vip.Frontend) {
	method := forward(f)
	nat := method == vip.ForwardNAT
	if !slices.Contains(forwards, method) {
		r.add("forward", "forward %q", method)
		return
	}
	switch {
	case f.Kind == vip.OnRealServer && nat:
		r.add("forward", "a real server with forward %q", method)
	case f.Kind == vip.OnHost && !nat:
		r.add("forward", "forward %q on a node port", method)
	case f.Masquerade == vip.MasqueradeAlways && !nat:
		r.add("masquerade", "masquerade %q with forward %q", f.Masquerade, method)
	}
	own := f.Key.Port
	if f.Key.Ranged() {
		own = 0
	}
	for _, b := range f.Backends {
		if family := vip.FamilyOf(f.Key.Addr); vip.FamilyOf(b.Addr.Addr()) != family {
			r.add("backends", "backend %s behind an %s address", b.Addr, family)
		}
		if !nat && b.Addr.Port() != own {
			r.add("backends", "backend %s of %s with forward %q, which can't change the port", b.Addr, f.Key, method)
		}
	}
}

// onePacket checks the combinations with one-packet scheduling, which has no connections
// to remember.
func (r *refusals) onePacket(f *vip.Frontend) {
	if f.Key.Protocol != vip.UDP {
		r.add("scheduler_flags", "one-packet for %s", f.Key.Protocol)
	}
	if forward(f) == vip.ForwardNAT {
		r.add("scheduler_flags", "one-packet with forward %q", vip.ForwardNAT)
	}
	if f.Affinity > 0 {
		r.add("scheduler_flags", "one-packet with affinity")
	}
}

// affinityByMark checks the ports of a service by mark with affinity. The kernel's
// ip_vs_sched_persist uses a destination's port only if the client asked for the
// service's port, which a service by mark doesn't have. A remembered client is sent to
// the port that it asked for.
func (r *refusals) affinityByMark(f *vip.Frontend) {
	for _, b := range f.Backends {
		if p := b.Addr.Port(); p != 0 && (f.Key.Ranged() || p != f.Key.Port) {
			r.add("affinity", "affinity on %s with backends at port %d: the kernel takes a remembered client to the port that it asked for", f.Key, p)
			r.hint("let the backends listen on the service's own port, or remove affinity")
			return
		}
	}
}
