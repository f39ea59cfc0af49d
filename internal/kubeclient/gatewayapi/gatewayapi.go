// Package gatewayapi has the objects of the Kubernetes Gateway API with the fields that ironvip reads and writes.
//
// The cluster's CustomResourceDefinitions validate the objects. All served versions of a kind have the same fields here, so
// one type stands for all of them.
package gatewayapi

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of all kinds here.
const Group = "gateway.networking.k8s.io"

// The served versions, the newest first.
var (
	V1       = schema.GroupVersion{Group: Group, Version: "v1"}
	V1Beta1  = schema.GroupVersion{Group: Group, Version: "v1beta1"}
	V1Alpha2 = schema.GroupVersion{Group: Group, Version: "v1alpha2"}
)

// Versions are all versions, the newest first.
var Versions = []schema.GroupVersion{V1, V1Beta1, V1Alpha2}

// The kinds of routes.
const (
	TCPRoute = "TCPRoute"
	UDPRoute = "UDPRoute"
)

// AddToScheme adds the kinds in one version.
func AddToScheme(gv schema.GroupVersion) func(*runtime.Scheme) error {
	return func(s *runtime.Scheme) error {
		s.AddKnownTypes(gv, &GatewayClass{}, &GatewayClassList{}, &Gateway{}, &GatewayList{}, &ReferenceGrant{}, &ReferenceGrantList{})
		for _, kind := range []string{TCPRoute, UDPRoute} {
			s.AddKnownTypeWithName(gv.WithKind(kind), &Route{})
			s.AddKnownTypeWithName(gv.WithKind(kind+"List"), &RouteList{})
		}
		metav1.AddToGroupVersion(s, gv)
		return nil
	}
}

// GatewayClass names the controller of Gateways.
type GatewayClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ControllerName string          `json:"controllerName"`
		ParametersRef  json.RawMessage `json:"parametersRef,omitempty"`
	} `json:"spec"`
	Status ClassStatus `json:"status"`
}

// ClassStatus is the status of a GatewayClass.
type ClassStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Gateway is a set of addresses with listeners.
type Gateway struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              GatewaySpec   `json:"spec"`
	Status            GatewayStatus `json:"status"`
}

// GatewaySpec is the specification of a Gateway.
type GatewaySpec struct {
	GatewayClassName string          `json:"gatewayClassName"`
	Listeners        []Listener      `json:"listeners"`
	Addresses        []Address       `json:"addresses,omitempty"`
	Infrastructure   *Infrastructure `json:"infrastructure,omitempty"`
}

// Infrastructure has metadata and parameters for what is made for a Gateway.
type Infrastructure struct {
	Labels        map[string]string `json:"labels,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
	ParametersRef json.RawMessage   `json:"parametersRef,omitempty"`
}

// Address is an address that is requested or assigned. Type nil is IPAddress.
type Address struct {
	Type  *string `json:"type,omitempty"`
	Value string  `json:"value,omitempty"`
}

// Listener is a port of a Gateway.
type Listener struct {
	Name          string         `json:"name"`
	Port          int32          `json:"port"`
	Protocol      string         `json:"protocol"`
	AllowedRoutes *AllowedRoutes `json:"allowedRoutes,omitempty"`
}

// AllowedRoutes restricts the routes of a listener.
type AllowedRoutes struct {
	Namespaces *RouteNamespaces `json:"namespaces,omitempty"`
	Kinds      []RouteGroupKind `json:"kinds,omitempty"`
}

// RouteNamespaces selects namespaces. From nil is Same.
type RouteNamespaces struct {
	From     *string               `json:"from,omitempty"`
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// RouteGroupKind is a kind of routes. Group nil is Group.
type RouteGroupKind struct {
	Group *string `json:"group,omitempty"`
	Kind  string  `json:"kind"`
}

// GatewayStatus is the status of a Gateway.
type GatewayStatus struct {
	Addresses  []Address          `json:"addresses"`
	Conditions []metav1.Condition `json:"conditions"`
	Listeners  []ListenerStatus   `json:"listeners"`
}

// ListenerStatus is the status of one listener.
type ListenerStatus struct {
	Name           string             `json:"name"`
	SupportedKinds []RouteGroupKind   `json:"supportedKinds"`
	AttachedRoutes int32              `json:"attachedRoutes"`
	Conditions     []metav1.Condition `json:"conditions"`
}

// Route is a TCPRoute or a UDPRoute.
type Route struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              RouteSpec   `json:"spec"`
	Status            RouteStatus `json:"status"`
}

// RouteSpec is the specification of a route.
type RouteSpec struct {
	ParentRefs []ParentRef `json:"parentRefs,omitempty"`
	Rules      []RouteRule `json:"rules"`
}

// RouteRule has the backends of a route.
type RouteRule struct {
	BackendRefs []BackendRef `json:"backendRefs,omitempty"`
}

// ParentRef names a parent of a route. Group and Kind nil are a Gateway; Namespace nil is the route's.
type ParentRef struct {
	Group       *string `json:"group,omitempty"`
	Kind        *string `json:"kind,omitempty"`
	Namespace   *string `json:"namespace,omitempty"`
	Name        string  `json:"name"`
	SectionName *string `json:"sectionName,omitempty"`
	Port        *int32  `json:"port,omitempty"`
}

// BackendRef names a backend of a route. Group and Kind nil are a Service, Weight nil is 1, and Namespace nil is the route's.
type BackendRef struct {
	Group     *string `json:"group,omitempty"`
	Kind      *string `json:"kind,omitempty"`
	Namespace *string `json:"namespace,omitempty"`
	Name      string  `json:"name"`
	Port      *int32  `json:"port,omitempty"`
	Weight    *int32  `json:"weight,omitempty"`
}

// RouteStatus is the status of a route.
type RouteStatus struct {
	Parents []RouteParentStatus `json:"parents"`
}

// RouteParentStatus is the status of a route at one parent, by one controller.
type RouteParentStatus struct {
	ParentRef      ParentRef          `json:"parentRef"`
	ControllerName string             `json:"controllerName"`
	Conditions     []metav1.Condition `json:"conditions"`
}

// ReferenceGrant permits references from other namespaces to objects of its own.
type ReferenceGrant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		From []struct {
			Group     string `json:"group"`
			Kind      string `json:"kind"`
			Namespace string `json:"namespace"`
		} `json:"from"`
		To []struct {
			Group string  `json:"group"`
			Kind  string  `json:"kind"`
			Name  *string `json:"name,omitempty"`
		} `json:"to"`
	} `json:"spec"`
}

// List is a list of objects of one kind.
type List[T any] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []T `json:"items"`
}

// The lists of each kind.
type (
	GatewayClassList   struct{ List[GatewayClass] }
	GatewayList        struct{ List[Gateway] }
	RouteList          struct{ List[Route] }
	ReferenceGrantList struct{ List[ReferenceGrant] }
)

// DeepCopyObject implements runtime.Object, as the methods below do.
func (o *GatewayClass) DeepCopyObject() runtime.Object { return copied(o) }

// DeepCopyObject implements runtime.Object.
func (o *Gateway) DeepCopyObject() runtime.Object { return copied(o) }

// DeepCopyObject implements runtime.Object.
func (o *Route) DeepCopyObject() runtime.Object { return copied(o) }

// DeepCopyObject implements runtime.Object.
func (o *ReferenceGrant) DeepCopyObject() runtime.Object { return copied(o) }

// DeepCopyObject implements runtime.Object.
func (o *GatewayClassList) DeepCopyObject() runtime.Object { return copied(o) }

// DeepCopyObject implements runtime.Object.
func (o *GatewayList) DeepCopyObject() runtime.Object { return copied(o) }

// DeepCopyObject implements runtime.Object.
func (o *RouteList) DeepCopyObject() runtime.Object { return copied(o) }

// DeepCopyObject implements runtime.Object.
func (o *ReferenceGrantList) DeepCopyObject() runtime.Object { return copied(o) }

// copied returns a deep copy. Nothing copies objects while it follows them, so the copy need not be fast.
func copied[T any](o *T) *T {
	out := new(T)
	if text, err := json.Marshal(o); err == nil {
		_ = json.Unmarshal(text, out)
	}
	return out
}
