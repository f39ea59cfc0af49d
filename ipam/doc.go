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
// Contract:
//   - lease.go, leasejson.go: Resource, Lease, and their stored form
//   - store.go: Store and its ops; boltstore, consulstore and memstore implement it
//   - holdings.go: Holdings, leases by service, also for stores
//
// State, which only the writer changes:
//   - state.go: leases, pools, indexes, and what the store can't read
//   - internal/pool: pools less what they must keep clear of, and their problems
//   - internal/numbers: sets and ranges of addresses and ports as numbers
//
// Plans, which are pure functions of that state and the requests:
//   - plan.go: the ops that grant requests, and the steps that all kinds of resources share
//   - plan_service.go, plan_address.go, plan_nodeport.go: one service, its addresses, its node ports
//
// The Allocator, which commits plans; its methods that write hold the lock "write":
//   - allocator.go: its construction, its readers, its locks
//   - config.go: pools and times as configured, and their changes
//   - leadership.go: when this host acts, if hosts share the store
//   - commit.go: from ops, and from changes by other hosts, to visible leases
//   - assign.go, release.go: what the pipeline calls; release.go also plans releases
//   - reserve.go: what an operator calls to keep an address for a service, and its plan
//   - follow.go: what the store has, at the start and later
//   - run.go, sweep.go: what Run does at a deadline: recalls, the end of cooling, orphans
package ipam
