package message

import "encoding/binary"

// Path attributes: flags and types (RFC 4271, 4.3 and 5; RFC 1997; RFC 4760; RFC 6793).
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
	attrAS4Path       = 17
	asSequence        = 2 // type of an AS_PATH segment
	originIGP         = 0
)

// ASTrans stands for an ASN of four bytes where there is room for two (RFC 6793).
const ASTrans = 23456

// PathAttributes are the attributes of routes that begin at this host, without their next hop.
type PathAttributes struct {
	ASN         uint32 // of this host
	IBGP        bool   // the peer is in the same AS
	MED         uint32 // 0: not sent, which means the same
	LocalPref   uint32 // with IBGP only
	Communities []Community
}

// Append appends the attributes. as4 says that the peer understands ASNs of four bytes.
func (a *PathAttributes) Append(b []byte, as4 bool) []byte {
	b = append(b, flagTransitive, attrOrigin, 1, originIGP)
	switch {
	case a.IBGP: // the path within the AS is empty
		b = append(b, flagTransitive, attrASPath, 0)
	case as4:
		b = append(b, flagTransitive, attrASPath, 6, asSequence, 1)
		b = binary.BigEndian.AppendUint32(b, a.ASN)
	default:
		short := asn2(a.ASN)
		b = append(b, flagTransitive, attrASPath, 4, asSequence, 1)
		b = binary.BigEndian.AppendUint16(b, short)
		if short == ASTrans {
			b = append(b, flagOptional|flagTransitive, attrAS4Path, 6, asSequence, 1)
			b = binary.BigEndian.AppendUint32(b, a.ASN)
		}
	}
	if a.MED != 0 {
		b = binary.BigEndian.AppendUint32(append(b, flagOptional, attrMED, 4), a.MED)
	}
	if a.IBGP {
		b = binary.BigEndian.AppendUint32(append(b, flagTransitive, attrLocalPref, 4), a.LocalPref)
	}
	if len(a.Communities) > 0 {
		size := 4 * len(a.Communities)
		b = append(b, flagOptional|flagTransitive|flagExtendedLength, attrCommunities, byte(size>>8), byte(size))
		for _, c := range a.Communities {
			b = binary.BigEndian.AppendUint32(b, uint32(c))
		}
	}
	return b
}

// asn2 returns an ASN in two bytes.
func asn2(asn uint32) uint16 {
	if asn > 0xffff {
		return ASTrans
	}
	return uint16(asn)
}
