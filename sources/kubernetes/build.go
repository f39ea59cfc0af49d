package kubernetes

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/ironvip/ironvip/sources/draft"
	"github.com/ironvip/ironvip/sources/kubernetes/gateway"
	"github.com/ironvip/ironvip/sources/kubernetes/statuswriter"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// input is the input of a build. It must not be changed.
type input struct {
	service  *corev1.Service
	slices   []*discoveryv1.EndpointSlice // of the service, in any order
	nodes    nodeSet                      // only their weights count unless node ports are the backends
	listener *gateway.Served              // of a Gateway, whose service has backends instead of slices; nil: none
	backends []backend
	outside  bool            // this host is not a node of the cluster
	last     *corev1.Service // the settings of the last build; nil before the first
}

// built is the result of a build.
type built struct {
	service  vip.Service
	use      bool            // the service is valid and selected
	settings *corev1.Service // used for this build; the next input's last
	problems []vip.Problem
}

// selects reports whether the source takes a Service. The label selector is not checked here,
// because the request contains it.
//
// A Service of type LoadBalancer is no longer selected once its deletion has begun. It stays in the
// API until its VIP is withdrawn. An adopted cluster IP stays until the object is gone, as with
// kube-proxy.
func (o *Options) selects(s *corev1.Service) bool {
	if s.Spec.Type == corev1.ServiceTypeExternalName || s.Spec.ClusterIP == corev1.ClusterIPNone {
		return false
	}
	if len(o.Namespaces) > 0 && !slices.Contains(o.Namespaces, s.Namespace) {
		return false
	}
	if o.AdoptClusterIPs {
		_, headless := s.Labels[corev1.IsHeadlessService]
		_, others := s.Labels[labelServiceProxyName]
		return s.Spec.ClusterIP != "" && !headless && !others
	}
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.DeletionTimestamp != nil {
		return false
	}
	if s.Spec.LoadBalancerClass == nil {
		return o.Classless
	}
	return *s.Spec.LoadBalancerClass == cmp.Or(o.LoadBalancerClass, DefaultLoadBalancerClass)
}

// labelServiceProxyName is the label of Services for a proxy other than the cluster's own.
const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// build builds a service from a Service. It is pure: the same input results in the same service on
// every host, whatever the order of slices. It costs O(endpoints).
//
// If the settings are invalid, build uses the last valid ones, if any. Thus a mistake in a Service
// does not prevent the service from following its endpoints. An endpoint that can't be used is left
// out and becomes a problem.
func (o *Options) build(in input) built {
	if in.listener == nil && !o.selects(in.service) {
		return built{}
	}
	out, serves := o.buildAs(in.service, in)
	if former := in.last; !serves && former != nil && former != in.service && former.UID == in.service.UID {
		if again, served := o.buildAs(former, in); served || again.use && !out.use {
			again.problems = out.problems
			draft.KeepsFormer(again.problems)
			out = again
		}
	}
	key := keyOf(nameOf(in.service))
	for i := range out.problems {
		out.problems[i].Place, out.problems[i].Service = o.placeIn(&in), strict.Name(o.prefix().Name(key).String())
	}
	return out
}

// prefix begins the namespaces of the Services in ironvip.
func (o *Options) prefix() statuswriter.Prefix { return statuswriter.Prefix(o.NamespacePrefix) }

// place returns the place of a Service for messages.
func (o *Options) place(key vip.ServiceKey) string {
	return fmt.Sprintf("service %s/%s in %s", strict.Name(key.Namespace), strict.Name(key.Name), cmp.Or(o.Name, Type))
}

// placeIn returns the place of the definition for messages.
func (o *Options) placeIn(in *input) string {
	if in.listener != nil {
		return o.placeOfListener(in.listener)
	}
	return o.place(keyOf(nameOf(in.service)))
}

// buildAs builds with the settings of s. It reports whether the result serves: it is valid, and has
// a backend if there are endpoints.
func (o *Options) buildAs(s *corev1.Service, in input) (out built, serves bool) {
	b := builder{o: o, s: s, outside: in.outside, place: o.placeIn(&in)}
	b.read()
	if in.listener != nil && in.listener.Refused != "" && s == in.service { // not the former settings
		b.bad("spec", errors.New(in.listener.Refused))
	}
	var servers []server
	switch {
	case in.listener != nil:
		servers = b.listenerServers(in.nodes, in.backends)
	case b.nodePorts():
		servers = b.nodeServers(in.nodes, b.groups(in.slices))
	default:
		groups := b.groups(in.slices)
		servers = b.endpointServers(in.nodes, groups, b.targets(groups))
	}
	offered := len(servers) > 0
	b.divide(in.backends)
	out.service = b.fit(b.limit(servers))
	out.use, out.problems = !b.failed, b.problems
	if out.use {
		out.service.Assigned, out.service.Preferred = o.AdoptClusterIPs, b.preferred
		out.settings = s
	}
	return out, out.use && (len(out.service.Backends) > 0 || !offered)
}

// builder collects the definition of a service and its problems.
type builder struct {
	o           *Options
	s           *corev1.Service
	outside     bool   // as in input
	place       string // for messages
	draft       spec.Service
	families    []vip.Family // of the VIPs; empty: not stated
	preferred   []netip.Addr // as in vip.Service
	vipFields   []string     // the field that each of the draft's VIPs comes from
	rangeFields []string     // the field that each of its source ranges comes from
	problems    []vip.Problem
	failed      bool // the service is invalid
}

// bad records that a field of the Service is invalid.
func (b *builder) bad(field string, err error) {
	b.problems, b.failed = append(b.problems, vip.FieldProblem(field, err)), true
}

// warn records a problem that does not make the service invalid.
func (b *builder) warn(code, field, hint, format string, args ...any) {
	b.problems = append(b.problems, vip.Problem{Code: code, Field: field, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// nodePorts reports whether the backends are the nodes. Adopted cluster IPs never use the nodes,
// because this host then listens on the same node ports.
func (b *builder) nodePorts() bool {
	return b.o.Backends == BackendsNodePorts && !b.o.AdoptClusterIPs
}

// fit builds the service with the usable backends.
func (b *builder) fit(servers []server) vip.Service {
	b.draft.Backends = make([]spec.Backend, len(servers))
	for i := range servers {
		b.draft.Backends[i] = servers[i].Backend
		if len(b.draft.Groups) > 0 {
			b.draft.Backends[i].Group = servers[i].group
		}
	}
	out, problems, more := draft.Fit(&b.draft, func() (vip.Service, []vip.Problem) {
		return b.draft.Build(cmp.Or(b.o.Name, Type), b.place)
	}, func(i int, _ string, p vip.Problem) {
		b.warn(vip.CodeInvalid, servers[i].field(), p.Hint, "is left out: %s", p.Message)
	})
	if more > 0 {
		b.warn(vip.CodeInvalid, "endpoints", "", "%d more are left out", more)
	}
	for _, p := range problems {
		b.bad(b.fieldOf(p.Field), p)
	}
	return out
}
