package bgp

import (
	"encoding/binary"
	"net/netip"
	"time"
)

const (
	bgpVersion = 4
	asTrans    = 23456 // RFC 6793
	optionCaps = 2     // optional parameter "capabilities" (RFC 5492)
	safiIP     = 1     // unicast
)

// capability codes.
const (
	capMultiprotocol = 1  // RFC 4760
	capRefresh       = 2  // RFC 2918
	capNextHop       = 5  // extended next hop (RFC 8950)
	capRestart       = 64 // RFC 4724
	capASN4          = 65 // RFC 6793
)

// The bits of the graceful restart capability (RFC 4724, section 3).
const (
	restartBit    = 0x80      // R: the sender has restarted
	preservedBit  = 0x80      // F, for each family: forwarding went on meanwhile
	restartTimeOf = 1<<12 - 1 // the other 12 bits: seconds
)

// family is an address family: 4 or 6.
type family uint8

const (
	ip4 family = iota
	ip6
	families
)

func (f family) afi() uint16 { return uint16(f) + 1 } // 1: IPv4, 2: IPv6

func (f family) String() string { return [...]string{"IPv4", "IPv6"}[f] }

func familyOf(afi uint16, safi uint8) (family, bool) {
	return family(afi - 1), safi == safiIP && (afi == 1 || afi == 2)
}

// open is the content of an OPEN message.
type open struct {
	asn       uint32
	holdTime  time.Duration // whole seconds
	id        netip.Addr
	families  [families]bool
	refresh   bool
	nextHop6  bool // IPv4 routes may have an IPv6 next hop
	restart   bool // graceful restart
	restarted bool
	// restartTime is how long to keep the sender's routes after a failure of its session.
	restartTime time.Duration
	multi, as4  bool // has these capabilities at all
}

// append appends the message. An announced family is preserved in a restart: the dataplane's
// forwarding doesn't depend on this process.
func (o *open) append(b []byte) []byte {
	at := len(b)
	b = beginMessage(b, typeOpen)
	short := o.asn
	if short > 0xffff {
		short = asTrans
	}
	b = append(b, bgpVersion)
	b = binary.BigEndian.AppendUint16(b, uint16(short))
	b = binary.BigEndian.AppendUint16(b, uint16(o.holdTime/time.Second))
	b = append(b, o.id.AsSlice()...)
	var caps []byte
	for f := range families {
		if o.families[f] {
			caps = append(caps, capMultiprotocol, 4, 0, byte(f.afi()), 0, safiIP)
		}
	}
	if o.refresh {
		caps = append(caps, capRefresh, 0)
	}
	if o.nextHop6 { // IPv4 unicast with the next hop's family IPv6
		caps = append(caps, capNextHop, 6, 0, 1, 0, safiIP, 0, 2)
	}
	caps = binary.BigEndian.AppendUint32(append(caps, capASN4, 4), o.asn)
	if o.restart {
		flags := uint16(o.restartTime / time.Second)
		if o.restarted {
			flags |= restartBit << 8
		}
		caps = append(caps, capRestart, 2, byte(flags>>8), byte(flags))
		size := len(caps) - 3
		for f := range families {
			if o.families[f] {
				caps = append(caps, 0, byte(f.afi()), safiIP, preservedBit)
				caps[size] += 4
			}
		}
	}
	b = append(b, byte(len(caps)+2), optionCaps, byte(len(caps)))
	b = append(b, caps...)
	endMessage(b[at:])
	return b
}

// parseOpen reads the body of an OPEN message. A malformed one gives a *notification.
func parseOpen(b []byte) (open, error) {
	malformed := &notification{code: codeOpen, subcode: 0}
	if len(b) < 10 {
		return open{}, malformed
	}
	if b[0] != bgpVersion {
		return open{}, &notification{code: codeOpen, subcode: openVersion, data: []byte{0, bgpVersion}}
	}
	o := open{asn: uint32(binary.BigEndian.Uint16(b[1:])), holdTime: time.Duration(binary.BigEndian.Uint16(b[3:])) * time.Second,
		id: netip.AddrFrom4([4]byte(b[5:9]))}
	size, options, wide := int(b[9]), b[10:], 1
	if size == 255 && len(options) >= 3 && options[0] == 255 { // extended length (RFC 9072)
		size, options, wide = int(binary.BigEndian.Uint16(options[1:])), options[3:], 2
	}
	if size != len(options) {
		return open{}, malformed
	}
	for len(options) > 0 {
		typ, value, rest, ok := nextOption(options, wide)
		if !ok {
			return open{}, malformed
		}
		options = rest
		if typ != optionCaps {
			return open{}, &notification{code: codeOpen, subcode: openParameter}
		}
		for len(value) > 0 {
			code, data, rest, ok := nextOption(value, 1)
			if !ok || !o.capability(code, data) {
				return open{}, malformed
			}
			value = rest
		}
	}
	if !o.multi { // RFC 4760, section 8: IPv4 unicast only
		o.families[ip4] = true
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

// capability reads one capability; unknown ones are ignored. It returns false if it is malformed.
func (o *open) capability(code byte, b []byte) bool {
	switch code {
	case capMultiprotocol:
		if len(b) != 4 {
			return false
		}
		o.multi = true
		if f, ok := familyOf(binary.BigEndian.Uint16(b), b[3]); ok {
			o.families[f] = true
		}
	case capRefresh:
		o.refresh = true
	case capNextHop:
		if len(b)%6 != 0 {
			return false
		}
		for ; len(b) > 0; b = b[6:] {
			if [6]byte(b) == [6]byte{0, 1, 0, safiIP, 0, 2} {
				o.nextHop6 = true
			}
		}
	case capASN4:
		if len(b) != 4 {
			return false
		}
		o.as4, o.asn = true, binary.BigEndian.Uint32(b)
	case capRestart:
		if len(b) < 2 || len(b)%4 != 2 {
			return false
		}
		flags := binary.BigEndian.Uint16(b)
		o.restart, o.restarted = true, flags&(restartBit<<8) != 0
		o.restartTime = time.Duration(flags&restartTimeOf) * time.Second
	}
	return true
}

// check compares the peer's OPEN with the settings (RFC 4271, 6.2).
func (o *open) check(p *Peer, routerID netip.Addr) error {
	switch {
	case o.asn != p.ASN:
		return &notification{code: codeOpen, subcode: openBadAS, text: wrongASN(o.asn, p.ASN)}
	case o.id.IsUnspecified() || p.internal() && o.id == routerID: // RFC 6286, 2.2
		return &notification{code: codeOpen, subcode: openBadID, text: "router ID wrong: the router has this host's router ID, or 0.0.0.0"}
	case o.holdTime != 0 && o.holdTime < MinHoldTime:
		return &notification{code: codeOpen, subcode: openHoldTime}
	}
	return nil
}
