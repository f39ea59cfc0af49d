// Package filter is the nftables table of a dataplane in the kernel: it refuses and
// restricts clients, marks packets of services by firewall mark, and masquerades.
//
// The rules never change (layout.go). All state is in sets and maps (set.go), so a
// change of a frontend is a change of a few elements in one transaction. Table
// applies changes, rebuilds the table, and reads it into a Ruleset. A dataplane
// decides which elements a frontend needs. It may have a layout with rules, sets and
// maps of its own (base.go), which change in the same transaction. The package owns
// one table of family inet and never touches another.
package filter
