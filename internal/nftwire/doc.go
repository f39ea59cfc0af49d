// Package nftwire sends nftables transactions and reads tables over netlink.
//
// Transaction builds a batch of messages that the kernel applies atomically:
// tables, sets, chains, rules and elements. Conn commits transactions, and lists
// what a table of the inet family contains. The package decides nothing
// about the contents and owns no table. Types of github.com/google/nftables
// describe sets, chains and expressions; their encoding is our own because a
// change of one element must not allocate or list the table. The tests of the
// dataplanes compare it with that library's, byte by byte.
package nftwire
