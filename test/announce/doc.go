// Package announce tests announcing VIPs with the built binary: hosts with an agent and an announcer
// each, in network namespaces on one segment, and a client that measures what it loses. It exports
// nothing. The build tag is system, IRONVIP_BIN names the binary, and it needs root.
package announce
