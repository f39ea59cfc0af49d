package kubetest

import (
	"fmt"
	"net/netip"
	"strings"
)

// EndpointSlice returns the manifest of a Service's only slice, with the Service's name and one
// family. It gives these ready endpoints to a Service's port without a name. Without addresses it
// is an empty slice of IPv4.
func EndpointSlice(namespace, service string, port uint16, addrs ...netip.Addr) string {
	family := "IPv4"
	var endpoints []string
	for _, a := range addrs {
		if a.Is6() {
			family = "IPv6"
		}
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [%q], conditions: {ready: true, serving: true, terminating: false}}", a))
	}
	return fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: %q, name: %q, labels: {kubernetes.io/service-name: %q}}
addressType: %s
endpoints: [%s]
ports: [{name: "", protocol: TCP, port: %d}]
`, namespace, service, service, family, strings.Join(endpoints, ", "), port)
}

// Node returns the manifest of a ready node with these internal addresses, and a zone if it isn't
// "".
func Node(name, zone string, addrs ...netip.Addr) string {
	var internal []string
	for _, a := range addrs {
		internal = append(internal, fmt.Sprintf("{type: InternalIP, address: %q}", a))
	}
	labels := fmt.Sprintf("kubernetes.io/hostname: %q", name)
	if zone != "" {
		labels += fmt.Sprintf(", topology.kubernetes.io/zone: %q", zone)
	}
	return fmt.Sprintf(`---
apiVersion: v1
kind: Node
metadata: {name: %q, labels: {%s}}
status: {addresses: [%s], conditions: [{type: Ready, status: "True"}]}
`, name, labels, strings.Join(internal, ", "))
}

// GatewayAPI returns definitions of the kinds of the Gateway API, which accept all objects: GatewayClass and Gateway in v1,
// ReferenceGrant in v1beta1, TCPRoute in one version, and UDPRoute in others. The server serves them after a moment.
func GatewayAPI(tcpRoutes string, udpRoutes ...string) (out string) {
	for _, kind := range []struct {
		name, plural, scope string
		versions            []string
	}{
		{"GatewayClass", "gatewayclasses", "Cluster", []string{"v1"}},
		{"Gateway", "gateways", "Namespaced", []string{"v1"}},
		{"ReferenceGrant", "referencegrants", "Namespaced", []string{"v1beta1"}},
		{"TCPRoute", "tcproutes", "Namespaced", []string{tcpRoutes}},
		{"UDPRoute", "udproutes", "Namespaced", udpRoutes},
	} {
		var versions []string
		for i, version := range kind.versions {
			versions = append(versions, fmt.Sprintf("{name: %s, served: true, storage: %v, subresources: {status: {}}, "+
				"schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}", version, i == 0))
		}
		out += fmt.Sprintf(`---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %s.gateway.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/gateway-api"}
spec:
  group: gateway.networking.k8s.io
  scope: %s
  names: {kind: %s, plural: %s, singular: %s}
  versions: [%s]
`, kind.plural, kind.scope, kind.name, kind.plural, strings.ToLower(kind.name), strings.Join(versions, ", "))
	}
	return out
}
