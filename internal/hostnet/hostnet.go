// Package hostnet watches this host's network: its addresses, gateways and
// routes, as a table of one row.
//
// In comes the kernel's rtnetlink; out goes a Snapshot whenever it differs from
// the last. The allocator holds the host's own addresses out of its pools, and
// node ports listen on them. Reading and watching need no rights. What ironvip
// itself put on the host is left out. The package changes nothing.
package hostnet

import (
	"net/netip"
	"slices"
)

// Snapshot is the host's network at one moment. Every list is sorted.
type Snapshot struct {
	Addrs    []Addr
	Gateways []netip.Addr // next hops of the main routing table
	Routes   []Route      // of the main routing table, those through a gateway and the default ones left out
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

// KeyOf returns what a table keeps a host's one snapshot by: nothing.
func KeyOf(*Snapshot) struct{} { return struct{}{} }

// Same reports whether two snapshots are alike.
func Same(a, b Snapshot) bool {
	return slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.Gateways, b.Gateways) && slices.Equal(a.Routes, b.Routes)
}
