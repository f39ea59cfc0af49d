// Package session runs one BGP session on a connection that is open: the part of the finite state
// machine of RFC 4271, section 8, from OpenSent to Established and to the end of the connection.
//
// Its inputs are the connection, the settings, the Loc-RIB and the attributes of its routes. Its
// outputs are messages to the router, the status, and the reason of the end. A Session owns its
// connection and one goroutine that reads. It never connects, and never tries again. Routes of the
// router are skipped.
//
//	session.go    the inputs and outputs, and the end of a session
//	state.go      the states and the status
//	handshake.go  OPEN and the first KEEPALIVE, and what both sides have negotiated
//	receive.go    the reading of messages, and reasons for broken connections
//	send.go       UPDATE and KEEPALIVE messages
//	handover.go   sessions that go on in the next process
//	rib.go        the prefixes that are announced, and their UPDATE messages
package session
