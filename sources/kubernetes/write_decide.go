package kubernetes

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Finalizer keeps the object of a deleted Service until its VIPs are withdrawn.
// It is Kubernetes' own name for that, so tools that know it treat it alike.
const Finalizer = "service.kubernetes.io/load-balancer-cleanup"

// step is what the Writer does next for one Service. A Service may take several,
// one after the other, each decided anew.
type step uint8

const (
	stepNone            step = iota
	stepLookUp               // read the object itself: whose is the finalizer, is it still there
	stepAwait                // wait until the VIPs are withdrawn
	stepAddFinalizer         // before the status tells anybody of a VIP
	stepWriteIngress         // what situation.ingress has, nil for none
	stepRemoveFinalizer      // the last thing
)

// granted is what the allocator says of a Service.
type granted uint8

const (
	grantUnknown granted = iota // it has not answered, or can't at present
	grantNone                   // there is no VIP for it
	grantSome
)

// situation is all that the next step depends on.
type situation struct {
	service *corev1.Service // nil: the store has none
	ours    bool            // by class, type, namespace and labels, deleted or not
	// held says that the finalizer is ours to remove, notHeld that it isn't; with
	// neither, nobody has looked yet.
	held, notHeld bool
	// told are the VIPs that we have put into the status, as far as we know.
	told      []netip.Addr
	grant     granted
	vips      []netip.Addr
	mode      corev1.LoadBalancerIPMode
	withdrawn bool
}

// decide returns the next step. It is a pure function, and what it returns is
// safe to repeat.
func (s *situation) decide() step {
	switch {
	case s.service == nil:
		if s.held { // it has left the selector, or it was deleted
			return stepLookUp
		}
		return stepNone
	case s.ours && s.service.DeletionTimestamp == nil:
		return s.serve()
	default:
		return s.letGo()
	}
}

// serve is decide for a Service that is to have VIPs.
func (s *situation) serve() step {
	ingress := s.service.Status.LoadBalancer.Ingress
	switch s.grant {
	case grantNone:
		if len(ingress) > 0 {
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

// letGo is decide for a Service that is deleted or not ours (any longer). That it
// was ours shows by the finalizer alone, whose name other controllers use, too.
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

// ingressIsOurs reports whether the status has something to be taken out. Where
// another controller serves the Service now, what it wrote stays.
func (s *situation) ingressIsOurs() bool {
	ingress := s.service.Status.LoadBalancer.Ingress
	if len(ingress) == 0 {
		return false
	}
	if s.ours || s.service.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return true
	}
	for i := range ingress {
		if addr, err := netip.ParseAddr(ingress[i].IP); err != nil || !slices.Contains(s.told, addr) {
			return false
		}
	}
	return true
}

// ingress returns what the status is to have: the VIPs in the order of
// spec.ipFamilies, none for a Service that is not to have any.
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

// sameIngress reports whether the status has what it is to have. Servers that
// know ipMode fill it in where it is left out, so one without it comes from a
// server that drops it, and writing it again would change nothing.
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
