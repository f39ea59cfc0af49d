// Package bgp announces prefixes to routers by BGP-4 (RFC 4271). It is a speaker that only
// announces: routes of the routers are received and skipped, never stored or used.
//
// Its inputs are a table of routes, which are prefixes with an operator's choices, and the settings of the peers. Its outputs are
// the sessions, and reports of their states with reasons in an operator's terms. It connects to
// a peer, or accepts the connections of a passive one, and never both, so that no collision has to be detected. It owns its goroutines and, for
// graceful restart, one small file. It never changes routes or addresses of this host.
//
// This package joins its parts, which know nothing of peers that come and go:
//
//	message     the wire format
//	session     one connection: handshake, keepalives, and the updates of the prefixes
//	transport   TCP connections: MD5, TTL; reasons of failures
//	unnumbered  router advertisements, to find peers without an address
//	bgptest     a router in memory, for tests
//
// Files:
//
//	config.go   the settings
//	status.go   the state of a session for operators
//	hint.go     what an operator can do about the end of a session
//	speaker.go  the peers and what changes them
//	peer.go     one peer: connecting, retrying, reporting
//	handover.go sessions that go on in the next process
//	accept.go   passive peers and ranges: listening, and the turns of connections
//	record.go   the record of graceful restart
package bgp
