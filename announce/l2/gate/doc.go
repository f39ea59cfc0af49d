// Package gate keeps this host silent about virtual addresses that it doesn't own.
//
// The gate is two nftables tables. "arp ironvip_l2" drops all ARP messages of the kernel's own that
// have a virtual address as their sender, on every interface: answers, and questions of connections
// from a virtual address. Only this process speaks for virtual addresses. "netdev ironvip_l2" drops
// what it (or anything else) sends on the announcing interfaces, unless the address is in the set
// mine and the interface in the set alive. Alive is the dead-man switch: its elements expire, and
// Refresh renews them with one send of three messages, whatever the number of addresses. Neither
// table touches anything but ARP and neighbor discovery.
//
// The gate owns both tables, replaces them as a whole, and never reads them. Closed tables remain
// when the process ends; Remove deletes them. A kernel without the egress hook (before 5.16) has
// only the first table, see Egress.
package gate
