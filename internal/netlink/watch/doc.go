// Package watch tells a dataplane at once what other programs change in the kernel: the addresses of its device, the
// device itself, and its nftables table.
//
// Its input is the kernel's events. Its output is a signal, and on request a Seen: what differs from what the dataplane
// made, as far as the events show, and which program changed it. It repairs
// nothing, and asks the kernel only for a single IPv6 address whose event is late. IPVS has no events, so only a read finds its changes.
package watch
