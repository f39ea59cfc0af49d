// Package plan computes the ops that have services get and give up addresses and node ports.
//
// Its inputs are a State, which has the leases and the pools, and services, reservations and releases. Its
// outputs are ops for a store, the answer to each service, and the problems that name the reason and the
// holder. Plans are pure: they change nothing, so that a plan that isn't committed leaves no trace. The
// cost of one service doesn't grow with the number of leases. A plan never moves a service because of
// another one. Only package allocator changes a State.
//
// Files:
//
//	state.go, index.go  leases, pools with their status and alarms, and what the store can't read, with indexes
//	plan.go             the ops that grant requests, and the steps that all kinds of resources share
//	service.go          one service
//	address.go, nodeport.go  its addresses, its node ports
//	reserve.go          reservations
//	release.go          releases
package plan
