// Package ipam is the vocabulary of virtual addresses and node ports, and of what has them: leases, their
// stored form, the contract of stores, pools as configured, and requests. It does no I/O and decides nothing.
//
// A lease is durable in a Store before anyone sees it, and sticky: a service gets back what it held,
// across restarts, pool edits, and re-registrations within the cooldown. docs/ipam.md describes that for
// users. The packages below have the rest:
//
//	pool        pools less what they must keep clear of, and their problems
//	plan        from leases, pools and services to the ops that grant or release something
//	allocator   the one who assigns: it commits plans, and acts at deadlines
//	boltstore, memstore, fleetstore  stores
//
// Files:
//
//	lease.go, leasejson.go  Resource, Lease, and their stored form
//	store.go                Store and its ops
//	holdings.go             leases by service
//	config.go               pools and times as configured, reservations and releases as requested
package ipam
