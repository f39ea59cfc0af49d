// Package scenario is a table of the effects of services on traffic, run on every
// dataplane.
//
// A scenario has services as a user writes them, requests from several places (a client outside,
// one inside the pod ranges, this host, a backend), and changes between them. It states which
// backend answers, the client address that the backend sees, the refusals, and the state of open
// connections. It runs the whole pipeline, from TOML to a real dataplane, with real sockets: on
// loopback, in network namespaces, or for IPVS inside the VM.
//
// The list features contains what a dataplane may refuse. A scenario passes as unsupported only if
// the dataplane refuses the sample of its feature. docs/dataplanes.md is generated from the list.
package scenario
