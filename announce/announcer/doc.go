// Package announcer is the process that announces VIPs to the network. It owns the heartbeats and
// the decision.
//
// Files:
//
//	core.go  the heartbeats and the decision, as a state machine
package announcer
