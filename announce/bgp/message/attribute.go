package message

import (
	"encoding/binary"
	"math"
)

// Path attributes: flags and types (RFC 4271, 4.3 and 5; RFC 1997; RFC 4360; RFC 4760; RFC 6793; RFC 8092).
const (
	flagOptional       = 0x80
	flagTransitive     = 0x40
	flagExtendedLength = 0x10 // the length has two bytes

	attrOrigin        = 1
	attrASPath        = 2
	attrNextHop       = 3
	attrMED           = 4
	attrLocalPref     = 5
	attrCommunities   = 8
	attrMPReachNLRI   = 14
	attrMPUnreachNLRI = 15

	attrExtendedCommunities = 16
	attrAS4Path             = 17
	attrLargeCommunities    = 32

	asSequence = 2 // type of an AS_PATH segment
	originIGP  = 0

	// Link Bandwidth (RFC 10005): an extended community of two-octet ASNs, which may pass the border of the AS or not.
	extTransitiveAS    = 0x00
	extNonTransitiveAS = 0x40
	extLinkBandwidth   = 0x04
)

// ASTrans stands for an ASN of four bytes where there is room for two (RFC 6793).
const ASTrans = 23456

// PathAttributes are the attributes of routes that begin at this host, without their next hop.
type PathAttributes struct {
	ASN              uint32 // of this host
	IBGP             bool   // the peer is in the same AS
	Prepend          int    // without IBGP: how often the ASN is there once more, up to 62: the length of an AS_PATH is one byte
	MED              uint32 // 0: not sent, which means the same
	LocalPref        uint32 // with IBGP only
	Communities      []Community
	LargeCommunities []LargeCommunity
	LinkBandwidth    float32 // bytes per second; 0: not sent
}

// Append appends the attributes. as4 says that the peer understands ASNs of four bytes.
func (a *PathAttributes) Append(b []byte, as4 bool) []byte {
	b = append(b, flagTransitive, attrOrigin, 1, originIGP)
	short := asn2(a.ASN)
	switch {
	case a.IBGP: // the path within the AS is empty
		b = append(b, flagTransitive, attrASPath, 0)
	case as4:
		b = a.appendPath(append(b, flagTransitive, attrASPath), 4)
	default:
		b = a.appendPath(append(b, flagTransitive, attrASPath), 2)
	}
	if a.MED != 0 {
		b = binary.BigEndian.AppendUint32(append(b, flagOptional, attrMED, 4), a.MED)
	}
	if a.IBGP {
		b = binary.BigEndian.AppendUint32(append(b, flagTransitive, attrLocalPref, 4), a.LocalPref)
	}
	if n := len(a.Communities); n > 0 {
		b = appendHead(b, attrCommunities, 4*n)
		for _, c := range a.Communities {
			b = binary.BigEndian.AppendUint32(b, uint32(c))
		}
	}
	if a.LinkBandwidth > 0 {
		kind := byte(extTransitiveAS)
		if a.IBGP {
			kind = extNonTransitiveAS
		}
		b = append(b, flagOptional|flagTransitive, attrExtendedCommunities, 8, kind, extLinkBandwidth)
		b = binary.BigEndian.AppendUint16(b, short)
		b = binary.BigEndian.AppendUint32(b, math.Float32bits(a.LinkBandwidth))
	}
	if !a.IBGP && !as4 && short == ASTrans {
		b = a.appendPath(append(b, flagOptional|flagTransitive, attrAS4Path), 4)
	}
	if n := len(a.LargeCommunities); n > 0 {
		b = appendHead(b, attrLargeCommunities, 12*n)
		for _, c := range a.LargeCommunities {
			for _, part := range c {
				b = binary.BigEndian.AppendUint32(b, part)
			}
		}
	}
	return b
}

// appendPath appends the length and the value of an AS_PATH whose ASNs have this many bytes.
func (a *PathAttributes) appendPath(b []byte, bytes int) []byte {
	n := 1 + a.Prepend
	b = append(b, byte(2+bytes*n), asSequence, byte(n))
	for range n {
		if bytes == 4 {
			b = binary.BigEndian.AppendUint32(b, a.ASN)
		} else {
			b = binary.BigEndian.AppendUint16(b, asn2(a.ASN))
		}
	}
	return b
}

// appendHead appends the head of an optional transitive attribute whose value may be longer than 255 bytes.
func appendHead(b []byte, attr byte, size int) []byte {
	return append(b, flagOptional|flagTransitive|flagExtendedLength, attr, byte(size>>8), byte(size))
}

// asn2 returns an ASN in two bytes.
func asn2(asn uint32) uint16 {
	if asn > 0xffff {
		return ASTrans
	}
	return uint16(asn)
}
