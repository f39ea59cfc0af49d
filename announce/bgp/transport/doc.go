// Package transport opens the TCP connections of BGP sessions, with the options that BGP needs: MD5
// signatures, the TTL and TTL security, and the traffic class.
//
// Its input is how to connect to a router, or where routers connect to. Its output is a connection or a listener, or a
// reason in an operator's terms, such as a wrong password. It also chooses the next hops that a connection suggests.
//
//	dial.go      connections and the reasons of failures
//	listen.go    listeners, and the options of accepted connections
//	next_hop.go  the addresses of this host to announce as next hops
package transport
