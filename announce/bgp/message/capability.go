package message

import (
	"encoding/binary"
	"time"
)

// The codes of capabilities.
const (
	capMultiprotocol   = 1  // RFC 4760
	capRouteRefresh    = 2  // RFC 2918
	capExtendedNextHop = 5  // RFC 8950
	capGracefulRestart = 64 // RFC 4724
	capAS4             = 65 // RFC 6793
)

// The bits of the graceful restart capability (RFC 4724, section 3).
const (
	restartBit      = 0x8000    // R: the sender has restarted
	restartTimeBits = 1<<12 - 1 // seconds
	forwardingBit   = 0x80      // F, for each family: forwarding went on meanwhile
)

// Capabilities are what the sender of an OPEN can do.
type Capabilities struct {
	Families        [Families]bool
	RouteRefresh    bool
	ExtendedNextHop bool // IPv4 routes may have an IPv6 next hop
	GracefulRestart bool
	Restarted       bool // the R bit: the sender has restarted
	// RestartTime is how long to keep the sender's routes after a failure of its session.
	RestartTime time.Duration

	// Multiprotocol and AS4 are set by ParseOpen if the OPEN has the capability at all. Append
	// always adds both.
	Multiprotocol, AS4 bool
}

// append appends the capabilities. Each family is marked as preserved in a restart: the dataplane's
// forwarding doesn't depend on this process.
func (c *Capabilities) append(b []byte, asn uint32) []byte {
	for f := range Families {
		if c.Families[f] {
			b = append(b, capMultiprotocol, 4, 0, byte(f.afi()), 0, safiUnicast)
		}
	}
	if c.RouteRefresh {
		b = append(b, capRouteRefresh, 0)
	}
	if c.ExtendedNextHop { // IPv4 unicast with the next hop's family IPv6
		b = append(b, capExtendedNextHop, 6, 0, 1, 0, safiUnicast, 0, 2)
	}
	b = binary.BigEndian.AppendUint32(append(b, capAS4, 4), asn)
	if c.GracefulRestart {
		flags := uint16(c.RestartTime / time.Second)
		if c.Restarted {
			flags |= restartBit
		}
		b = append(b, capGracefulRestart, 2, byte(flags>>8), byte(flags))
		size := len(b) - 3
		for f := range Families {
			if c.Families[f] {
				b = append(b, 0, byte(f.afi()), safiUnicast, forwardingBit)
				b[size] += 4
			}
		}
	}
	return b
}

// capability reads one capability; unknown ones are ignored. It returns false if it is malformed.
func (o *Open) capability(code byte, b []byte) bool {
	switch code {
	case capMultiprotocol:
		if len(b) != 4 {
			return false
		}
		o.Multiprotocol = true
		if f, ok := parseFamily(binary.BigEndian.Uint16(b), b[3]); ok {
			o.Families[f] = true
		}
	case capRouteRefresh:
		o.RouteRefresh = true
	case capExtendedNextHop:
		if len(b)%6 != 0 {
			return false
		}
		for ; len(b) > 0; b = b[6:] {
			if [6]byte(b) == [6]byte{0, 1, 0, safiUnicast, 0, 2} {
				o.ExtendedNextHop = true
			}
		}
	case capAS4:
		if len(b) != 4 {
			return false
		}
		o.AS4, o.ASN = true, binary.BigEndian.Uint32(b)
	case capGracefulRestart:
		if len(b) < 2 || len(b)%4 != 2 {
			return false
		}
		flags := binary.BigEndian.Uint16(b)
		o.GracefulRestart, o.Restarted = true, flags&restartBit != 0
		o.RestartTime = time.Duration(flags&restartTimeBits) * time.Second
	}
	return true
}
