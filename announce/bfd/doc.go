// Package bfd detects within milliseconds that the path to a router has failed (RFC 5880,
// asynchronous mode; RFC 5881 single hop; RFC 5883 multihop).
//
// Its input is the set of sessions. Its outputs are control packets to each router and reports of
// state changes. A Speaker owns one receiving socket for each address family and port, one sending
// socket for each session, and one goroutine for the timers of all sessions. It doesn't know BGP:
// the caller decides what a session that is down means.
//
// Not supported: echo and demand mode of its own, and authentication. Packets that request
// authentication are discarded.
//
//	packet.go   the format of a control packet
//	session.go  the state machine of one session, without I/O
//	speaker.go  the sessions, their timers, and the demultiplexing of packets
//	handover.go sessions that go on in the next process
//	status.go   states and reasons for operators
//	socket.go   the sockets
package bfd
