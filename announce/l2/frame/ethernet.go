package frame

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// MAC is an Ethernet address. The zero MAC means "none".
type MAC [6]byte

// String returns the usual format, such as 52:54:00:12:34:56.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// Broadcast is the address of all stations.
var Broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// Types of Ethernet frames.
const (
	TypeARP  = 0x0806
	TypeIPv6 = 0x86dd
)

const ethernetHeader = 14

func appendEthernet(b []byte, dst, src MAC, typ uint16) []byte {
	b = append(b, dst[:]...)
	b = append(b, src[:]...)
	return binary.BigEndian.AppendUint16(b, typ)
}

// multicastMAC maps an IPv6 multicast address (RFC 2464, section 7).
func multicastMAC(group netip.Addr) MAC {
	a := group.As16()
	return MAC{0x33, 0x33, a[12], a[13], a[14], a[15]}
}
