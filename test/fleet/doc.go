// Package fleet tests several agents that share a store: the built binary, three
// times, each in a network namespace of its own, with real Consul servers beyond
// them, while processes are killed and stalled and networks cut.
//
// A Recorder writes down what was asked and answered, and what every agent's API
// said over time; Check reads that History and says which promises were broken:
// an address held twice, one that changed hands, one leaked, a registration
// acknowledged and lost. The checker is pure and has tests of its own; the
// scenarios need the build tag system, root, IRONVIP_BIN and Consul.
package fleet
