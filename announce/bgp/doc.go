// Package bgp announces prefixes to routers by BGP-4 (RFC 4271). It is a speaker that only
// announces: routes of the routers are received and skipped, never stored or used.
//
// Its inputs are the prefixes (Announce, Withdraw) and the settings of the peers. Its outputs are
// the sessions, and reports of their states with reasons in an operator's terms. It only connects
// and never listens, so there is one connection for each peer. It owns its goroutines and, for
// graceful restart, one small file. It never changes routes or addresses of this host.
//
// A change of one prefix costs one UPDATE for each peer, whatever the number of prefixes: each
// session follows a table's change feed. A peer that reads slowly delays nobody else.
//
//	config.go        settings and their validation
//	message.go       framing of messages
//	open.go          OPEN and capabilities
//	update.go        UPDATE messages, with as many prefixes as fit into one
//	notification.go  NOTIFICATION and its reasons in words
//	status.go        the state of a session for operators
//	speaker.go       the prefixes, the peers and what changes them
//	peer.go          one peer: connecting, retrying, reporting
//	session.go       one connection: handshake, keepalives, updates
//	dial.go          TCP connections: MD5, TTL, source address; reasons of failures
//	discovery.go     unnumbered peers: router advertisements
//	record.go        the record of graceful restart
package bgp
