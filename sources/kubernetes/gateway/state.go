package gateway

import (
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironvip/ironvip/internal/kubeclient/gatewayapi"
	"github.com/ironvip/ironvip/sources/kubernetes/statuswriter"
	"github.com/ironvip/ironvip/vip"
)

// State is what a source knows of the Gateway API's objects, and the Plans that follow. A change costs one Plan of each Gateway
// that it concerns. It is not safe for concurrent use.
type State struct {
	service  func(vip.ServiceKey) *corev1.Service
	set      func(vip.ServiceKey, *Served)
	classes  map[string]*gatewayapi.GatewayClass
	gateways map[Name]*followed
	routes   map[RouteKey]*gatewayapi.Route
	grants   map[string]map[string]*gatewayapi.ReferenceGrant // by namespace and name
	labels   map[string]map[string]string                     // of namespaces
	routesOf links[Name, RouteKey]
	usersOf  links[vip.ServiceKey, Name]           // Gateways with a route to a Service, also to one that doesn't exist
	servedBy links[vip.ServiceKey, vip.ServiceKey] // services of listeners with backends of a Service
	dirty    map[Name]struct{}                     // must be planned again
	unsaid   map[statuswriter.DocumentKey]struct{} // may have another status
	told     bool                                  // all documents have been told once
}

// followed is the state of one Gateway.
type followed struct {
	object *gatewayapi.Gateway // nil: it is gone
	plan   *Plan               // nil: it is not ours, or not planned yet
	uses   []vip.ServiceKey
}

// Served is the definition of a listener's service.
type Served struct {
	Gateway  Name
	Listener string
	Service  *corev1.Service // as in Listener
	Backends []Backend
	Refused  string // why the Gateway isn't accepted; "": it is
}

// NewState returns an empty State. Service returns a Service of the cluster; nil: it does not exist. Set receives the
// definition of each listener's service that may have changed; nil: it has none.
func NewState(service func(vip.ServiceKey) *corev1.Service, set func(vip.ServiceKey, *Served)) *State {
	return &State{service: service, set: set,
		classes: map[string]*gatewayapi.GatewayClass{}, gateways: map[Name]*followed{}, routes: map[RouteKey]*gatewayapi.Route{},
		grants: map[string]map[string]*gatewayapi.ReferenceGrant{}, labels: map[string]map[string]string{},
		routesOf: links[Name, RouteKey]{}, usersOf: links[vip.ServiceKey, Name]{}, servedBy: links[vip.ServiceKey, vip.ServiceKey]{},
		dirty: map[Name]struct{}{}, unsaid: map[statuswriter.DocumentKey]struct{}{}}
}

// links has the sets of a key.
type links[K, V comparable] map[K]map[V]struct{}

func (l links[K, V]) add(k K, v V) {
	if l[k] == nil {
		l[k] = map[V]struct{}{}
	}
	l[k][v] = struct{}{}
}

func (l links[K, V]) remove(k K, v V) {
	if delete(l[k], v); len(l[k]) == 0 {
		delete(l, k)
	}
}

// The resources of the Gateway API, except for routes.
const (
	ResourceClasses  = "gatewayclasses"
	ResourceGateways = "gateways"
	ResourceGrants   = "referencegrants"
)

// ResourceOf has the resources of routes by their kind.
var ResourceOf = map[string]string{gatewayapi.TCPRoute: "tcproutes", gatewayapi.UDPRoute: "udproutes"}

// PutClass stores a GatewayClass; nil: it is gone.
func (g *State) PutClass(name string, class *gatewayapi.GatewayClass) {
	if g.classes[name] = class; class == nil {
		delete(g.classes, name)
	}
	g.unsaid[documentKey(ResourceClasses, "", name)] = struct{}{}
	for at, gw := range g.gateways {
		if gw.object != nil && gw.object.Spec.GatewayClassName == name {
			g.dirty[at] = struct{}{}
		}
	}
}

// PutNamespace stores the labels of a namespace, which concern the Gateways that routes there name.
func (g *State) PutNamespace(name string, labels map[string]string, there bool) {
	if was, known := g.labels[name]; known == there && maps.Equal(was, labels) {
		return
	}
	if g.labels[name] = labels; !there {
		delete(g.labels, name)
	}
	for key, route := range g.routes {
		if key.Namespace == name {
			g.dirtyParents(route)
		}
	}
}

// PutGateway stores a Gateway; nil: it is gone.
func (g *State) PutGateway(name Name, object *gatewayapi.Gateway) {
	gw := g.gateways[name]
	if gw == nil {
		gw = &followed{}
		g.gateways[name] = gw
	}
	gw.object = object
	g.dirty[name] = struct{}{}
}

// PutRoute stores a route; nil: it is gone. A status that was written, as most are by this source, changes no Plan.
func (g *State) PutRoute(key RouteKey, route *gatewayapi.Route) {
	was := g.routes[key]
	if was != nil && route != nil && was.UID == route.UID && was.Generation == route.Generation && route.Generation > 0 {
		g.routes[key] = route
		g.unsaid[documentKey(ResourceOf[key.Kind], key.Namespace, key.Name)] = struct{}{}
		return
	}
	if was != nil {
		g.dirtyParents(was)
		for _, ref := range was.Spec.ParentRefs {
			if name, is := IsParent(&ref, was.Namespace); is {
				g.routesOf.remove(name, key)
			}
		}
	}
	g.unsaid[documentKey(ResourceOf[key.Kind], key.Namespace, key.Name)] = struct{}{}
	if route == nil {
		delete(g.routes, key)
		return
	}
	g.routes[key] = route
	g.dirtyParents(route)
	for _, ref := range route.Spec.ParentRefs {
		if name, is := IsParent(&ref, route.Namespace); is {
			g.routesOf.add(name, key)
		}
	}
}

// dirtyParents marks the Gateways that a route names.
func (g *State) dirtyParents(route *gatewayapi.Route) {
	for _, ref := range route.Spec.ParentRefs {
		if name, is := IsParent(&ref, route.Namespace); is {
			g.dirty[name] = struct{}{}
		}
	}
}

// PutGrant stores a ReferenceGrant, which concerns the Gateways with a backend in its namespace.
func (g *State) PutGrant(name Name, grant *gatewayapi.ReferenceGrant) {
	if g.grants[name.Namespace] == nil {
		g.grants[name.Namespace] = map[string]*gatewayapi.ReferenceGrant{}
	}
	if g.grants[name.Namespace][name.Name] = grant; grant == nil {
		delete(g.grants[name.Namespace], name.Name)
	}
	for key := range g.usersOf {
		if key.Namespace == name.Namespace {
			g.Touch(key)
		}
	}
}

// Touch marks the Gateways with a route to a Service that has changed.
func (g *State) Touch(key vip.ServiceKey) {
	for name := range g.usersOf[key] {
		g.dirty[name] = struct{}{}
	}
}

// Plan makes the Plans of the Gateways that may have changed.
func (g *State) Plan() {
	view := View{
		Service: g.service,
		Grants: func(namespace string) []*gatewayapi.ReferenceGrant {
			return slices.Collect(maps.Values(g.grants[namespace]))
		},
		Namespace: func(name string) (map[string]string, bool) {
			labels, known := g.labels[name]
			return labels, known
		},
	}
	for name := range g.dirty {
		if gw := g.gateways[name]; gw != nil {
			g.planOne(name, gw, view)
		}
	}
	clear(g.dirty)
}

// ServedBy returns the services of listeners with backends of a Service. It must not be changed.
func (g *State) ServedBy(key vip.ServiceKey) map[vip.ServiceKey]struct{} { return g.servedBy[key] }

// planOne makes the Plan of one Gateway.
func (g *State) planOne(name Name, gw *followed, view View) {
	former, users := gw.plan, gw.uses
	gw.plan, gw.uses = nil, nil
	if gw.object != nil && g.ours(gw.object, former != nil) {
		var routes []*gatewayapi.Route
		for key := range g.routesOf[name] {
			route := g.routes[key]
			routes = append(routes, route)
			gw.uses = append(gw.uses, servicesOf(route)...)
		}
		gw.plan = Make(gw.object, routes, view)
	}
	for _, key := range users {
		g.usersOf.remove(key, name)
	}
	for _, key := range gw.uses {
		g.usersOf.add(key, name)
	}
	g.define(name, former, gw.plan)
	g.unsaid[documentKey(ResourceGateways, name.Namespace, name.Name)] = struct{}{}
	for key, parents := range former.routes() {
		if !reflect.DeepEqual(parents, gw.plan.routes()[key]) {
			g.unsaid[documentKey(ResourceOf[key.Kind], key.Namespace, key.Name)] = struct{}{}
		}
	}
	for key := range gw.plan.routes() {
		if _, had := former.routes()[key]; !had {
			g.unsaid[documentKey(ResourceOf[key.Kind], key.Namespace, key.Name)] = struct{}{}
		}
	}
	if gw.object == nil {
		delete(g.gateways, name)
	}
}

// define replaces the definitions of a Gateway's services; nil: it has none.
func (g *State) define(name Name, former, now *Plan) {
	gone := map[vip.ServiceKey]bool{}
	for l, key := range former.served() {
		gone[key] = true
		for _, b := range l.Backends {
			g.servedBy.remove(b.Service, key)
		}
	}
	for l, key := range now.served() {
		delete(gone, key)
		for _, b := range l.Backends {
			g.servedBy.add(b.Service, key)
		}
		g.set(key, &Served{Gateway: name, Listener: l.Name, Service: l.Service, Backends: l.Backends, Refused: now.refused()})
	}
	for key := range gone {
		g.set(key, nil)
	}
}

// ours reports whether a Gateway's class is ours, and accepted unless the Gateway is served already.
func (g *State) ours(gw *gatewayapi.Gateway, served bool) bool {
	class := g.classes[gw.Spec.GatewayClassName]
	return class != nil && class.Spec.ControllerName == Controller && (served || AcceptsClass(class).Status == metav1.ConditionTrue)
}

// servicesOf returns the Services that a route names.
func servicesOf(route *gatewayapi.Route) (out []vip.ServiceKey) {
	for i := range route.Spec.Rules {
		for _, ref := range route.Spec.Rules[i].BackendRefs {
			key := vip.ServiceKey{Namespace: route.Namespace, Name: ref.Name}
			if ref.Namespace != nil {
				key.Namespace = *ref.Namespace
			}
			out = append(out, key)
		}
	}
	return out
}

// Reword marks a Gateway whose services have other definitions or problems than its listeners say.
func (g *State) Reword(name Name) {
	g.unsaid[documentKey(ResourceGateways, name.Namespace, name.Name)] = struct{}{}
}

// About describes a listener's service: its place for messages, the problems of its definition, and whether it keeps former
// settings because of them.
type About func(vip.ServiceKey) (place string, problems []vip.Problem, former bool)

// Tell passes the objects whose status may have changed to the Writer. API returns the version in which a resource is followed.
func (g *State) Tell(to *statuswriter.Objects, api func(resource string) schema.GroupVersion, about About) {
	if !g.told { // an earlier run may have left some
		g.told = true
		for key := range to.Documents.All() {
			g.unsaid[key] = struct{}{}
		}
	}
	for key := range g.unsaid {
		if d, there := g.document(key, about); there {
			d.API = api(key.Resource)
			to.Documents.Set(d)
		} else {
			to.Documents.Delete(key)
		}
	}
	clear(g.unsaid)
}

// document returns what the Writer needs to write the status of an object; false: it is gone or not ours.
func (g *State) document(key statuswriter.DocumentKey, about About) (out statuswriter.Document, there bool) {
	set := func(o metav1.Object, status func(time.Time, statuswriter.Granted) (before, now any), services ...vip.ServiceKey) (statuswriter.Document, bool) {
		return statuswriter.Document{Key: key, Version: o.GetResourceVersion(), UID: o.GetUID(), Services: services, Status: status}, true
	}
	name := Name{Namespace: key.Namespace, Name: key.Name}
	switch key.Resource {
	case ResourceClasses:
		class := g.classes[key.Name]
		if class == nil || class.Spec.ControllerName != Controller {
			return out, false
		}
		return set(class, func(now time.Time, _ statuswriter.Granted) (any, any) {
			return class.Status, ClassStatus(class, now)
		})
	case ResourceGateways:
		gw := g.gateways[name]
		if gw == nil || gw.plan == nil {
			return out, false
		}
		plan, places, known := gw.plan, map[vip.ServiceKey]string{}, map[vip.ServiceKey]Grant{}
		var services []vip.ServiceKey
		for _, key := range plan.served() {
			services = append(services, key)
			var g Grant
			places[key], g.Problems, g.Former = about(key)
			known[key] = g
		}
		return set(gw.object, func(now time.Time, granted statuswriter.Granted) (any, any) {
			return plan.Gateway.Status, plan.Status(now, func(key vip.ServiceKey) Grant {
				out := known[key]
				if a, is := granted(key); is && a.Asked.Origin == places[key] { // else a Service or another source has the name
					out.Allocation = &a
				}
				return out
			})
		}, services...)
	default:
		kind := gatewayapi.TCPRoute
		if key.Resource == ResourceOf[gatewayapi.UDPRoute] {
			kind = gatewayapi.UDPRoute
		}
		of := RouteKey{Kind: kind, Namespace: key.Namespace, Name: key.Name}
		route := g.routes[of]
		if route == nil {
			return out, false
		}
		var parents []gatewayapi.RouteParentStatus
		for _, ref := range route.Spec.ParentRefs {
			if name, is := IsParent(&ref, route.Namespace); is {
				if gw := g.gateways[name]; gw != nil && gw.plan != nil {
					parents = append(parents, gw.plan.Routes[of]...)
				}
			}
		}
		return set(route, func(now time.Time, _ statuswriter.Granted) (any, any) {
			return route.Status, RouteStatus(route, parents, now)
		})
	}
}

func documentKey(resource, namespace, name string) statuswriter.DocumentKey {
	return statuswriter.DocumentKey{Resource: resource, Namespace: namespace, Name: name}
}
