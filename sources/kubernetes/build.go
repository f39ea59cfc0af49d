package kubernetes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// input is what a service is built from. Nothing of it is written to.
type input struct {
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice // those of the service, in any order
	nodes   nodeSet                      // looked at only where node ports are the backends
	outside bool                         // the host is none of the cluster's nodes
	last    *corev1.Service              // settings of what was last built of this service; nil before
}

// built is what an input makes.
type built struct {
	service  vip.Service
	use      bool            // the service may be used
	settings *corev1.Service // what it was made with: the last of the next input
	problems []vip.Problem
}

// selects reports whether a Service is one of ours. The label selector is left
// to whoever asks the server.
//
// A Service of type LoadBalancer is no longer ours once it is being deleted: it
// stays in the API until its VIP is withdrawn. A cluster IP that is mirrored
// stays for as long as the object does, as kube-proxy has it.
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

// labelServiceProxyName is on Services that another proxy than the cluster's own
// is to serve.
const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// build makes a service of a Service. It is pure: the same input makes the same
// service on every host, whatever the order of slices, in O(endpoints).
//
// With settings that are no good it takes the former ones, if there are any:
// what is wrong with how a Service is described must not keep it from following
// its endpoints. An endpoint that can't be used is left out, and told of.
func (o *Options) build(in input) built {
	if !o.selects(in.service) {
		return built{}
	}
	out, serves := o.buildAs(in.service, in)
	if former := in.last; !serves && former != nil && former != in.service && former.UID == in.service.UID {
		if again, served := o.buildAs(former, in); served || again.use && !out.use {
			again.problems = out.problems
			for i := range again.problems {
				p := &again.problems[i]
				p.Hint = strings.TrimPrefix(p.Hint+"; the service keeps its former settings until then", "; ")
			}
			out = again
		}
	}
	key := vip.ServiceKey{Namespace: in.service.Namespace, Name: in.service.Name}
	for i := range out.problems {
		out.problems[i].Place, out.problems[i].Service = o.place(key), key.String()
	}
	return out
}

// place says where a Service is found.
func (o *Options) place(key vip.ServiceKey) string {
	return fmt.Sprintf("service %s/%s in %s", key.Namespace, key.Name, cmp.Or(o.Name, Type))
}

// buildAs builds with the settings of s, and reports whether the outcome serves:
// it may be used, and has a backend if there are endpoints.
func (o *Options) buildAs(s *corev1.Service, in input) (out built, serves bool) {
	b := builder{o: o, s: s, outside: in.outside}
	b.read()
	var servers []server
	groups := b.groups(in.slices)
	if b.nodePorts() {
		servers = b.nodeServers(in.nodes, groups)
	} else {
		servers = b.endpointServers(groups)
	}
	offered := len(servers) > 0
	out.service = b.fit(b.limit(servers))
	out.use, out.problems = !b.failed, b.problems
	if out.use {
		out.service.Assigned = o.AdoptClusterIPs
		out.settings = s
	}
	return out, out.use && (len(out.service.Backends) > 0 || !offered)
}

// builder collects a service as it is written, and what is wrong with it.
type builder struct {
	o           *Options
	s           *corev1.Service
	outside     bool // as in input
	draft       spec.Service
	families    []vip.Family // of the VIPs; empty is not stated
	vipFields   []string     // where each of the draft's VIPs is from
	rangeFields []string     // and each of its source ranges
	problems    []vip.Problem
	failed      bool // the service can't be used
}

// bad notes that a field of the Service can't be used.
func (b *builder) bad(field string, err error) {
	b.problems, b.failed = append(b.problems, vip.FieldProblem(field, err)), true
}

// warn notes something that the service can do with.
func (b *builder) warn(code, field, hint, format string, args ...any) {
	b.problems = append(b.problems, vip.Problem{Code: code, Field: field, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// nodePorts reports whether the backends are the nodes. For mirrored cluster IPs
// they can't be: this host then listens on the same node ports.
func (b *builder) nodePorts() bool {
	return b.o.Backends == BackendsNodePorts && !b.o.AdoptClusterIPs
}

// maxLeftOut bounds the problems of single backends of one service.
const maxLeftOut = 5

// fit builds the service with those of the backends that it can use.
func (b *builder) fit(servers []server) vip.Service {
	key := vip.ServiceKey{Namespace: b.s.Namespace, Name: b.s.Name}
	leftOut := 0
	for {
		b.draft.Backends = make([]spec.Backend, len(servers))
		for i := range servers {
			b.draft.Backends[i] = servers[i].Backend
		}
		out, problems := b.draft.Build(cmp.Or(b.o.Name, Type), b.o.place(key))
		var whole []vip.Problem
		bad := map[int]bool{}
		for _, p := range problems {
			at, of := backendOf(p.Field)
			if !of {
				whole = append(whole, p)
				continue
			}
			if bad[at] {
				continue
			}
			bad[at] = true
			if leftOut++; leftOut <= maxLeftOut {
				b.warn(vip.CodeInvalid, servers[at].field(), p.Hint, "is left out: %s", p.Message)
			}
		}
		if len(bad) == 0 {
			if leftOut > maxLeftOut {
				b.warn(vip.CodeInvalid, "endpoints", "", "%d more are left out", leftOut-maxLeftOut)
			}
			for _, p := range whole {
				b.bad(b.fieldOf(p.Field), p)
			}
			return out
		}
		kept := make([]server, 0, len(servers)-len(bad))
		for i := range servers {
			if !bad[i] {
				kept = append(kept, servers[i])
			}
		}
		servers = kept
	}
}
