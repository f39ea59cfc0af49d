package kubernetes

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// putNode stores a Node. Its kubelet writes to it every few seconds, so only changes that affect
// services count. The caller holds mu.
func (r *run) putNode(n *corev1.Node) {
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	r.pods.set(n.Name, cidrs)
	if !r.o.needsNodes() {
		return // zones come from EndpointSlices
	}
	now := nodeOf(n)
	if before, there := r.nodes[n.Name]; !there || before != now {
		r.setNode(n.Name, &now)
	}
}

func (r *run) dropNode(name types.NamespacedName) {
	r.pods.set(name.Name, nil)
	if _, there := r.nodes[name.Name]; there {
		r.setNode(name.Name, nil)
	}
}

// setNode stores the state of a node, nil to remove it, and marks the services that it can change
// for another build. A Service with the external policy Local is affected if it has an endpoint on
// the node, or if the sight of all nodes has changed.
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
	all := whole != r.nodes.sight()
	for key, e := range r.entries {
		if e.service == nil || !r.o.selects(e.service) {
			continue
		}
		if all || e.service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || e.on(name) {
			r.dirty[key] = struct{}{}
		}
	}
}

// on reports whether the Service has an endpoint on a node.
func (f *followed) on(node string) bool {
	for _, slice := range f.slices {
		for i := range slice.Endpoints {
			if name := slice.Endpoints[i].NodeName; name != nil && *name == node {
				return true
			}
		}
	}
	return false
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
