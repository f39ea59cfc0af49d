// Package healthport answers by HTTP whether this node has ready backends of a service. Load
// balancers in front of several nodes use it to find the nodes that serve a service with
// external_traffic local.
//
// Its inputs are the compiled table, which has a port and a number of ready backends for each
// service, and the host's addresses. Its outputs are a listener on that port of each node-port
// address, and the answers. A changed row affects only its own listeners. The package reports where
// it can't listen, and retries. It makes no decisions: package compile determines which backends
// are ready and local.
//
// The answers are compatible with Kubernetes' healthCheckNodePort: status 200 with at least one
// ready backend, else 503. They are also 503 until the dataplane has been programmed once, after a
// wait of up to 1 s for that, and while it can't be. The listeners face the network, so every connection has a time limit, and
// their number is limited.
package healthport
