// Package announce has the vocabulary of announcing VIPs to the network, and the pure function that
// decides which host announces which VIP.
//
// Its input is what this host could announce ([Eligible]), the other hosts with their state
// ([Host]), and what each of them could announce and announces ([Claim]). Its output is one
// [Announcement] per VIP. The Decider does no I/O and reads no clock. A change costs O(what
// changes): the hosts of one VIP, or the VIPs of one host.
//
// Package heartbeat exchanges hosts and claims, packages l2, bgp and routes carry announcements
// out, and package announcer connects them.
//
// Files:
//
//	types.go    the vocabulary
//	settings.go the settings that the agent sends
//	rank.go     the order of the hosts for a VIP
//	route.go    what the routes of a VIP carry
//	decider.go  the inputs of the decision, and what is to be decided again
//	decide.go   the decision for one VIP
//	why.go      its reason in words
//	result.go   what has become of it
package announce
