// Package l2 announces virtual addresses on a LAN: it answers ARP and neighbor discovery for the
// addresses that this host owns, tells the network where they are, and keeps this host silent about
// all others.
//
// The caller decides which addresses the host owns (Own, Release) and confirms at short intervals
// that its decisions are still good (Refresh). Without that, the dead-man switch closes the gate and
// all addresses are released. Results are reported through Config.Report.
//
// Parts, from the top:
//
//	speaker.go   the calls of the owner
//	loop.go      the goroutine that joins decisions, links, claims and time
//	lan.go       where the addresses of pools are announced
//	links.go     what follows from a change of interfaces
//	answer.go    received frames: answers, and claims of other stations
//	output.go    frames and reports to send
//	restore.go   when the tables are written again
//	config.go    the settings and the reports
//	claim        when to announce, probe, defend and give up (pure)
//	gate         the nftables tables
//	link         interfaces and addresses of the host
//	frame, wire  formats; packet sockets
//
// Forwarding is not touched: a packet that still arrives for an address that another host has taken
// over is served as before.
package l2
