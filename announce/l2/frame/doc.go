// Package frame encodes and decodes the Ethernet frames of layer 2 announcements: ARP (RFC 826,
// RFC 5227) and neighbor discovery (RFC 4861, RFC 4862).
//
// Functions that append take a buffer and return it with one whole frame, from the Ethernet header
// on. The decoders accept what a packet socket delivered, never panic, and ignore the padding of
// short frames. The package does no I/O and decides nothing.
package frame
