// Package conntrack deletes connection tracking entries of UDP clients over
// ctnetlink.
//
// Its input is a set of flows: frontends and backends with outdated entries. One
// dump per address family finds the entries of a whole set, filtered by what the
// flows have in common. It never deletes other entries.
package conntrack
