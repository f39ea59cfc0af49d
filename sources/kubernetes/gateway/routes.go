package gateway

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ironvip/ironvip/internal/kubeclient/gatewayapi"
	"github.com/ironvip/ironvip/vip"
)

// Superseded is the type of a condition of routes that are accepted and receive no traffic, because each of their listeners
// has an older route. The Gateway API has no such condition.
const Superseded = "ironvip.io/Superseded"

// IsParent reports whether a reference of a route in a namespace is to a Gateway, and to which.
func IsParent(ref *gatewayapi.ParentRef, namespace string) (gateway Name, is bool) {
	return Name{or(ref.Namespace, namespace), ref.Name}, or(ref.Group, gatewayapi.Group) == gatewayapi.Group && or(ref.Kind, "Gateway") == "Gateway"
}

// Name identifies a Gateway.
type Name struct{ Namespace, Name string }

// NameOf returns the name of a Gateway.
func NameOf(gw *gatewayapi.Gateway) Name { return Name{gw.Namespace, gw.Name} }

// attach attaches routes to listeners, the oldest first. All routes that a listener allows are accepted, as the Gateway API
// says, and the first receives the traffic.
func (p *Plan) attach(routes []*gatewayapi.Route, view View) {
	routes = slices.Clone(routes)
	slices.SortFunc(routes, func(a, b *gatewayapi.Route) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	first := make([]*gatewayapi.Route, len(p.Listeners))
	for _, route := range routes {
		backends, refs := resolve(route, view)
		on := map[int]bool{}
		for i := range route.Spec.ParentRefs {
			ref := &route.Spec.ParentRefs[i]
			if name, is := IsParent(ref, route.Namespace); !is || name != NameOf(p.Gateway) {
				continue
			}
			listeners, accepted := p.accept(route, ref, view)
			status := gatewayapi.RouteParentStatus{ParentRef: *ref, ControllerName: Controller, Conditions: []metav1.Condition{accepted, refs}}
			var older *gatewayapi.Route
			served := false
			for _, at := range listeners {
				l := &p.Listeners[at]
				if !on[at] {
					on[at] = true
					l.Attached++
				}
				if first[at] == nil {
					first[at], l.Backends = route, backends
				}
				if first[at] == route {
					served = true
				} else {
					older = first[at]
				}
			}
			if !served && older != nil {
				status.Conditions = append(status.Conditions, metav1.Condition{Type: Superseded, Status: metav1.ConditionTrue, Reason: "OlderRoute",
					Message: fmt.Sprintf("the older %s %s/%s receives all traffic", older.Kind, older.Namespace, older.Name)})
			}
			p.Routes[KeyOfRoute(route)] = append(p.Routes[KeyOfRoute(route)], status)
		}
	}
}

// accept returns the listeners that a reference attaches a route to, and its condition Accepted.
func (p *Plan) accept(route *gatewayapi.Route, ref *gatewayapi.ParentRef, view View) (on []int, _ metav1.Condition) {
	if len(route.Spec.Rules) != 1 {
		return nil, condition("Accepted", "UnsupportedValue", "the route has %d rules: exactly one is supported", len(route.Spec.Rules))
	}
	if refs := len(route.Spec.Rules[0].BackendRefs); refs > vip.MaxGroups {
		return nil, condition("Accepted", "UnsupportedValue", "the route has %d backendRefs: at most %d are supported", refs, vip.MaxGroups)
	}
	named, why := 0, ""
	for i := range p.Listeners {
		l, of := &p.Gateway.Spec.Listeners[i], &p.Listeners[i]
		if ref.SectionName != nil && *ref.SectionName != l.Name || ref.Port != nil && *ref.Port != l.Port {
			continue
		}
		named++
		switch refusal := allows(p.Gateway, l, route.Namespace, view); {
		case !slices.Contains(of.Kinds, route.Kind):
			why = cmp.Or(why, fmt.Sprintf("the listener %s allows no %s", l.Name, route.Kind))
		case refusal != "":
			why = cmp.Or(why, fmt.Sprintf("the listener %s %s", l.Name, refusal))
		case of.Service == nil:
			why = cmp.Or(why, fmt.Sprintf("the listener %s is refused itself", l.Name))
		default:
			on = append(on, i)
		}
	}
	switch {
	case len(on) > 0:
		return on, condition("Accepted", "", "")
	case named == 0:
		return nil, condition("Accepted", "NoMatchingParent", "the Gateway has no listener with this sectionName and port")
	default:
		return nil, condition("Accepted", "NotAllowedByListeners", "%s", why)
	}
}

// allows returns why a listener allows no routes of a namespace, "" if it does.
func allows(gw *gatewayapi.Gateway, l *gatewayapi.Listener, namespace string, view View) string {
	from, selector := "Same", (*metav1.LabelSelector)(nil)
	if l.AllowedRoutes != nil && l.AllowedRoutes.Namespaces != nil {
		from, selector = or(l.AllowedRoutes.Namespaces.From, from), l.AllowedRoutes.Namespaces.Selector
	}
	switch from {
	case "All":
		return ""
	case "Same":
		if namespace == gw.Namespace {
			return ""
		}
		return "allows only routes of its own namespace"
	case "Selector":
		selects, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return fmt.Sprintf("has an invalid selector of namespaces: %s", err)
		}
		of, known := view.Namespace(namespace)
		if known && selects.Matches(labels.Set(of)) {
			return ""
		}
		return "allows only routes of namespaces with other labels"
	default:
		return "allows no routes: namespaces.from is " + from
	}
}

// resolve returns the usable backends of a route, and its condition ResolvedRefs.
func resolve(route *gatewayapi.Route, view View) (out []Backend, _ metav1.Condition) {
	refs := condition("ResolvedRefs", "", "")
	if len(route.Spec.Rules) != 1 {
		return nil, refs
	}
	most := int32(0)
	for i := range route.Spec.Rules[0].BackendRefs {
		most = max(most, or(route.Spec.Rules[0].BackendRefs[i].Weight, 1))
	}
	for i := range route.Spec.Rules[0].BackendRefs {
		ref := &route.Spec.Rules[0].BackendRefs[i]
		reason, why := check(route, ref, view)
		if reason != "" {
			if refs.Status == metav1.ConditionTrue {
				refs = condition("ResolvedRefs", reason, "backendRefs[%d]: %s", i, why)
			}
			continue
		}
		key := vip.ServiceKey{Namespace: or(ref.Namespace, route.Namespace), Name: ref.Name}
		backend := Backend{Service: key, Port: *ref.Port, Weight: scaled(or(ref.Weight, 1), most)}
		if at := slices.IndexFunc(out, func(b Backend) bool { return b.Service == key && b.Port == *ref.Port }); at >= 0 {
			out[at].Weight = min(out[at].Weight+backend.Weight, vip.MaxWeight)
			continue
		}
		backend.Group = groupName(out, &backend)
		out = append(out, backend)
	}
	return out, refs
}

// scaled returns a weight in ironvip's range. Weights above it keep their ratios, and only 0 becomes 0.
func scaled(weight, most int32) int {
	if most <= vip.MaxWeight || weight <= 0 {
		return int(max(weight, 0))
	}
	return max(1, int(int64(weight)*vip.MaxWeight/int64(most)))
}

// groupName returns the name of a backend's group: the Service's name, if no other group has it and it is not too long.
func groupName(others []Backend, b *Backend) string {
	if vip.CheckLabel(b.Service.Name) == nil && !slices.ContainsFunc(others, func(o Backend) bool { return o.Group == b.Service.Name }) {
		return b.Service.Name
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s:%d", b.Service.Namespace, b.Service.Name, b.Port)
	return fmt.Sprintf("backend-%016x", h.Sum64())
}

// check returns why a reference to a backend can't be used, as a reason of the condition ResolvedRefs; "": it can.
func check(route *gatewayapi.Route, ref *gatewayapi.BackendRef, view View) (reason, why string) {
	namespace := or(ref.Namespace, route.Namespace)
	if or(ref.Group, "") != "" || or(ref.Kind, "Service") != "Service" {
		return "InvalidKind", fmt.Sprintf("the kind %s is not supported: use Service", or(ref.Kind, "Service"))
	}
	if namespace != route.Namespace && !granted(route, namespace, ref.Name, view) {
		return "RefNotPermitted", fmt.Sprintf("no ReferenceGrant in namespace %s permits it to %s of namespace %s", namespace, route.Kind, route.Namespace)
	}
	s := view.Service(vip.ServiceKey{Namespace: namespace, Name: ref.Name})
	title := namespace + "/" + ref.Name
	switch {
	case s == nil:
		return "BackendNotFound", "there is no Service " + title
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		return "BackendNotFound", fmt.Sprintf("the Service %s is an ExternalName, which is not supported", title)
	case s.Spec.ClusterIP == corev1.ClusterIPNone:
		return "BackendNotFound", fmt.Sprintf("the Service %s is headless, which is not supported", title)
	case ref.Port == nil:
		return "BackendNotFound", "the port of the Service is missing"
	}
	protocol := corev1.ProtocolTCP
	if route.Kind == gatewayapi.UDPRoute {
		protocol = corev1.ProtocolUDP
	}
	other := false
	for i := range s.Spec.Ports {
		if port := &s.Spec.Ports[i]; port.Port == *ref.Port {
			if cmp.Or(port.Protocol, corev1.ProtocolTCP) == protocol {
				return "", ""
			}
			other = true
		}
	}
	if other {
		return "UnsupportedProtocol", fmt.Sprintf("the port %d of Service %s is not of the protocol %s", *ref.Port, title, protocol)
	}
	return "BackendNotFound", fmt.Sprintf("the Service %s has no port %d", title, *ref.Port)
}

// PortOf returns the port of a Service that a backend of a listener uses.
func PortOf(s *corev1.Service, port int32, protocol corev1.Protocol) (corev1.ServicePort, bool) {
	for _, p := range s.Spec.Ports {
		if p.Port == port && cmp.Or(p.Protocol, corev1.ProtocolTCP) == cmp.Or(protocol, corev1.ProtocolTCP) {
			return p, true
		}
	}
	return corev1.ServicePort{}, false
}

// granted reports whether a ReferenceGrant permits a route's reference to a Service in another namespace.
func granted(route *gatewayapi.Route, namespace, name string, view View) bool {
	for _, grant := range view.Grants(namespace) {
		from, to := false, false
		for _, f := range grant.Spec.From {
			from = from || f.Group == gatewayapi.Group && f.Kind == route.Kind && f.Namespace == route.Namespace
		}
		for _, t := range grant.Spec.To {
			to = to || t.Group == "" && t.Kind == "Service" && or(t.Name, name) == name
		}
		if from && to {
			return true
		}
	}
	return false
}
