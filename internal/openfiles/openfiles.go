// Package openfiles divides the file descriptors of this process, so that no part of the agent can
// use up those of another.
//
// Its input is RLIMIT_NOFILE, its output the bound of each part. It opens and counts nothing: each
// part keeps to its own bound.
package openfiles

import "golang.org/x/sys/unix"

// Budget has the number of descriptors of each part.
type Budget struct {
	Limit int // all
	// Agent is left for everything that has no bound of its own: the stores, clients of Consul and
	// Kubernetes, watched files, netlink and logs.
	Agent  int
	API    int // connections of the API, on all of its listeners
	Probes int // sockets and processes of health probes
	Pipes  int // of the userspace proxy; a pipe has two
	// Traffic is for the userspace proxy: one for each listener and UDP session, two for each TCP
	// connection.
	Traffic int
}

// The bounds that Divide gives to parts.
const (
	leastOfPart = 64
	mostOfAgent = 1024
	// mostProbes is enough for 10,000 targets that don't answer within their timeout of 1 s, probed
	// at the fast interval for unclear states.
	mostProbes = 5120
)

// Divide divides limit descriptors. The agent and the API get 1/128 each, at most 1,024; the probes
// get 1/64, at most 5,120; each of them gets at least 64. Pipes get 1/64, and traffic the rest:
// 19,064 of 20,000. Below a limit of 640, the first three get 1/10 each.
func Divide(limit uint64) Budget {
	n := int(min(limit, 1<<24))
	part := func(share, most int) int { return min(max(share, leastOfPart), most, n/10) }
	b := Budget{Limit: n, Agent: part(n/128, mostOfAgent), API: part(n/128, mostOfAgent), Probes: part(n/64, mostProbes), Pipes: n / 64}
	b.Traffic = n - b.Agent - b.API - b.Probes - b.Pipes
	return b
}

// Least is the lowest limit with which an agent works: its stores, sources, sockets of the kernel and the API.
const Least = 256

// Limit returns RLIMIT_NOFILE, which the Go runtime has raised to its hard limit.
func Limit() uint64 {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 1024
	}
	return r.Cur
}
