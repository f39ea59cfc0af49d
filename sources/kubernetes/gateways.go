package kubernetes

import (
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironvip/ironvip/internal/kubeclient/gatewayapi"
	"github.com/ironvip/ironvip/sources/kubernetes/gateway"
	"github.com/ironvip/ironvip/vip"
)

// gatewayKinds returns the kinds that the source follows for the Gateway API. Of each, it follows the newest version that the
// server has. Namespaces are those of routes, whose labels listeners may select.
func gatewayKinds() (cluster, namespaced []*kind) {
	const missing = "Gateways stay as they are, and none is served after a restart"
	of := func(resource string, one object, versions ...schema.GroupVersion) *kind {
		return &kind{gv: versions[0], older: versions[1:], resource: resource, awaited: true, ofGateways: true, missing: missing, one: one}
	}
	classes := of(gateway.ResourceClasses, &gatewayapi.GatewayClass{}, gatewayapi.V1)
	classes.whole = true
	classes.list = &gatewayapi.GatewayClassList{}
	classes.put = func(r *run, o object) { r.gateways.PutClass(o.GetName(), o.(*gatewayapi.GatewayClass)) }
	classes.gone = func(r *run, name types.NamespacedName) { r.gateways.PutClass(name.Name, nil) }

	namespaces := of("namespaces", &corev1.Namespace{}, corev1.SchemeGroupVersion)
	namespaces.list = &corev1.NamespaceList{}
	namespaces.put = func(r *run, o object) { r.gateways.PutNamespace(o.GetName(), o.GetLabels(), true) }
	namespaces.gone = func(r *run, name types.NamespacedName) { r.gateways.PutNamespace(name.Name, nil, false) }

	gateways := of(gateway.ResourceGateways, &gatewayapi.Gateway{}, gatewayapi.V1)
	gateways.whole = true
	gateways.list = &gatewayapi.GatewayList{}
	gateways.put = func(r *run, o object) { r.gateways.PutGateway(gateway.Name(nameOf(o)), o.(*gatewayapi.Gateway)) }
	gateways.gone = func(r *run, name types.NamespacedName) { r.gateways.PutGateway(gateway.Name(name), nil) }

	grants := of(gateway.ResourceGrants, &gatewayapi.ReferenceGrant{}, gatewayapi.V1, gatewayapi.V1Beta1)
	grants.list = &gatewayapi.ReferenceGrantList{}
	grants.put = func(r *run, o object) { r.gateways.PutGrant(gateway.Name(nameOf(o)), o.(*gatewayapi.ReferenceGrant)) }
	grants.gone = func(r *run, name types.NamespacedName) { r.gateways.PutGrant(gateway.Name(name), nil) }

	namespaced = []*kind{gateways, grants}
	for _, name := range []string{gatewayapi.TCPRoute, gatewayapi.UDPRoute} {
		routes := of(gateway.ResourceOf[name], &gatewayapi.Route{}, gatewayapi.V1, gatewayapi.V1Alpha2)
		routes.list = &gatewayapi.RouteList{}
		routes.put = func(r *run, o object) {
			route := o.(*gatewayapi.Route)
			route.Kind = name // decoding leaves it out
			r.gateways.PutRoute(gateway.KeyOfRoute(route), route)
		}
		routes.gone = func(r *run, of types.NamespacedName) {
			r.gateways.PutRoute(gateway.RouteKey{Kind: name, Namespace: of.Namespace, Name: of.Name}, nil)
		}
		namespaced = append(namespaced, routes)
	}
	return []*kind{classes, namespaces}, namespaced
}

// newGateways returns a State whose listeners' services are entries of the run.
func (r *run) newGateways() *gateway.State {
	return gateway.NewState(func(key vip.ServiceKey) *corev1.Service {
		if e := r.entries[key]; e != nil {
			return e.service
		}
		return nil
	}, func(key vip.ServiceKey, listener *gateway.Served) {
		if e := r.entry(key); !reflect.DeepEqual(e.listener, listener) { // most changes of a Gateway are our own, of its status
			e.listener = listener
			r.dirty[key] = struct{}{}
		}
	})
}

// touch marks the Gateways that a Service concerns: with a route to it, or with a listener whose service has its name. For this
// method and those below, the caller holds mu.
func (r *run) touch(e *followed) {
	r.gateways.Touch(e.key)
	if e.listener != nil {
		r.gateways.Reword(e.listener.Gateway)
	}
}

// plan makes the Plans of Gateways. Before all kinds have been read it does nothing: half of the objects would result in other
// services and wrong conditions.
func (r *run) plan() {
	r.planned = r.planned || !slices.ContainsFunc(r.streams, func(s *stream) bool { return s.ofGateways && !s.listed && !s.absent() })
	if r.planned {
		r.gateways.Plan()
	}
}

// tell passes what has changed about Gateways to the Writer.
func (r *run) tell() {
	if !r.planned {
		return
	}
	r.gateways.Tell(r.s.objects, func(resource string) schema.GroupVersion {
		for _, s := range r.streams {
			if s.ofGateways && s.resource == resource && s.listed {
				return s.api
			}
		}
		return gatewayapi.V1
	}, func(key vip.ServiceKey) (place string, problems []vip.Problem, former bool) {
		e := r.entries[key]
		if e == nil || e.listener == nil || e.definition(r.o) != e.listener.Service {
			return "", []vip.Problem{{Code: vip.CodeNameTaken, Message: "a Service has the name of the listener's service, " + key.Name}}, false
		}
		settings := r.s.settings[key]
		return r.o.placeOfListener(e.listener), slices.Clone(e.problems), settings != nil && settings != e.listener.Service
	})
}
