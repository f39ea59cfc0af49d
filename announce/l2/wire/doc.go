// Package wire sends and receives the frames of announcements: packet sockets for ARP and neighbor
// discovery on all Ethernet interfaces of a network namespace, and the membership in the multicast
// groups in which IPv6 addresses are asked for. It decides nothing, and doesn't look into frames
// except for the kernel's filter of ICMPv6 messages.
package wire
