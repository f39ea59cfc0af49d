// Package announcer is the process that announces VIPs to the network. It owns the heartbeats, the
// decision, and the speakers that carry announcements out.
//
// Its input is what the agent sends on the control socket: the settings and the VIPs that this host
// may announce. It reads no configuration. When the agent is gone, it continues for as long as the
// settings say, and then withdraws everything. Its output is on the network, and in tables that the
// agent mirrors. It never touches services or the dataplane.
//
// One goroutine owns all state. It processes requests, packets and reports of speakers in steps.
//
// Files:
//
//	process.go    the main function of the process
//	announcer.go  the goroutine, its inputs, and its end
//	core.go       the heartbeats and the decision, as a state machine
//	agent.go      requests of the agent, and its absence
//	output.go     the contract of outputs, and the calls of them
//	l2.go         the output for the hosts' own subnet
//	bgp.go        the output for routers
//	routes.go     the output for a router on this host
//	outbox.go     heartbeats that the kernel had no room for
//	publish.go    the tables
package announcer
