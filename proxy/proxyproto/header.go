package proxyproto

import (
	"encoding/binary"
	"net/netip"
	"strconv"
)

// Limits on the size of a header, in bytes.
const (
	// MaxV1 is the specification's limit for version 1, with the line's end.
	MaxV1 = 107
	// MaxSize is ours for version 2, which allows 65551. It is nginx's limit, too, and has room for a
	// client certificate among the TLVs.
	MaxSize = 4096
)

// signature begins a header of version 2. After it come a byte each for version and command, and for
// family and transport, and the length of the rest in two bytes.
const (
	signature = "\r\n\r\n\x00\r\nQUIT\n"
	fixed     = len(signature) + 4
)

// The byte of version and command: version 2 in the upper four bits, the command in the lower.
const (
	commandLocal = 0x20
	commandProxy = 0x21
)

// The families of version 2, in the upper four bits of their byte, with the transport in the lower.
const (
	unspec      = 0x00
	inetStream  = 0x11
	inetDgram   = 0x12
	inet6Stream = 0x21
	inet6Dgram  = 0x22
	unixStream  = 0x31
	unixDgram   = 0x32
)

// Sizes of the addresses and ports of version 2.
const (
	inetSize  = 2*4 + 2*2
	inet6Size = 2*16 + 2*2
)

// Version is the version of a header.
type Version uint8

// V1 is a line of text, V2 is binary.
const (
	V1 Version = 1
	V2 Version = 2
)

// Header states the two ends of a client's connection: the client, and the address that it connected
// to. Addresses are never IPv4-mapped and have no zone. In the zero Header, which is only read, the client is the
// sender itself, as for its health checks, or unknown.
type Header struct {
	Source, Destination netip.AddrPort
}

// Known reports whether h has addresses.
func (h Header) Known() bool { return h.Source.IsValid() }

// Append appends h, which has addresses, as a header of version v to b: at most 107 bytes in version 1, 52 in
// version 2. If only one of the addresses is IPv4, both are written as IPv6.
func (h Header) Append(b []byte, v Version) []byte {
	if v == V1 {
		return h.appendV1(b)
	}
	return h.appendV2(b)
}

func (h Header) appendV1(b []byte) []byte {
	src, dst, v4 := h.ends()
	b = append(b, "PROXY TCP6 "...)
	if v4 {
		b[len(b)-2] = '4'
	}
	b = append(src.AppendTo(b), ' ')
	b = append(dst.AppendTo(b), ' ')
	b = append(strconv.AppendUint(b, uint64(h.Source.Port()), 10), ' ')
	b = strconv.AppendUint(b, uint64(h.Destination.Port()), 10)
	return append(b, "\r\n"...)
}

func (h Header) appendV2(b []byte) []byte {
	b = append(b, signature...)
	src, dst, v4 := h.ends()
	if v4 {
		b = append(b, commandProxy, inetStream, 0, inetSize)
	} else {
		b = append(b, commandProxy, inet6Stream, 0, inet6Size)
	}
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, h.Source.Port())
	return binary.BigEndian.AppendUint16(b, h.Destination.Port())
}

// ends returns both addresses in the same family.
func (h Header) ends() (src, dst netip.Addr, v4 bool) {
	src, dst = h.Source.Addr().Unmap(), h.Destination.Addr().Unmap()
	if src.Is4() && dst.Is4() {
		return src, dst, true
	}
	return netip.AddrFrom16(src.As16()), netip.AddrFrom16(dst.As16()), false // without zones
}
