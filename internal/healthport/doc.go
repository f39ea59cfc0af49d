// Package healthport answers, by HTTP, whether this node has ready backends of a
// service: what balancers in front of several nodes ask to find those that a
// service with external_traffic local is served on.
//
// In come the compiled table, whose rows have a port and a number of ready
// backends, and the host's addresses; out go listeners on that port of each
// address that node ports are served on, and their answers. A changed row costs
// its own listeners and nothing else. What the package can't listen on it tells,
// and tries again. It decides nothing: who is ready and local is compile's word.
//
// The answers are those of Kubernetes' healthCheckNodePort, so that what speaks
// to one speaks to the other: status 200 with at least one ready backend, else
// 503. They say 503, too, until the dataplane has been programmed once, and while
// it can't be. The listeners face the network, so every connection is bounded in
// time, and their number is bounded.
package healthport
