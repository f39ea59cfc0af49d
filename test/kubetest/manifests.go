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
