package kubernetes

import (
	"cmp"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/ironvip/ironvip/sources/kubernetes/gateway"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// backend is a Service behind a listener of a Gateway.
type backend struct {
	gateway.Backend
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
}

// placeOfListener returns the place of a listener for messages.
func (o *Options) placeOfListener(l *gateway.Served) string {
	return fmt.Sprintf("listener %s of gateway %s/%s in %s", strict.Name(l.Listener), strict.Name(l.Gateway.Namespace), strict.Name(l.Gateway.Name), cmp.Or(o.Name, Type))
}

// listenerServers returns the endpoints of a listener's backends. Each has a port of its own, because Services differ in their
// target ports. An endpoint of two Services belongs to the first one.
func (b *builder) listenerServers(nodes nodeSet, backends []backend) (out []server) {
	seen := map[netip.AddrPort]string{}
	for _, of := range backends {
		port, has := gateway.PortOf(of.service, of.Port, b.s.Spec.Ports[0].Protocol)
		if !has {
			continue // its route says so
		}
		s := *of.service
		s.Spec.Ports = []corev1.ServicePort{port}
		part := builder{o: b.o, s: &s, outside: b.outside, families: b.requested()}
		part.draft.Ports = b.draft.Ports
		for _, server := range part.endpointServers(nodes, part.groups(of.slices), false) {
			at := netip.AddrPortFrom(server.address, uint16(server.Port))
			if first, twice := seen[at]; twice && server.address.IsValid() {
				b.warn(vip.CodeUnsupported, server.field(), "select different pods", "%s is left out: it is also an endpoint of %s", at, first)
				continue
			}
			seen[at] = of.Service.String()
			server.group = of.Group
			out = append(out, server)
		}
		b.problems = append(b.problems, part.problems...)
	}
	return out
}

// requested returns the families of the requested addresses; empty: any.
func (b *builder) requested() (out []vip.Family) {
	for _, text := range b.draft.VIPs {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, vip.FamilyOf(a))
		}
	}
	return out
}

// divide divides the backends of a listener's service into groups. One backend with a weight needs none.
func (b *builder) divide(backends []backend) {
	if len(backends) == 1 && backends[0].Weight > 0 {
		return
	}
	for _, of := range backends {
		b.draft.Groups = append(b.draft.Groups, spec.Group{Name: of.Group, Weight: new(of.Weight)})
	}
}
