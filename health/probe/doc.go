// Package probe runs health probes: it opens connections, sends requests, asks health services and
// runs commands, and decides from the results whether a target is healthy.
//
// Its input are targets (an address with a check) by Start and Stop. Its output is a table with the
// health of each target, which changes only when the health or the kind of its cause changes; the last
// failure of a target by LastFailure; and counters by Stats. It knows no services: the caller counts
// how many services need a target.
//
// It owns the sockets and the child processes of its probes, within the bounds of Options. A fault
// of this host (no descriptors, no ephemeral ports, no time of a processor) is counted and is
// never evidence against a target.
//
// Source code organization:
//
//   - target.go, result.go: the input and output types
//   - state.go: the health of one target, as pure functions of results and time
//   - schedule.go: when each target is probed
//   - lanes.go: how many probes run at once
//   - engine.go: the loop that connects them; publish.go writes the table in batches
//   - delays.go: whether this host gave the agent enough time of its processors for a timeout to count
//   - faults.go: recent faults of this host
//   - stats.go: counters and the histogram of durations
//   - socket.go: the poller for tcp.go and udp.go, which need no goroutine for each probe
//   - path.go: probes that take the path of clients to one backend
//   - http.go, grpc.go, exec.go: probes in goroutines; dial.go opens connections for the first two
//   - judge.go: the outcome of an error
package probe
