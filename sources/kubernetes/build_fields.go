package kubernetes

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ironvip/ironvip/sources/draft"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// read reads the settings of the Service, without backends.
func (b *builder) read() {
	s := &b.s.Spec
	b.draft = spec.Service{Name: b.s.Name, Namespace: b.o.NamespacePrefix + b.s.Namespace, Pool: b.o.Pool}
	if vip.CheckLabel(b.draft.Namespace) != nil && vip.CheckLabel(b.s.Namespace) == nil {
		b.draft.Namespace = b.s.Namespace
		b.bad("metadata.namespace", vip.Problem{Message: fmt.Sprintf("is too long with the namespace_prefix %q", b.o.NamespacePrefix), Hint: "shorten the source's namespace_prefix"})
	}
	b.readLabels()
	for _, family := range s.IPFamilies {
		b.draft.Families = append(b.draft.Families, string(family))
		var f vip.Family
		if f.UnmarshalText([]byte(family)) == nil {
			b.families = append(b.families, f)
		}
	}
	b.readAnnotations()
	b.readAddresses()
	b.readSourceRanges()
	b.readPorts()
	b.readTraffic()
	if s.SessionAffinity == corev1.ServiceAffinityClientIP {
		b.draft.Affinity = &spec.Affinity{}
		if c := s.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			timeout := spec.Duration(time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second)
			b.draft.Affinity.Timeout = &timeout
		}
	}
}

// readLabels copies the labels. They only inform people, so labels above our limits are left out.
// Our limits are lower than those of Kubernetes.
func (b *builder) readLabels() {
	if len(b.s.Labels) == 0 {
		return
	}
	b.draft.Labels = make(map[string]string, min(len(b.s.Labels), spec.MaxLabels))
	for _, key := range sorted(b.s.Labels) {
		if len(b.draft.Labels) == spec.MaxLabels {
			b.warn(vip.CodeInvalid, "metadata.labels", "remove some, or leave it so", "only the first %d by name are shown", spec.MaxLabels)
			break
		}
		if len(key) > spec.MaxLabelKey {
			b.warn(vip.CodeInvalid, bracket("metadata.labels", key), "shorten it, or leave it so", "is not shown: its name is longer than %d characters", spec.MaxLabelKey)
			continue
		}
		b.draft.Labels[key] = b.s.Labels[key]
	}
}

// othersAnnotations are the annotations of other load balancers that request addresses, in order of precedence.
var othersAnnotations = []string{"metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs", "kube-vip.io/loadbalancerIPs"}

// othersShareKeys are those that let Services with the same value share an address.
var othersShareKeys = []string{"metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"}

// readAddresses determines the requested addresses. These are the adopted cluster IPs, or those of
// the annotation, of one of other load balancers, or spec.loadBalancerIP. Without a request, those of the status are
// preferred. The annotations must have been read before.
func (b *builder) readAddresses() {
	s := &b.s.Spec
	texts := b.draft.VIPs
	inAnnotation := func(name string) func(int) string {
		return func(int) string { return bracket("metadata.annotations", name) }
	}
	field := inAnnotation(annotationPrefix + "vips")
	if !b.o.AdoptClusterIPs {
		for _, name := range othersAnnotations {
			if value := b.s.Annotations[name]; value != "" && value != "0.0.0.0" && len(texts) == 0 { // kube-vip's 0.0.0.0 is any
				texts, field = draft.Split(value), inAnnotation(name)
			}
		}
		for _, name := range othersShareKeys {
			b.draft.ShareKey = cmp.Or(b.draft.ShareKey, shareKeyOf(b.s.Annotations[name]))
		}
	}
	switch {
	case b.o.AdoptClusterIPs:
		texts, field = s.ClusterIPs, func(i int) string { return strict.Index("spec.clusterIPs", i) }
		if len(texts) == 0 { // servers before 1.20 have only this field
			texts, field = []string{s.ClusterIP}, func(int) string { return "spec.clusterIP" }
		}
		if len(s.ExternalIPs) > 0 {
			b.warn(vip.CodeUnsupported, "spec.externalIPs", "use type LoadBalancer", "are not served: only cluster IPs and node ports are mirrored")
		}
	case s.LoadBalancerIP != "" && len(texts) > 0:
		if !slices.Contains(texts, s.LoadBalancerIP) {
			b.warn(vip.CodeDeprecated, "spec.loadBalancerIP", "remove it", "is not used: %s counts", field(0))
		}
	case s.LoadBalancerIP != "":
		b.warn(vip.CodeDeprecated, "spec.loadBalancerIP", "use the annotation "+annotationPrefix+"vips instead", "is deprecated by Kubernetes")
		texts, field = []string{s.LoadBalancerIP}, func(int) string { return "spec.loadBalancerIP" }
	case len(texts) == 0:
		b.preferStatus()
	}
	b.draft.VIPs = nil
	for i, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && !b.has(vip.FamilyOf(a)) { // spec reports an invalid one
			b.bad(field(i), vip.Problem{Message: a.String() + " is of a family that spec.ipFamilies leaves out",
				Hint: "request an address of the Service's own family, or set spec.ipFamilyPolicy: RequireDualStack"})
			continue
		}
		b.draft.VIPs, b.vipFields = append(b.draft.VIPs, text), append(b.vipFields, field(i))
	}
}

// shareKeyOf returns the share key for another load balancer's: itself, or a name made of it if it is no DNS label.
func shareKeyOf(key string) string {
	if key == "" || vip.CheckLabel(key) == nil {
		return key
	}
	h := fnv.New64a()
	h.Write([]byte(key))
	return fmt.Sprintf("shared-%016x", h.Sum64())
}

// preferStatus prefers the addresses that clients know: those of the status, which another load balancer has written, or this one
// before it lost its leases.
func (b *builder) preferStatus() {
	for _, in := range b.s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			b.preferred = append(b.preferred, a.Unmap())
		}
	}
}

// has reports whether the service has VIPs of a family. Without stated families it has both.
func (b *builder) has(f vip.Family) bool {
	return len(b.families) == 0 || slices.Contains(b.families, f)
}

// readSourceRanges reads the ranges of clients that may reach the VIP. They come from the Service's
// field or, if that is empty, from the older annotation. Adopted cluster IPs have no source ranges.
//
// Kubernetes accepts ranges that don't begin with their first address, and ranges of families that
// the Service does not have. If none of the ranges is usable, the service is invalid. Otherwise it
// would be open to all clients.
func (b *builder) readSourceRanges() {
	if b.o.AdoptClusterIPs {
		return
	}
	texts := b.s.Spec.LoadBalancerSourceRanges
	field := func(i int) string { return strict.Index("spec.loadBalancerSourceRanges", i) }
	if len(texts) == 0 {
		texts = draft.Split(b.s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey])
		field = func(int) string { return bracket("metadata.annotations", corev1.AnnotationLoadBalancerSourceRangesKey) }
	}
	for i, text := range texts {
		text = strings.TrimSpace(text)
		if p, err := netip.ParsePrefix(text); err == nil {
			text = p.Masked().String()
			if f := vip.FamilyOf(p.Addr()); !b.has(f) {
				b.warn(vip.CodeInvalid, field(i), "remove it", "%s is %s, which spec.ipFamilies leaves out", text, f)
				continue
			}
		}
		b.draft.SourceRanges = append(b.draft.SourceRanges, text)
		b.rangeFields = append(b.rangeFields, field(i))
	}
	if len(texts) > 0 && len(b.draft.SourceRanges) == 0 {
		b.bad("spec.loadBalancerSourceRanges", vip.Problem{Message: "none of the ranges is of the Service's families, and nobody could reach it",
			Hint: "add a range of the Service's own family"})
	}
}

// readPorts reads the ports of the Service. Endpoints determine the target ports. Without endpoints
// the Service's values are used.
//
// kube-proxy serves the node ports on the nodes. This host serves them only if it replaces
// kube-proxy.
func (b *builder) readPorts() {
	s := &b.s.Spec
	for i := range s.Ports {
		p := &s.Ports[i]
		out := spec.Port{Name: p.Name, Protocol: string(p.Protocol), Port: spec.PortRange{First: int(p.Port)}}
		if p.TargetPort.Type == intstr.Int {
			out.TargetPort = spec.PortNumber(p.TargetPort.IntVal)
		}
		if b.o.AdoptClusterIPs {
			out.NodePort.Number = int(p.NodePort)
		}
		if b.nodePorts() {
			if out.TargetPort = spec.PortNumber(p.NodePort); p.NodePort == 0 {
				b.warn(vip.CodeUnsupported, strict.Index("spec.ports", i)+".nodePort", "set spec.allocateLoadBalancerNodePorts: true, or let the source use endpoints",
					"there is none, and this source reaches Services by their node ports only")
			}
		}
		b.draft.Ports = append(b.draft.Ports, out)
	}
}

// readTraffic reads the traffic policies and the traffic distribution.
func (b *builder) readTraffic() {
	s := &b.s.Spec
	external, internal := strings.ToLower(string(s.ExternalTrafficPolicy)), ""
	if s.InternalTrafficPolicy != nil {
		internal = strings.ToLower(string(*s.InternalTrafficPolicy))
	}
	if b.o.AdoptClusterIPs && s.Type != corev1.ServiceTypeLoadBalancer && s.Type != corev1.ServiceTypeNodePort {
		external = internal // the internal policy applies to all clients of a cluster IP
	}
	switch {
	case b.nodePorts():
		external, internal = "", "" // kube-proxy applies them on the node that receives the traffic
	case b.outside:
		external, internal = anyEndpoint(external), anyEndpoint(internal)
	}
	b.draft.ExternalTraffic, b.draft.InternalTraffic = external, internal
	if b.o.AdoptClusterIPs && !b.outside && s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		b.draft.HealthPort.Number = int(s.HealthCheckNodePort)
	}
	if s.TrafficDistribution == nil {
		return
	}
	switch *s.TrafficDistribution {
	case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone:
		b.draft.Distribution = vip.PreferSameZone.String()
	case corev1.ServiceTrafficDistributionPreferSameNode:
		b.draft.Distribution = vip.PreferSameNode.String()
	default:
		b.warn(vip.CodeUnsupported, "spec.trafficDistribution", "use PreferSameZone or PreferSameNode",
			"this version does not know %s, and prefers no endpoint", strict.Quote(*s.TrafficDistribution))
	}
}

// anyEndpoint returns a traffic policy for a host without local endpoints. It replaces Local by
// Cluster. The purpose of Local is to avoid a second hop, and from such a host there is only one
// hop to an endpoint.
func anyEndpoint(policy string) string {
	if policy == vip.Local.String() {
		return vip.Cluster.String()
	}
	return policy
}

// fieldOf returns the field of the Service that a field of the draft comes from.
func (b *builder) fieldOf(path string) string {
	head, rest := path, ""
	if at := strings.IndexAny(path, "[."); at >= 0 {
		head, rest = path[:at], path[at:]
	}
	number, of, _ := strings.Cut(strings.TrimPrefix(rest, "["), "]")
	i, err := strconv.Atoi(number)
	switch {
	case head == "vips" && err == nil && i < len(b.vipFields):
		return b.vipFields[i]
	case head == "source_ranges" && err == nil && i < len(b.rangeFields):
		return b.rangeFields[i]
	case head == "ports" && err == nil:
		return strict.Index("spec.ports", i) + b.portField(of)
	case head == "scheduler_flags": // one annotation contains the list
		rest = ""
	case head == "affinity":
		rest = "Config.clientIP.timeoutSeconds"
	}
	if field, is := specFields[head]; is {
		return field + rest
	}
	if _, is := annotations[draft.Name(head)]; is {
		return bracket("metadata.annotations", annotationPrefix+draft.Name(head))
	}
	return path
}

// portField returns the field of a Service's port for a field of the draft's port, such as
// ".target_port".
func (b *builder) portField(of string) string {
	switch of {
	case ".target_port":
		if b.nodePorts() {
			return ".nodePort"
		}
		return ".targetPort"
	case ".node_port":
		return ".nodePort"
	}
	return of
}

// specFields maps fields of the draft to the fields of a Service that set them.
var specFields = map[string]string{
	"name": "metadata.name", "namespace": "metadata.namespace", "labels": "metadata.labels", "families": "spec.ipFamilies",
	"ports": "spec.ports", "source_ranges": "spec.loadBalancerSourceRanges", "affinity": "spec.sessionAffinity",
	"internal_traffic": "spec.internalTrafficPolicy", "external_traffic": "spec.externalTrafficPolicy",
	"traffic_distribution": "spec.trafficDistribution", "health_check_node_port": "spec.healthCheckNodePort",
}

// bracket returns the path of a map's key: "metadata.annotations[a/b]".
func bracket(path, key string) string { return path + "[" + strict.Name(key) + "]" }
