// Package scenario is the table of what a service does to traffic, run on every
// dataplane.
//
// A scenario is a service as a user writes it, questions asked from several
// places (a client outside, one inside the pod ranges, this host, a backend),
// and changes in between; it says who answers, whom they see, what is refused
// and what becomes of open connections. It goes through the real pipeline, from
// TOML to a real dataplane, in a lab of real sockets: on loopback, or in
// network namespaces, for IPVS inside the VM.
//
// What a dataplane can't do is in one list, features, together with the
// dataplane's own word on it; a scenario passes as unsupported only where that
// word is no. docs/dataplanes.md is made from it.
package scenario
