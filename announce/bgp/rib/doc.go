// Package rib has the routes that this host announces by BGP (RFC 4271, 3.2): the Loc-RIB, which is
// one set of prefixes for all peers, and an Adj-RIB-Out for each peer, which turns the set and its
// changes into UPDATE messages.
//
// The Loc-RIB is a table with a change feed (internal/table). An Adj-RIB-Out stores no routes: it is
// a position in that feed, and the path attributes, which are the same for all routes of a peer. So
// a change of one prefix costs one UPDATE for each peer, whatever the number of prefixes, and a peer
// that reads slowly delays nobody else.
//
//	loc_rib.go      the prefixes
//	adj_rib_out.go  their messages for one peer
package rib
