// Package resolvers tests the names of services through real DNS resolvers: dnsmasq, unbound,
// CoreDNS and systemd-resolved.
//
// Each test has a host in a network namespace, with the built binary and one resolver at its usual
// port. The resolver's configuration is a base, which stands for what an operator has, and the recipe
// of docs/dns.md word for word. systemd-resolved also has a mount namespace with its own system bus,
// polkit and files. The benchmarks compare the DNS server with other ones.
package resolvers
