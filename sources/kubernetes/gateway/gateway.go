// Package gateway decides which routes and backends the listeners of a Gateway have, and the conditions of the Gateway API's objects.
//
// Its input is one Gateway of our class with the routes that name it and a view of the cluster. Its output is a Plan: the
// service of each valid listener, and the conditions of the Gateway, its listeners and its routes. A Plan and the allocations
// of its services give the Gateway's status. All functions are pure. The package follows and writes nothing.
//
// Source code organization: gateway.go makes the Plan, routes.go attaches routes and resolves their backends, and
// status.go makes statuses.
package gateway

import (
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironvip/ironvip/internal/kubeclient/gatewayapi"
	"github.com/ironvip/ironvip/vip"
)

// Controller is spec.controllerName of our GatewayClasses.
const Controller = "ironvip.io/vip"

// The label of a service with the name of its Gateway, as the Gateway API defines it.
const labelGateway = gatewayapi.Group + "/gateway-name"

// RouteKey identifies a route.
type RouteKey struct {
	Kind            string // gatewayapi.TCPRoute or gatewayapi.UDPRoute
	Namespace, Name string
}

// KeyOfRoute returns the key of a route.
func KeyOfRoute(r *gatewayapi.Route) RouteKey { return RouteKey{r.Kind, r.Namespace, r.Name} }

// View is what a Plan needs to know of the cluster.
type View struct {
	// Service returns a Service; nil: it does not exist.
	Service func(vip.ServiceKey) *corev1.Service
	// Grants returns the ReferenceGrants of a namespace.
	Grants func(namespace string) []*gatewayapi.ReferenceGrant
	// Namespace returns the labels of a namespace.
	Namespace func(name string) (labels map[string]string, known bool)
}

// Plan is what follows from a Gateway and its routes.
type Plan struct {
	Gateway   *gatewayapi.Gateway
	Listeners []Listener // as the Gateway lists them
	Accepted  metav1.Condition
	Routes    map[RouteKey][]gatewayapi.RouteParentStatus // of each parentRef that names the Gateway, without times
}

// Listener is a listener of a Gateway.
type Listener struct {
	Name string
	// Service is the definition of its service as a Service without a cluster IP; nil: it has none.
	Service    *corev1.Service
	Backends   []Backend // of its oldest route
	Kinds      []string  // supported kinds of routes
	Attached   int       // routes
	Conditions []metav1.Condition
}

// Backend is a Service with a share of a listener's new connections.
type Backend struct {
	Group   string // unique in the listener
	Weight  int
	Service vip.ServiceKey
	Port    int32 // of the Service
}

// ServiceName returns the name of a listener's service: readable, a DNS label, and different for all listeners of a namespace.
// The hash also keeps it apart from the names of Services.
func ServiceName(gateway, listener string) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s", gateway, listener)
	hash := fmt.Sprintf("-%016x", h.Sum64())
	name := strings.ReplaceAll(gateway+"-"+listener, ".", "-")
	return name[:min(len(name), 63-len(hash))] + hash
}

// ShareKey returns the key by which the services of a Gateway's listeners share addresses.
func ShareKey(gateway string) string { return ServiceName("gateway", gateway) }

// Make makes the Plan of a Gateway. Routes are those that name it, in any order.
func Make(gw *gatewayapi.Gateway, routes []*gatewayapi.Route, view View) *Plan {
	p := &Plan{Gateway: gw, Routes: map[RouteKey][]gatewayapi.RouteParentStatus{}}
	p.Accepted = accepts(gw)
	seen := map[vip.PortKey]string{}
	for i := range gw.Spec.Listeners {
		p.Listeners = append(p.Listeners, p.listener(&gw.Spec.Listeners[i], seen))
	}
	if p.Accepted.Status == metav1.ConditionTrue && slices.ContainsFunc(p.Listeners, func(l Listener) bool { return l.Service == nil }) {
		p.Accepted.Reason, p.Accepted.Message = "ListenersNotValid", "some listeners are refused: their conditions say why"
	}
	p.attach(routes, view)
	return p
}

// served returns the listeners with a service, and its key in Kubernetes' namespaces. A Plan that is nil has none.
func (p *Plan) served() iter.Seq2[*Listener, vip.ServiceKey] {
	return func(yield func(*Listener, vip.ServiceKey) bool) {
		for i := 0; p != nil && i < len(p.Listeners); i++ {
			if s := p.Listeners[i].Service; s != nil && !yield(&p.Listeners[i], vip.ServiceKey{Namespace: s.Namespace, Name: s.Name}) {
				return
			}
		}
	}
}

// routes returns what a Plan says of routes. A Plan that is nil has none.
func (p *Plan) routes() map[RouteKey][]gatewayapi.RouteParentStatus {
	if p == nil {
		return nil
	}
	return p.Routes
}

// refused returns why the Gateway isn't accepted, "" if it is. Its listeners then keep the settings that they had.
func (p *Plan) refused() string {
	if p.Accepted.Status == metav1.ConditionTrue {
		return ""
	}
	return p.Accepted.Message
}

// accepts returns the condition Accepted of a Gateway.
func accepts(gw *gatewayapi.Gateway) metav1.Condition {
	infra := gw.Spec.Infrastructure
	if infra != nil && len(infra.ParametersRef) > 0 {
		return condition("Accepted", "InvalidParameters", "spec.infrastructure.parametersRef is not supported: use annotations of ironvip.io/")
	}
	families := map[vip.Family]bool{}
	for i, a := range gw.Spec.Addresses {
		if a.Type != nil && *a.Type != "IPAddress" {
			return condition("Accepted", "UnsupportedAddress", "spec.addresses[%d]: the type %s is not supported: use IPAddress", i, *a.Type)
		}
		if a.Value == "" {
			continue // any address
		}
		addr, err := netip.ParseAddr(a.Value)
		if err != nil || addr.Zone() != "" {
			return condition("Accepted", "UnsupportedAddress", "spec.addresses[%d]: %q is not an IP address", i, a.Value)
		}
		if f := vip.FamilyOf(addr); families[f] {
			return condition("Accepted", "UnsupportedAddress", "spec.addresses[%d]: a second address of %s is not supported", i, f)
		} else {
			families[f] = true
		}
	}
	return condition("Accepted", "", "")
}

// protocols has the kinds of routes for each protocol of a listener.
var protocols = map[string]string{"TCP": gatewayapi.TCPRoute, "UDP": gatewayapi.UDPRoute}

// listener returns a listener without routes. Seen has the listeners before it by port.
func (p *Plan) listener(l *gatewayapi.Listener, seen map[vip.PortKey]string) Listener {
	out := Listener{Name: l.Name}
	kind, known := protocols[l.Protocol]
	if !known {
		out.Conditions = []metav1.Condition{
			condition("Accepted", "UnsupportedProtocol", "the protocol %s is not supported: use TCP or UDP", l.Protocol), condition("Conflicted", "", ""), condition("ResolvedRefs", "", "")}
		return out
	}
	kinds, refs := kindsOf(l, kind)
	out.Kinds = kinds
	if l.Port < 1 || l.Port > 65535 {
		out.Conditions = []metav1.Condition{condition("Accepted", "PortUnavailable", "%d is not a port: use 1 to 65535", l.Port), condition("Conflicted", "", ""), refs}
		return out
	}
	key := vip.PortKey{Port: uint16(l.Port)}
	if l.Protocol == "UDP" {
		key.Protocol = vip.UDP
	} else {
		key.Protocol = vip.TCP
	}
	if other, taken := seen[key]; taken {
		conflict := condition("Conflicted", "ProtocolConflict", "the listener %s has the port %s", other, key)
		conflict.Status = metav1.ConditionTrue
		out.Conditions = []metav1.Condition{condition("Accepted", "PortUnavailable", "the listener %s has the port %s", other, key), conflict, refs}
		return out
	}
	seen[key] = l.Name
	out.Conditions = []metav1.Condition{condition("Accepted", "", ""), condition("Conflicted", "", ""), refs}
	out.Service = p.service(l)
	return out
}

// kindsOf returns the kinds of routes that a listener allows, and its condition ResolvedRefs.
func kindsOf(l *gatewayapi.Listener, kind string) ([]string, metav1.Condition) {
	if l.AllowedRoutes == nil || len(l.AllowedRoutes.Kinds) == 0 {
		return []string{kind}, condition("ResolvedRefs", "", "")
	}
	var kinds, bad []string
	for _, k := range l.AllowedRoutes.Kinds {
		if or(k.Group, gatewayapi.Group) == gatewayapi.Group && k.Kind == kind {
			kinds = []string{kind}
		} else {
			bad = append(bad, k.Kind)
		}
	}
	if len(bad) > 0 {
		return kinds, condition("ResolvedRefs", "InvalidRouteKinds", "routes of the kind %s can't be on a listener of the protocol %s: use %s", strings.Join(bad, ", "), l.Protocol, kind)
	}
	return kinds, condition("ResolvedRefs", "", "")
}

// service returns the definition of a listener's service.
func (p *Plan) service(l *gatewayapi.Listener) *corev1.Service {
	gw := p.Gateway
	out := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: gw.Namespace, Name: ServiceName(gw.Name, l.Name), UID: gw.UID + types.UID("/"+l.Name),
		Labels: map[string]string{}, Annotations: map[string]string{}}}
	maps.Copy(out.Labels, gw.Labels)
	maps.Copy(out.Annotations, gw.Annotations)
	if infra := gw.Spec.Infrastructure; infra != nil {
		maps.Copy(out.Labels, infra.Labels)
		maps.Copy(out.Annotations, infra.Annotations)
	}
	out.Labels[labelGateway] = gw.Name
	out.Annotations["ironvip.io/share-key"] = or(nonempty(out.Annotations["ironvip.io/share-key"]), ShareKey(gw.Name))
	var addrs []string
	for _, a := range gw.Spec.Addresses {
		if a.Value != "" {
			addrs = append(addrs, a.Value)
		}
	}
	if len(addrs) > 0 {
		out.Annotations["ironvip.io/vips"] = strings.Join(addrs, ",")
	}
	out.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: l.Port, Protocol: corev1.Protocol(l.Protocol)}}}
	for _, a := range gw.Status.Addresses {
		out.Status.LoadBalancer.Ingress = append(out.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.Value})
	}
	return out
}

// or returns the value of a pointer, or a default for nil.
func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

func nonempty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// good has the reason of each condition in its good state, which is True unless it is Conflicted.
var good = map[string]string{"Accepted": "Accepted", "Programmed": "Programmed", "ResolvedRefs": "ResolvedRefs", "Conflicted": "NoConflicts"}

// condition returns a condition: in its good state if bad is empty, else False with the reason bad. Messages are never empty
// in the bad state.
func condition(kind, bad, format string, args ...any) metav1.Condition {
	out := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: good[kind]}
	if bad != "" {
		out.Status, out.Reason, out.Message = metav1.ConditionFalse, bad, fmt.Sprintf(format, args...)
	} else if kind == "Conflicted" {
		out.Status = metav1.ConditionFalse
	}
	return out
}
