package kubetest

import (
	"fmt"
	"net/netip"
	"strings"
)

// EndpointSlice is the manifest of the one slice, of the Service's name and one
// family, that gives these ready endpoints to a Service's port without a name.
// Without addresses it is an empty one of IPv4.
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

// Node is the manifest of a node with these internal addresses, ready, and a
// zone where it isn't "".
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
