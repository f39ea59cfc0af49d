// Package hostnet watches this host's network: its addresses, gateways and routes.
//
// Its input is the kernel's rtnetlink. Its output is a table of one row, a Snapshot, which it
// writes whenever the network differs from the last one. The allocator excludes the host's own
// addresses from its pools, and node ports listen on them. The package leaves out what ironvip
// itself put on the host. It changes nothing, and needs no privileges.
package hostnet

import (
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/internal/table"
)

// Snapshot is the host's network at one moment. Every list is sorted.
type Snapshot struct {
	Addrs    []Addr
	Gateways []netip.Addr // next hops of the main routing table
	Routes   []Route      // of the main routing table, without default routes and those through a gateway
}

// Addr is one address of the host.
type Addr struct {
	Prefix    netip.Prefix // the address with its on-link length, not masked
	Link      string       // the interface's name
	Secondary bool         // an IPv4 address beside an earlier one of the same subnet
}

// Route is a range that the host reaches through one interface.
type Route struct {
	Prefix netip.Prefix
	Link   string
}

// KeyOf returns the key of a host's only snapshot in a table.
func KeyOf(*Snapshot) struct{} { return struct{}{} }

// Same reports whether two snapshots are equal.
func Same(a, b Snapshot) bool {
	return slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.Gateways, b.Gateways) && slices.Equal(a.Routes, b.Routes)
}

// IsOwn returns a function that reports whether an address is the host's own. It costs O(addresses of the host).
func IsOwn(host table.Reader[struct{}, Snapshot]) func(netip.Addr) bool {
	return func(addr netip.Addr) bool {
		if addr.IsLoopback() {
			return true
		}
		snapshot, _, _ := host.Get(struct{}{})
		return slices.ContainsFunc(snapshot.Addrs, func(a Addr) bool { return a.Prefix.Addr().Unmap() == addr })
	}
}
