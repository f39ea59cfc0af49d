// Package watch tells a dataplane at once what other programs change in the kernel: the local routes of its virtual
// addresses, the device that they lead to, the forwarding of packets, and its nftables table.
//
// Its input is the kernel's events. Its output is a signal, and on request a Seen: what differs from what the dataplane
// made, as far as the events show, and which program changed the table. It repairs
// nothing. IPVS has no events, so only a read finds its changes.
package watch
