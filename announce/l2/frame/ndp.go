package frame

import (
	"encoding/binary"
	"net/netip"
)

const (
	ipv6Header   = 40
	ndBody       = 24 // of solicitations and advertisements, without options
	ndOption     = 8  // a link-layer address
	icmpv6       = 58
	typeSolicit  = 135
	typeAdvert   = 136
	optSource    = 1
	optTarget    = 2
	flagSolicit  = 0x40
	flagOverride = 0x20
	hopLimit     = 255 // a router would have reduced it
)

var allNodes = netip.MustParseAddr("ff02::1")

// SolicitedNode returns the multicast group in which a host is asked for addr (RFC 4291, section
// 2.7.1).
func SolicitedNode(addr netip.Addr) netip.Addr {
	a := addr.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 11: 1, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]})
}

// NDPClaim returns what a neighbor solicitation or advertisement says.
func NDPClaim(b []byte) (c Claim) {
	if len(b) < ethernetHeader+ipv6Header+ndBody || binary.BigEndian.Uint16(b[12:]) != TypeIPv6 {
		return c
	}
	ip := b[ethernetHeader:]
	size := int(binary.BigEndian.Uint16(ip[4:]))
	if ip[0]>>4 != 6 || ip[6] != icmpv6 || ip[7] != hopLimit || size < ndBody || size > len(ip)-ipv6Header {
		return c
	}
	src, dst := netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
	nd := ip[ipv6Header : ipv6Header+size]
	if nd[1] != 0 || checksum(src, dst, nd) != 0 {
		return c
	}
	target := netip.AddrFrom16([16]byte(nd[8:24]))
	if target.IsMulticast() || target.IsUnspecified() {
		return c
	}
	want := byte(optSource)
	if nd[0] == typeAdvert {
		want = optTarget
	}
	mac, ok := linkAddress(nd[ndBody:], want)
	if !ok {
		return Claim{}
	}
	if mac == (MAC{}) {
		mac = MAC(b[6:12])
	}
	switch nd[0] {
	case typeSolicit:
		c = Claim{Addr: target, From: mac, Kind: Question, Asker: src}
		if src.IsUnspecified() {
			c.Kind, c.From = Probe, MAC(b[6:12])
		}
	case typeAdvert:
		c = Claim{Addr: target, From: mac, Kind: Holds}
	}
	return c
}

// linkAddress returns the link-layer address in the options, if there is one. It returns false for
// malformed options: RFC 4861 requires that such a message is ignored.
func linkAddress(options []byte, want byte) (mac MAC, ok bool) {
	for len(options) > 0 {
		if len(options) < 2 || options[1] == 0 || int(options[1])*8 > len(options) {
			return MAC{}, false
		}
		size := int(options[1]) * 8
		if options[0] == want && size == ndOption {
			mac = MAC(options[2:8])
		}
		options = options[size:]
	}
	return mac, true
}

// appendND appends a frame with one link-layer address option, or none if option is 0.
func appendND(b []byte, to, from MAC, src, dst netip.Addr, typ, flags byte, target netip.Addr, option byte) []byte {
	b = appendEthernet(b, to, from, TypeIPv6)
	size := ndBody
	if option != 0 {
		size += ndOption
	}
	b = append(b, 0x60, 0, 0, 0, 0, byte(size), icmpv6, hopLimit)
	b = append(b, src.AsSlice()...)
	b = append(b, dst.AsSlice()...)
	start := len(b)
	b = append(b, typ, 0, 0, 0, flags, 0, 0, 0)
	b = append(b, target.AsSlice()...)
	if option != 0 {
		b = append(b, option, ndOption/8)
		b = append(b, from[:]...)
	}
	binary.BigEndian.PutUint16(b[start+2:], checksum(src, dst, b[start:]))
	return b
}

// appendAdvert appends an advertisement with the override flag. To and dst are the receivers.
func appendAdvert(b []byte, to, from MAC, dst netip.Addr, flags byte, addr netip.Addr) []byte {
	return appendND(b, to, from, addr, dst, typeAdvert, flags|flagOverride, addr, optTarget)
}

func appendNDPAnnounce(b []byte, from MAC, addr netip.Addr) []byte {
	return appendAdvert(b, multicastMAC(allNodes), from, allNodes, 0, addr)
}

// appendSolicit appends a question for addr. With an unspecified source, it is the probe of duplicate
// address detection. A holder answers that to all nodes, and any other source with a unicast.
func appendSolicit(b []byte, from MAC, src, addr netip.Addr) []byte {
	group, option := SolicitedNode(addr), byte(optSource)
	if src.IsUnspecified() {
		option = 0
	}
	return appendND(b, multicastMAC(group), from, src, group, typeSolicit, 0, addr, option)
}

// checksum returns the checksum of an ICMPv6 message (RFC 8200, section 8.1). It is 0 for a message
// with a correct one.
func checksum(src, dst netip.Addr, m []byte) uint16 {
	sum := uint32(len(m)) + icmpv6
	add := func(b []byte) {
		for ; len(b) >= 2; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	s, d := src.As16(), dst.As16()
	add(s[:])
	add(d[:])
	add(m)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
