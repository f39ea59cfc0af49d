// Package conntrack lists, deletes and makes connection tracking entries over ctnetlink.
//
// Its input is what the entries have in common, and a function that decides about each of them. The
// kernel filters a dump by the former, and sends only the entries that match. A deletion costs one more
// message for each entry. Entries are made of connections that this host has opened (older.go).
package conntrack
