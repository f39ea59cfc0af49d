package kubernetes

import (
	"fmt"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// node holds the parts of a Node that are needed to send traffic to its node ports and its
// endpoints. Equal nodes result in the same backends.
type node struct {
	ipv4, ipv6 netip.Addr // the addresses of its node ports; zero: none
	zone       string
	ready      bool
	weight     uint16 // of each backend on the node
	weighted   bool   // weight is set
}

// weighs returns the weight of each backend on the node; nil: the default.
func (n node) weighs() *int {
	if !n.weighted {
		return nil
	}
	return new(int(n.weight))
}

// readWeight reads the annotation with the weight of each backend on the node, of the cluster of that source.
func (n *node) readWeight(of *corev1.Node, source string) *vip.Problem {
	const name = annotationPrefix + "weight"
	text := of.Annotations[name]
	if text == "" {
		return nil
	}
	weight, err := strconv.ParseUint(text, 10, 16)
	if err == nil {
		n.weight, n.weighted = uint16(weight), true
		return nil
	}
	return &vip.Problem{Code: vip.CodeInvalid, Place: "node " + strict.Name(of.Name) + " in " + source, Field: bracket("metadata.annotations", name),
		Message: fmt.Sprintf("%s is not a number from 0 to %d: the default counts", strict.Quote(text), vip.MaxWeight), Hint: `write a number: "50"`}
}

// nodeSet is the cluster's nodes by name.
type nodeSet map[string]node

// sight is the state of all nodes together that affects every Service.
type sight struct {
	ready      bool // at least one node is ready and has an address
	ipv4, ipv6 bool // at least one node has an address of the family
}

func (set nodeSet) sight() (out sight) {
	for _, n := range set {
		out.ipv4, out.ipv6 = out.ipv4 || n.ipv4.IsValid(), out.ipv6 || n.ipv6.IsValid()
		out.ready = out.ready || n.ready && (n.ipv4.IsValid() || n.ipv6.IsValid())
	}
	return out
}

// taintToBeDeleted is the taint of nodes that the cluster autoscaler is about to remove.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// nodeOf reads a Node. A Node with the label that excludes it from load balancing has no address. A
// cordoned Node is used like others: it gets no new pods, but its node ports work.
func nodeOf(n *corev1.Node) node {
	out := node{zone: n.Labels[corev1.LabelTopologyZone]}
	if _, left := n.Labels[corev1.LabelNodeExcludeBalancers]; left {
		return out
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for i := range n.Status.Addresses {
			a, err := netip.ParseAddr(n.Status.Addresses[i].Address)
			if err != nil || n.Status.Addresses[i].Type != kind {
				continue
			}
			if a.Is4() && !out.ipv4.IsValid() {
				out.ipv4 = a
			} else if a.Is6() && !out.ipv6.IsValid() {
				out.ipv6 = a
			}
		}
	}
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			out.ready = c.Status == corev1.ConditionTrue
		}
	}
	for i := range n.Spec.Taints {
		out.ready = out.ready && n.Spec.Taints[i].Key != taintToBeDeleted
	}
	return out
}

// address returns the node's address of a family.
func (n *node) address(f vip.Family) netip.Addr {
	if f == vip.IPv6 {
		return n.ipv6
	}
	return n.ipv4
}

// nodeServers returns the nodes as backends, each with the Service's node ports.
//
// A node that isn't ready receives no new connections, unless no node is ready. In that case the
// cluster has probably lost contact with its nodes, and they may still work. With the external
// policy Local, a node without an endpoint drops the traffic. Therefore only nodes with endpoints
// are used, for the ports that their endpoints serve.
func (b *builder) nodeServers(nodes nodeSet, groups []group) []server {
	var served portSet
	for i := range b.s.Spec.Ports {
		if b.s.Spec.Ports[i].NodePort != 0 {
			served.add(i)
		}
	}
	if served == (portSet{}) {
		return nil // each port already has a problem
	}
	local := b.s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	var here map[nodeFamily]locals
	if local {
		here = localsOf(groups, served)
	}
	anyReady := nodes.sight().ready
	families := b.families
	if len(families) == 0 {
		families = []vip.Family{vip.IPv4, vip.IPv6}
	}
	all := newServers(len(nodes) * len(families))
	reached := map[vip.Family]bool{}
	for _, name := range sorted(nodes) {
		n := nodes[name]
		for _, f := range families {
			made := server{address: n.address(f), ports: served}
			if !made.address.IsValid() {
				continue
			}
			reached[f] = true
			if !n.ready && anyReady {
				made.rank, made.why = rankUnhealthy, fmt.Sprintf("Kubernetes node %s not ready", strict.Name(name))
			}
			if local {
				l, has := here[nodeFamily{name, f}]
				if !has {
					continue
				}
				if l.rank >= rankUnhealthy && made.why == "" {
					made.why = fmt.Sprintf("no ready endpoint on Kubernetes node %s", strict.Name(name))
				}
				made.ports, made.rank = l.ports, max(made.rank, l.rank)
			}
			made.Backend = spec.Backend{Address: made.address.String(), Weight: n.weighs(), Node: name, Zone: n.zone}
			all.add(made)
		}
	}
	for i, f := range b.families {
		if len(nodes) > 0 && !reached[f] {
			b.warn(vip.CodeUnsupported, strict.Index("spec.ipFamilies", i), "", "no node of the cluster has an address of %s that traffic may be sent to", f)
		}
	}
	return b.finished(all.list)
}

// nodeFamily is a node and a family.
type nodeFamily struct {
	node   string
	family vip.Family
}

// locals describes the best endpoints of a Service on one node and their ports.
type locals struct {
	rank  rank
	ports portSet
}

// localsOf returns the endpoints of each node.
func localsOf(groups []group, served portSet) map[nodeFamily]locals {
	out := map[nodeFamily]locals{}
	for i := range groups {
		g := &groups[i]
		var ports portSet
		for j, n := range g.numbers {
			if n != 0 && served.has(j) {
				ports.add(j)
			}
		}
		for j := range g.slice.Endpoints {
			e := &g.slice.Endpoints[j]
			if _, use := g.address(e); !use || e.NodeName == nil || ports == (portSet{}) {
				continue
			}
			key := nodeFamily{*e.NodeName, g.family}
			l, has := out[key]
			switch r := rankOf(&e.Conditions); {
			case !has || r < l.rank:
				out[key] = locals{r, ports}
			case r == l.rank:
				l.ports.join(ports)
				out[key] = l
			}
		}
	}
	return out
}
