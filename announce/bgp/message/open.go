package message

import (
	"encoding/binary"
	"net/netip"
	"time"
)

const (
	version            = 4
	optionCapabilities = 2   // optional parameter (RFC 5492)
	extendedLength     = 255 // marks optional parameters of extended length (RFC 9072)
)

// Open is the content of an OPEN message.
type Open struct {
	ASN      uint32
	HoldTime time.Duration // whole seconds; 0: no hold timer
	RouterID netip.Addr    // an IPv4 address; the RFC calls it BGP Identifier
	Capabilities
}

// Append appends the message.
func (o *Open) Append(b []byte) []byte {
	at := len(b)
	b = append(begin(b, TypeOpen), version)
	b = binary.BigEndian.AppendUint16(b, asn2(o.ASN))
	b = binary.BigEndian.AppendUint16(b, uint16(o.HoldTime/time.Second))
	b = append(b, o.RouterID.AsSlice()...)
	capabilities := o.Capabilities.append(nil, o.ASN)
	b = append(b, byte(len(capabilities)+2), optionCapabilities, byte(len(capabilities)))
	b = append(b, capabilities...)
	end(b[at:])
	return b
}

// ParseOpen reads the body of an OPEN message. A malformed one gives a *Notification.
func ParseOpen(b []byte) (Open, error) {
	malformed := &Notification{Code: CodeOpen, Subcode: 0}
	if len(b) < 10 {
		return Open{}, malformed
	}
	if b[0] != version {
		return Open{}, &Notification{Code: CodeOpen, Subcode: OpenVersion, Data: []byte{0, version}}
	}
	o := Open{ASN: uint32(binary.BigEndian.Uint16(b[1:])), HoldTime: time.Duration(binary.BigEndian.Uint16(b[3:])) * time.Second,
		RouterID: netip.AddrFrom4([4]byte(b[5:9]))}
	size, options, wide := int(b[9]), b[10:], 1
	if size == extendedLength && len(options) >= 3 && options[0] == extendedLength {
		size, options, wide = int(binary.BigEndian.Uint16(options[1:])), options[3:], 2
	}
	if size != len(options) {
		return Open{}, malformed
	}
	for len(options) > 0 {
		typ, value, rest, ok := nextOption(options, wide)
		if !ok {
			return Open{}, malformed
		}
		options = rest
		if typ != optionCapabilities {
			return Open{}, &Notification{Code: CodeOpen, Subcode: OpenParameter}
		}
		for len(value) > 0 {
			code, data, rest, ok := nextOption(value, 1)
			if !ok || !o.capability(code, data) {
				return Open{}, malformed
			}
			value = rest
		}
	}
	if !o.Multiprotocol { // RFC 4760, section 8: IPv4 unicast only
		o.Families[IPv4] = true
	}
	return o, nil
}

// nextOption splits a type, a length of wide bytes and a value off b.
func nextOption(b []byte, wide int) (typ byte, value, rest []byte, ok bool) {
	if len(b) < 1+wide {
		return 0, nil, nil, false
	}
	size := int(b[1])
	if wide == 2 {
		size = int(binary.BigEndian.Uint16(b[1:]))
	}
	head := 1 + wide
	if len(b)-head < size {
		return 0, nil, nil, false
	}
	return b[0], b[head : head+size], b[head+size:], true
}
