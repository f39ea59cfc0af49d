package statuswriter

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Finalizer keeps the object of a deleted Service until its VIPs are withdrawn. Kubernetes defines
// the name, so tools treat it as usual.
const Finalizer = "service.kubernetes.io/load-balancer-cleanup"

// step is the next action of the Writer for one Service. A Service can need several steps. Each is
// decided separately.
type step uint8

const (
	stepNone            step = iota
	stepLookUp               // read the object: does it exist, and who wrote the finalizer
	stepAwait                // wait until the VIPs are withdrawn
	stepAddFinalizer         // before the status publishes a VIP
	stepWriteIngress         // the value of situation.ingress; nil: none
	stepRemoveFinalizer      // the last step
)

// granted is the allocator's result for a Service.
type granted uint8

const (
	grantUnknown granted = iota // no result yet, or not possible now
	grantNone                   // the Service has no VIP
	grantSome
)

// written is what the Writers of our Lease have written to a Service.
type written struct {
	// held means that the finalizer is ours to remove, notHeld that it isn't. If neither is set, it
	// has not been checked.
	held, notHeld bool
	addrs         []netip.Addr // the VIPs in its status, if known
}

// situation is the whole input of decide.
type situation struct {
	service *corev1.Service // nil: not in the store
	ours    bool            // by class, type, namespace and labels, deleted or not
	written
	grant     granted
	vips      []netip.Addr
	mode      corev1.LoadBalancerIPMode
	withdrawn bool
}

// decide returns the next step. It is a pure function. Every step can be repeated safely.
func (s *situation) decide() step {
	switch {
	case s.service == nil:
		if s.held { // it has left the selector or was deleted
			return stepLookUp
		}
		return stepNone
	case s.ours && s.service.DeletionTimestamp == nil:
		return s.serve()
	default:
		return s.letGo()
	}
}

// serve is decide for a Service that should have VIPs.
func (s *situation) serve() step {
	ingress := s.service.Status.LoadBalancer.Ingress
	switch s.grant {
	case grantNone:
		if len(ingress) > 0 && hasFinalizer(s.service) { // else another load balancer has written it, and it is preferred
			return stepWriteIngress
		}
	case grantSome:
		if !hasFinalizer(s.service) {
			return stepAddFinalizer
		}
		if !sameIngress(ingress, s.ingress()) {
			return stepWriteIngress
		}
	}
	return stepNone
}

// letGo is decide for a Service that is deleted or not ours. Only the finalizer shows that it was
// ours, and other controllers use the same finalizer.
func (s *situation) letGo() step {
	switch {
	case !hasFinalizer(s.service) || s.notHeld:
		return stepNone
	case !s.held && !s.ours:
		return stepLookUp
	case !s.withdrawn:
		return stepAwait
	case s.ingressIsOurs():
		return stepWriteIngress
	default:
		return stepRemoveFinalizer
	}
}

// ingressIsOurs reports whether the status contains addresses to remove. If another controller
// serves the Service now, its addresses stay.
func (s *situation) ingressIsOurs() bool {
	ingress := s.service.Status.LoadBalancer.Ingress
	if len(ingress) == 0 {
		return false
	}
	if s.ours || s.service.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return true
	}
	for i := range ingress {
		if addr, err := netip.ParseAddr(ingress[i].IP); err != nil || !slices.Contains(s.addrs, addr) {
			return false
		}
	}
	return true
}

// ingress returns the desired ingress of the status: the VIPs in the order of spec.ipFamilies, or
// nil.
func (s *situation) ingress() []corev1.LoadBalancerIngress {
	if s.grant != grantSome || !s.ours || s.service.DeletionTimestamp != nil {
		return nil
	}
	rank := func(a netip.Addr) int {
		family := corev1.IPv4Protocol
		if !a.Is4() {
			family = corev1.IPv6Protocol
		}
		if i := slices.Index(s.service.Spec.IPFamilies, family); i >= 0 {
			return i
		}
		return len(s.service.Spec.IPFamilies)
	}
	vips := slices.Clone(s.vips)
	slices.SortStableFunc(vips, func(a, b netip.Addr) int { return rank(a) - rank(b) })
	out := make([]corev1.LoadBalancerIngress, len(vips))
	for i, vip := range vips {
		out[i] = corev1.LoadBalancerIngress{IP: vip.String(), IPMode: &s.mode}
	}
	return out
}

// sameIngress reports whether the status has the desired value. Servers that support ipMode fill in
// a missing one. Therefore a missing ipMode means that the server drops the field, and writing it
// again would have no effect.
func sameIngress(have, want []corev1.LoadBalancerIngress) bool {
	return slices.EqualFunc(have, want, func(have, want corev1.LoadBalancerIngress) bool {
		return have.IP == want.IP && have.Hostname == "" && len(have.Ports) == 0 &&
			(have.IPMode == nil || *have.IPMode == *want.IPMode)
	})
}

func hasFinalizer(s *corev1.Service) bool { return slices.Contains(s.Finalizers, Finalizer) }

// addresses returns the addresses in a Service's status.
func addresses(s *corev1.Service) []netip.Addr {
	var out []netip.Addr
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		if addr, err := netip.ParseAddr(ingress.IP); err == nil {
			out = append(out, addr)
		}
	}
	return out
}
