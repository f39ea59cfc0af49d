package bgp

import (
	"cmp"
	"encoding/binary"
	"net/netip"
)

// Path attributes: flags and type (RFC 4271, 4.3 and 5; RFC 1997; RFC 4760; RFC 6793).
const (
	flagOptional   = 0x80
	flagTransitive = 0x40
	flagLong       = 0x10 // the length has two bytes

	attrOrigin      = 1
	attrASPath      = 2
	attrNextHop     = 3
	attrMED         = 4
	attrLocalPref   = 5
	attrCommunities = 8
	attrReach       = 14
	attrUnreach     = 15
	attrAS4Path     = 17
	asSequence      = 2 // kind of an AS_PATH segment
	originIGP       = 0
)

// encoder makes the UPDATE messages of a session.
type encoder struct {
	attributes []byte               // all but the next hop
	nextHop    [families]netip.Addr // invalid: prefixes of this family can't be announced
}

// newEncoder prepares the attributes. as4 means that the peer knows 4-byte ASNs.
func newEncoder(p *Peer, a *Attributes, as4, draining bool, nextHop [families]netip.Addr) *encoder {
	b := []byte{flagTransitive, attrOrigin, 1, originIGP}
	switch {
	case p.internal(): // the path within the AS is empty
		b = append(b, flagTransitive, attrASPath, 0)
	case as4:
		b = append(b, flagTransitive, attrASPath, 6, asSequence, 1)
		b = binary.BigEndian.AppendUint32(b, p.LocalASN)
	default:
		short := uint16(asTrans)
		if p.LocalASN <= 0xffff {
			short = uint16(p.LocalASN)
		}
		b = append(b, flagTransitive, attrASPath, 4, asSequence, 1)
		b = binary.BigEndian.AppendUint16(b, short)
		if short == asTrans {
			b = append(b, flagOptional|flagTransitive, attrAS4Path, 6, asSequence, 1)
			b = binary.BigEndian.AppendUint32(b, p.LocalASN)
		}
	}
	if a.MED != 0 {
		b = binary.BigEndian.AppendUint32(append(b, flagOptional, attrMED, 4), a.MED)
	}
	if p.internal() {
		preference := cmp.Or(a.LocalPref, DefaultLocalPref)
		if draining { // RFC 8326, 4.2: the lowest, inside the AS
			preference = 0
		}
		b = binary.BigEndian.AppendUint32(append(b, flagTransitive, attrLocalPref, 4), preference)
	}
	communities := a.Communities
	if draining {
		communities = append(communities[:len(communities):len(communities)], GracefulShutdown)
	}
	if len(communities) > 0 {
		size := 4 * len(communities)
		b = append(b, flagOptional|flagTransitive|flagLong, attrCommunities, byte(size>>8), byte(size))
		for _, c := range communities {
			b = binary.BigEndian.AppendUint32(b, uint32(c))
		}
	}
	return &encoder{attributes: b, nextHop: nextHop}
}

// announce appends UPDATE messages that announce the prefixes, all of one family.
func (e *encoder) announce(b []byte, f family, prefixes []netip.Prefix) []byte {
	hop := e.nextHop[f].AsSlice()
	for len(prefixes) > 0 {
		at := len(b)
		b = append(beginMessage(b, typeUpdate), 0, 0) // nothing withdrawn
		sizeAt := len(b)
		b = append(b, 0, 0)
		if f == ip4 && len(hop) == 4 {
			b = append(b, e.attributes...)
			b = append(b, flagTransitive, attrNextHop, 4)
			b = append(b, hop...)
			setSize(b, sizeAt)
			b, prefixes = appendPrefixes(b, maxMessage-(len(b)-at), prefixes)
		} else {
			// MP_REACH_NLRI comes first (RFC 7606, 5.1).
			b = append(b, flagOptional|flagLong, attrReach)
			reachAt := len(b)
			b = append(b, 0, 0, 0, byte(f.afi()), safiIP, byte(len(hop)))
			b = append(append(b, hop...), 0)
			b, prefixes = appendPrefixes(b, maxMessage-(len(b)-at)-len(e.attributes), prefixes)
			setSize(b, reachAt)
			b = append(b, e.attributes...)
			setSize(b, sizeAt)
		}
		endMessage(b[at:])
	}
	return b
}

// withdraw appends UPDATE messages that withdraw the prefixes, all of one family.
func (e *encoder) withdraw(b []byte, f family, prefixes []netip.Prefix) []byte {
	for len(prefixes) > 0 {
		at := len(b)
		b = beginMessage(b, typeUpdate)
		sizeAt := len(b)
		b = append(b, 0, 0)
		if f == ip4 && !e.nextHop[ip4].Is6() {
			b, prefixes = appendPrefixes(b, maxMessage-(len(b)-at)-2, prefixes)
			setSize(b, sizeAt)
			b = append(b, 0, 0) // no attributes
		} else {
			b = append(b, 0, 0, flagOptional|flagLong, attrUnreach)
			unreachAt := len(b)
			b = append(b, 0, 0, 0, byte(f.afi()), safiIP)
			b, prefixes = appendPrefixes(b, maxMessage-(len(b)-at), prefixes)
			setSize(b, unreachAt)
			setSize(b, sizeAt+2)
		}
		endMessage(b[at:])
	}
	return b
}

// appendEndOfRIB appends the message that ends the initial routes of a family (RFC 4724, section
// 2).
func appendEndOfRIB(b []byte, f family) []byte {
	at := len(b)
	b = append(beginMessage(b, typeUpdate), 0, 0)
	if f == ip4 {
		b = append(b, 0, 0)
	} else {
		b = append(b, 0, 6, flagOptional, attrUnreach, 3, 0, byte(f.afi()), safiIP)
	}
	endMessage(b[at:])
	return b
}

// setSize sets the two bytes at i to the number of bytes after them.
func setSize(b []byte, i int) { binary.BigEndian.PutUint16(b[i:], uint16(len(b)-i-2)) }

// appendPrefixes appends as many prefixes as fit into room bytes, and returns the others.
func appendPrefixes(b []byte, room int, prefixes []netip.Prefix) ([]byte, []netip.Prefix) {
	for i, p := range prefixes {
		size := (p.Bits() + 7) / 8
		if room -= 1 + size; room < 0 {
			return b, prefixes[i:]
		}
		b = append(b, byte(p.Bits()))
		if a := p.Addr(); a.Is4() {
			raw := a.As4()
			b = append(b, raw[:size]...)
		} else {
			raw := a.As16()
			b = append(b, raw[:size]...)
		}
	}
	return b, nil
}
