// Package ipam assigns virtual addresses and node ports. No other package does.
//
// Its inputs are services, pools, and the ranges that pools must keep clear of (pod ranges, the
// host's own addresses). Its outputs are allocations and the table of leases. A lease is durable in
// a Store before anyone sees it, and sticky: a service gets back what it held, across restarts, pool
// edits, and re-registrations within the cooldown. The cost of one service doesn't grow with the
// number of leases. The package never moves a service because of another one, and never touches the
// network. docs/ipam.md describes it for users.
//
// # Source code organization
//
// Files use only those listed before them, apart from the methods of one type.
//
// Vocabulary:
//   - lease.go, leasejson.go: Resource, Lease, and their stored form
//   - store.go: the Store contract; boltstore, consulstore and memstore implement it
//   - config.go: pools and times as configured; internal/pool finds what is wrong with pools
//
// What is known:
//   - internal/numbers: sets and ranges of addresses and ports as numbers
//   - internal/pool: pools less what they must keep clear of, and their alarms
//   - holdings.go, index.go: leases by service, by share key, and by the end of cooling
//   - state.go: all of the above, and what the store can't read
//
// Plans, which are pure functions of that state and the requests:
//   - plan.go, plan_address.go, plan_nodeport.go, plan_service.go: the ops that grant requests
//   - plan_release.go: the ops that release
//
// The Allocator, which commits plans:
//   - leadership.go, undo.go: when this host acts, if hosts share the store
//   - signals.go: what goroutines wait for
//   - allocator.go, configure.go: its construction, its settings, its readers
//   - commit.go: from ops, and from changes by other hosts, to visible leases
//   - assign.go, release.go: what the pipeline calls
//   - follow.go: what the store has, at the start and later
//   - cool.go, sweep.go, run.go: what Run does at a deadline
package ipam
