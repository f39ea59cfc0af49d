package message

import (
	"encoding/binary"
	"net/netip"
)

// AppendAnnounce appends UPDATE messages that announce the prefixes, all of family f, with a next
// hop and what PathAttributes.Append has made. Each message is as full as possible: the attributes must
// leave room for a prefix, which the configuration's limit of communities makes sure of.
func AppendAnnounce(b []byte, f Family, attributes []byte, nextHop netip.Addr, prefixes []netip.Prefix) []byte {
	hop := nextHop.AsSlice()
	for len(prefixes) > 0 {
		at := len(b)
		b = append(begin(b, TypeUpdate), 0, 0) // nothing withdrawn
		sizeAt := len(b)
		b = append(b, 0, 0)
		if f == IPv4 && len(hop) == 4 {
			b = append(b, attributes...)
			b = append(b, flagTransitive, attrNextHop, 4)
			b = append(b, hop...)
			setSize(b, sizeAt)
			b, prefixes = appendNLRI(b, MaxSize-(len(b)-at), prefixes)
		} else {
			// MP_REACH_NLRI comes first (RFC 7606, 5.1).
			b = append(b, flagOptional|flagExtendedLength, attrMPReachNLRI)
			reachAt := len(b)
			b = append(b, 0, 0, 0, byte(f.afi()), safiUnicast, byte(len(hop)))
			b = append(append(b, hop...), 0)
			b, prefixes = appendNLRI(b, MaxSize-(len(b)-at)-len(attributes), prefixes)
			setSize(b, reachAt)
			b = append(b, attributes...)
			setSize(b, sizeAt)
		}
		end(b[at:])
	}
	return b
}

// AppendWithdraw appends UPDATE messages that withdraw the prefixes, all of family f, which were
// announced with the next hop.
func AppendWithdraw(b []byte, f Family, nextHop netip.Addr, prefixes []netip.Prefix) []byte {
	for len(prefixes) > 0 {
		at := len(b)
		b = begin(b, TypeUpdate)
		sizeAt := len(b)
		b = append(b, 0, 0)
		if f == IPv4 && !nextHop.Is6() {
			b, prefixes = appendNLRI(b, MaxSize-(len(b)-at)-2, prefixes)
			setSize(b, sizeAt)
			b = append(b, 0, 0) // no attributes
		} else {
			b = append(b, 0, 0, flagOptional|flagExtendedLength, attrMPUnreachNLRI)
			unreachAt := len(b)
			b = append(b, 0, 0, 0, byte(f.afi()), safiUnicast)
			b, prefixes = appendNLRI(b, MaxSize-(len(b)-at), prefixes)
			setSize(b, unreachAt)
			setSize(b, sizeAt+2)
		}
		end(b[at:])
	}
	return b
}

// AppendEndOfRIB appends the End-of-RIB marker of a family: the initial routes are complete (RFC
// 4724, section 2).
func AppendEndOfRIB(b []byte, f Family) []byte {
	at := len(b)
	b = append(begin(b, TypeUpdate), 0, 0)
	if f == IPv4 {
		b = append(b, 0, 0)
	} else {
		b = append(b, 0, 6, flagOptional, attrMPUnreachNLRI, 3, 0, byte(f.afi()), safiUnicast)
	}
	end(b[at:])
	return b
}

// setSize sets the two bytes at i to the number of bytes after them.
func setSize(b []byte, i int) { binary.BigEndian.PutUint16(b[i:], uint16(len(b)-i-2)) }
