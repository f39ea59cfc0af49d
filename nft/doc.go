// Package nft is the nftables dataplane: a reconcile.Plane that forwards without IPVS.
//
// Its table (layout.go) has fixed chains and data maps. The map services leads from address, protocol
// and port to a service's class and number, the map slots from number and slot to a backend. Services
// with the same settings have one class: it has a chain, which chooses a slot, masquerades and
// remembers clients (class.go). So a change of a frontend changes elements of few maps, in one
// transaction, and no chain and no map of verdicts unless its class is new. Maps are divided into
// shards, because the kernel takes quadratic time to list large ones (origin.go).
//
// New connections pass the chains. Open ones follow connection tracking, also when their backend
// leaves, until their entries are deleted. They pass only what counts them (counters.go).
//
// A change of the table by another program is found at once (watched.go). Package plane/kernel/vips makes the virtual
// addresses addresses of this host.
//
// The table is the only record. At its start, a Target reads it, and decodes frontends from it
// (read.go, service.go). The packages below plane/kernel have what this dataplane shares with ipvs.
package nft
