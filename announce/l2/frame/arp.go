package frame

import (
	"encoding/binary"
	"net/netip"
)

// Operations of ARP.
const (
	opRequest = 1
	opReply   = 2
)

const arpBody = 28 // for Ethernet and IPv4

// Claim is what a frame of another host says about an address, in either family.
type Claim struct {
	Addr netip.Addr // the address that the frame is about
	From MAC        // the station
	Kind Kind
	// Asker is the sender of a Question or Probe, for the answer. It is unspecified for a Probe.
	Asker netip.Addr
}

// Kind is the meaning of a frame.
type Kind uint8

// The kinds. Any other frame is None.
const (
	None     Kind = iota
	Question      // asks which station has the address
	Probe         // the same, from a station that intends to use the address
	Holds         // the station says that it has the address
)

// ARPClaims returns what an ARP frame says: at most that its sender has an address, and a question about
// the target.
func ARPClaims(b []byte) (claims [2]Claim) {
	if len(b) < ethernetHeader+arpBody || binary.BigEndian.Uint16(b[12:]) != TypeARP {
		return claims
	}
	p := b[ethernetHeader:]
	// Ethernet, IPv4, lengths 6 and 4.
	if binary.BigEndian.Uint32(p) != 0x0001_0800 || p[4] != 6 || p[5] != 4 {
		return claims
	}
	op := binary.BigEndian.Uint16(p[6:])
	if op != opRequest && op != opReply {
		return claims
	}
	from := MAC(p[8:14])
	sender, target := netip.AddrFrom4([4]byte(p[14:18])), netip.AddrFrom4([4]byte(p[24:28]))
	if !sender.IsUnspecified() {
		claims[0] = Claim{Addr: sender, From: from, Kind: Holds}
	}
	if op == opRequest && sender != target && !target.IsUnspecified() {
		claims[1] = Claim{Addr: target, From: from, Kind: Question, Asker: sender}
		if sender.IsUnspecified() {
			claims[1].Kind = Probe
		}
	}
	return claims
}

// appendARP appends a frame that is sent to the station to.
func appendARP(b []byte, op uint16, to, fromMAC MAC, from netip.Addr, targetMAC MAC, target netip.Addr) []byte {
	b = appendEthernet(b, to, fromMAC, TypeARP)
	b = append(b, 0, 1, 8, 0, 6, 4)
	b = binary.BigEndian.AppendUint16(b, op)
	b = append(b, fromMAC[:]...)
	b = append(b, from.AsSlice()...)
	b = append(b, targetMAC[:]...)
	return append(b, target.AsSlice()...)
}

// appendARPAnnounce appends a gratuitous request (RFC 5227, section 2.3).
func appendARPAnnounce(b []byte, from MAC, addr netip.Addr) []byte {
	return appendARP(b, opRequest, Broadcast, from, addr, MAC{}, addr)
}

// appendARPProbe appends a request without a sender address (RFC 5227, section 2.1), which changes
// no neighbor cache.
func appendARPProbe(b []byte, from MAC, addr netip.Addr) []byte {
	return appendARP(b, opRequest, Broadcast, from, netip.IPv4Unspecified(), MAC{}, addr)
}
