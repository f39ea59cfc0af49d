package kubernetes

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironvip/ironvip/vip"
)

// kind is a type of objects that the source follows, with its handlers.
type kind struct {
	gv       schema.GroupVersion
	older    []schema.GroupVersion // versions to follow if the server lacks gv, the newest first
	resource string
	labels   string // only objects with matching labels
	required bool   // nothing is published before they are read
	awaited  bool   // not required, but nothing is published before they are read, are refused, or fail for some time
	whole    bool   // objects that are missing from a new list cause a full list
	// ofGateways says that the kind is only for Gateways. A server without it is in order.
	ofGateways bool
	missing    string         // the effect of a failure, for a kind that is not required
	one        object         // an object of this type
	list       runtime.Object // a list of them
	put        func(r *run, o object)
	gone       func(r *run, name types.NamespacedName)
}

// streams returns the streams to follow.
func (o *Options) streams() []*stream {
	services := &kind{gv: corev1.SchemeGroupVersion, resource: "services", labels: o.Selector, required: true, whole: true,
		one: &corev1.Service{}, list: &corev1.ServiceList{},
		put: func(r *run, o object) { r.putService(o.(*corev1.Service)) }, gone: (*run).dropService}
	endpoints := &kind{gv: discoveryv1.SchemeGroupVersion, resource: "endpointslices", required: true,
		labels: discoveryv1.LabelServiceName + ",!" + corev1.IsHeadlessService,
		one:    &discoveryv1.EndpointSlice{}, list: &discoveryv1.EndpointSliceList{},
		put: func(r *run, o object) { r.putSlice(o.(*discoveryv1.EndpointSlice)) }, gone: (*run).dropSlice}
	nodes := &kind{gv: corev1.SchemeGroupVersion, resource: "nodes", required: o.needsNodes(), awaited: o.Node != "",
		missing: "the weights of nodes and the ranges of pods are not known, and pools that overlap them are not noticed" + o.unplaced(),
		one:     &corev1.Node{}, list: &corev1.NodeList{},
		put: func(r *run, o object) { r.putNode(o.(*corev1.Node)) }, gone: (*run).dropNode}
	cidrs := &kind{gv: networkingv1.SchemeGroupVersion, resource: "servicecidrs",
		missing: "the ranges of cluster IPs are not known, and pools that overlap them are not noticed",
		one:     &networkingv1.ServiceCIDR{}, list: &networkingv1.ServiceCIDRList{},
		put: func(r *run, o object) { r.putCIDR(o.(*networkingv1.ServiceCIDR)) }, gone: (*run).dropCIDR}

	namespaces := slices.Compact(slices.Sorted(slices.Values(o.Namespaces)))
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	var out []*stream
	add := func(k *kind, namespace string) {
		out = append(out, &stream{kind: k, namespace: namespace, api: k.gv, known: map[types.NamespacedName]string{}})
	}
	for _, namespace := range namespaces {
		add(services, namespace)
		add(endpoints, namespace)
	}
	if o.GatewayAPI {
		cluster, namespaced := gatewayKinds()
		for _, k := range cluster {
			add(k, "")
		}
		for _, namespace := range namespaces {
			for _, k := range namespaced {
				add(k, namespace)
			}
		}
	}
	if o.Ranges != nil || nodes.required || nodes.awaited {
		add(nodes, "")
	}
	if o.Ranges != nil && !o.AdoptClusterIPs {
		add(cidrs, "")
	}
	return out
}

// unplaced returns another effect of missing Nodes.
func (o *Options) unplaced() string {
	if o.Node == "" {
		return ""
	}
	return "; nor is whether this host is one of the nodes, so traffic policies Local are taken for Cluster unless that was known before"
}

// check returns an error if an answer is not of the type that was asked for: a server, or a proxy in
// front of it, may send anything.
func check(sent, asked runtime.Object) error {
	if reflect.TypeOf(sent) != reflect.TypeOf(asked) {
		return fmt.Errorf("the server sent a %T, and not a %T", sent, asked)
	}
	return nil
}

func keyOf(name types.NamespacedName) vip.ServiceKey {
	return vip.ServiceKey{Namespace: name.Namespace, Name: name.Name}
}

// putService stores a Service. For this method and all below, the caller holds mu.
func (r *run) putService(service *corev1.Service) {
	delete(service.Annotations, corev1.LastAppliedConfigAnnotation)
	key := keyOf(nameOf(service))
	e := r.entry(key)
	e.service = service
	r.s.objects.Store(service)
	r.dirty[key] = struct{}{}
	r.touch(e)
}

func (r *run) dropService(name types.NamespacedName) {
	key := keyOf(name)
	if e := r.entries[key]; e != nil {
		e.service = nil
		r.s.objects.Delete(key)
		r.dirty[key] = struct{}{}
		r.touch(e)
	}
}

// putSlice stores an EndpointSlice. It can arrive before its Service, and can later belong to
// another Service.
func (r *run) putSlice(slice *discoveryv1.EndpointSlice) {
	name := nameOf(slice)
	key := vip.ServiceKey{Namespace: name.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
	if was, there := r.sliceOf[name]; there && was != key {
		r.dropSlice(name)
	}
	r.trim(slice)
	r.sliceOf[name] = key
	e := r.entry(key)
	r.count(key, e.slices[name.Name], -1)
	e.slices[name.Name] = slice
	r.count(key, slice, 1)
	r.dirty[key] = struct{}{}
}

func (r *run) dropSlice(name types.NamespacedName) {
	key, there := r.sliceOf[name]
	if !there {
		return
	}
	delete(r.sliceOf, name)
	e := r.entries[key]
	r.count(key, e.slices[name.Name], -1)
	delete(e.slices, name.Name)
	r.dirty[key] = struct{}{}
}

// trim removes unused fields and makes endpoints share equal values. 50,000 endpoints have about 50
// nodes and 3 zones.
func (r *run) trim(slice *discoveryv1.EndpointSlice) {
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: slice.Labels[discoveryv1.LabelServiceName]}
	slice.Annotations, slice.OwnerReferences, slice.GenerateName = nil, nil, ""
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		e.TargetRef, e.Hostname, e.DeprecatedTopology = nil, nil, nil
		e.NodeName, e.Zone = share(r.words, e.NodeName), share(r.words, e.Zone)
		c := &e.Conditions
		c.Ready, c.Serving, c.Terminating = share(r.flags, c.Ready), share(r.flags, c.Serving), share(r.flags, c.Terminating)
	}
}

// share returns the first pointer to an equal value; nil stays nil. The shared value must not be
// changed.
func share[T comparable](first map[T]*T, p *T) *T {
	if p == nil {
		return nil
	}
	if same, there := first[*p]; there {
		return same
	}
	first[*p] = p
	return p
}

func (r *run) putCIDR(cidr *networkingv1.ServiceCIDR) {
	r.cidrs.set(cidr.Name, cidr.Spec.CIDRs)
}

func (r *run) dropCIDR(name types.NamespacedName) { r.cidrs.set(name.Name, nil) }

// ranges are the ranges of Nodes or ServiceCIDRs. A change costs O(ranges of one owner).
type ranges struct {
	of      map[string][]netip.Prefix // by owner
	changed bool                      // since the last read
}

func newRanges() ranges { return ranges{of: map[string][]netip.Prefix{}, changed: true} }

// read updates a list of all ranges. It costs O(owners) if one has changed.
func (r *ranges) read(into *[]netip.Prefix) {
	if r.changed {
		all := slices.Concat(slices.Collect(maps.Values(r.of))...)
		slices.SortFunc(all, netip.Prefix.Compare)
		*into, r.changed = slices.Compact(all), false
	}
}

// set sets the ranges of one owner. It ignores invalid ranges, because the API server refuses
// those.
func (r *ranges) set(name string, cidrs []string) {
	var now []netip.Prefix
	for _, text := range cidrs {
		if p, err := netip.ParsePrefix(text); err == nil {
			now = append(now, p.Masked())
		}
	}
	if slices.Equal(now, r.of[name]) {
		return
	}
	r.changed = true
	if r.of[name] = now; now == nil {
		delete(r.of, name)
	}
}
