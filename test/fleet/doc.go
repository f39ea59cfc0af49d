// Package fleet tests several agents that share a store: the built binary, three or thirty times,
// each in its own network namespace, with one or three real Consul servers. The tests kill and
// stall processes, cut networks, reach Consul's limits, and set a host's clock (package guest).
//
// A recorder records the requests and answers, and what every agent's API showed over time, as a
// History. Check reads the History and returns the broken guarantees: an address that is held
// twice, changed hands or leaked, or a registration that was acknowledged and lost. The checker is
// pure and has its own tests. The scenarios need the build tag system, root, IRONVIP_BIN and
// Consul.
package fleet
