// Package transport opens the TCP connections of BGP sessions, with the options that BGP needs: MD5
// signatures, the TTL and TTL security, and the traffic class.
//
// Its input is how to connect to a router. Its output is a connection, or a reason in an operator's
// terms, such as a wrong password. It only connects and never listens. It also chooses the next hops
// that a connection suggests.
//
//	dial.go      connections and the reasons of failures
//	next_hop.go  the addresses of this host to announce as next hops
package transport
