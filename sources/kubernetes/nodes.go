package kubernetes

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironvip/ironvip/vip"
)

// putNode stores a Node. Its kubelet writes to it every few seconds, so only changes that affect
// services count. The caller holds mu.
func (r *run) putNode(n *corev1.Node) {
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	r.pods.set(n.Name, cidrs)
	now := node{} // zones come from EndpointSlices
	if r.o.needsNodes() {
		now = nodeOf(n)
	}
	problem := now.readWeight(n, r.o.Name)
	if before := r.badNodes[n.Name]; (problem == nil) != (before == nil) || problem != nil && *problem != *before {
		r.reworded = true
	}
	if r.badNodes[n.Name] = problem; problem == nil {
		delete(r.badNodes, n.Name)
	}
	before, there := r.nodes[n.Name]
	switch {
	case now == (node{}) && !r.o.needsNodes(): // the same as none
		r.loseNode(n.Name)
	case !there || before != now:
		r.setNode(n.Name, &now)
	}
}

func (r *run) dropNode(name types.NamespacedName) {
	r.pods.set(name.Name, nil)
	if r.badNodes[name.Name] != nil {
		delete(r.badNodes, name.Name)
		r.reworded = true
	}
	r.loseNode(name.Name)
}

func (r *run) loseNode(name string) {
	if _, there := r.nodes[name]; there {
		r.setNode(name, nil)
	}
}

// setNode stores the state of a node, nil to remove it, and marks the services that it can change
// for another build: those with an endpoint on the node. If node ports are the backends, Services
// with the external policy Cluster are affected too, and all of them if the sight of all nodes has changed.
func (r *run) setNode(name string, now *node) {
	var whole sight
	if r.replaced {
		whole = r.nodes.sight()
	}
	if now == nil {
		delete(r.nodes, name)
	} else {
		r.nodes[name] = *now
	}
	if !r.replaced {
		return // all services are still to be built
	}
	for key := range r.servicesOn[name] {
		r.dirty[key] = struct{}{}
	}
	if !r.o.needsNodes() {
		return
	}
	all := whole != r.nodes.sight()
	for key, e := range r.entries {
		if e.service != nil && r.o.selects(e.service) && (all || e.service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal) {
			r.dirty[key] = struct{}{}
		}
	}
}

// count adds by to the number of endpoints that a Service has on the nodes of a slice; nil: none.
func (r *run) count(key vip.ServiceKey, slice *discoveryv1.EndpointSlice, by int) {
	if slice == nil {
		return
	}
	for i := range slice.Endpoints {
		name := value(slice.Endpoints[i].NodeName)
		if name == "" {
			continue
		}
		services := r.servicesOn[name]
		if services == nil {
			services = map[vip.ServiceKey]int{}
			r.servicesOn[name] = services
		}
		if services[key] += by; services[key] == 0 {
			delete(services, key)
		}
		if len(services) == 0 {
			delete(r.servicesOn, name)
		}
	}
}

// place finds out whether this host is one of the cluster's nodes. If that has changed, the
// Services with a policy Local are built again. While Nodes can't be read, the last result stays.
func (r *run) place() {
	for _, s := range r.streams {
		if r.o.Node == "" || s.resource != "nodes" || !s.listed {
			continue
		}
		_, node := s.known[types.NamespacedName{Name: r.o.Node}]
		if r.s.outside == !node {
			return
		}
		r.s.outside = !node
		for key, e := range r.entries {
			if e.service != nil && saysLocal(e.service) {
				r.dirty[key] = struct{}{}
			}
		}
	}
}

// saysLocal reports whether a Service has a policy Local.
func saysLocal(s *corev1.Service) bool {
	internal := s.Spec.InternalTrafficPolicy
	return s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal || internal != nil && *internal == corev1.ServiceInternalTrafficPolicyLocal
}

// needsNodes reports whether services are built from Nodes.
func (o *Options) needsNodes() bool { return o.Backends == BackendsNodePorts && !o.AdoptClusterIPs }
