package kubernetes

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// putNode takes in a Node. Its kubelet writes to it every few seconds: of that,
// only what services are made of is news. The caller holds mu.
func (r *run) putNode(n *corev1.Node) {
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	r.pods.set(n.Name, cidrs)
	if !r.o.needsNodes() {
		return // EndpointSlices have the zones
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

// setNode takes in what a node is now, nil for none, and has those services made
// anew that it may change. For a Service that is for local endpoints those are
// the nodes that have one, unless what is true of the nodes as a whole has changed.
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
		return // all are yet to be made
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

// on reports whether an endpoint is on a node.
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

// place finds out whether this host is one of the cluster's nodes. Where it is
// no longer as it was, the Services that say something of local endpoints are made
// anew. What can't be read is as it was.
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

// saysLocal reports whether some traffic of a Service is for local endpoints.
func saysLocal(s *corev1.Service) bool {
	internal := s.Spec.InternalTrafficPolicy
	return s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal || internal != nil && *internal == corev1.ServiceInternalTrafficPolicyLocal
}

// needsNodes reports whether services are made of Nodes.
func (o *Options) needsNodes() bool { return o.Backends == BackendsNodePorts && !o.AdoptClusterIPs }
