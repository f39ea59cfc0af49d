package ipam

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// number is an unsigned integer of 128 bits: an address or a port.
type number struct{ hi, lo uint64 }

func numberOf(a netip.Addr) number {
	if a.Is4() {
		b := a.As4()
		return number{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return number{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// addr is the inverse of numberOf; v4 is the family of the address.
func (n number) addr(v4 bool) netip.Addr {
	if v4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(n.lo))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], n.hi)
	binary.BigEndian.PutUint64(b[8:], n.lo)
	return netip.AddrFrom16(b)
}

func (n number) less(m number) bool { return n.hi < m.hi || n.hi == m.hi && n.lo < m.lo }

// plus wraps at 2^128.
func (n number) plus(k uint64) number {
	lo, carry := bits.Add64(n.lo, k, 0)
	return number{n.hi + carry, lo}
}

// minus returns n - m, at most 2^64-1; m must not be above n.
func (n number) minus(m number) uint64 {
	lo, borrow := bits.Sub64(n.lo, m.lo, 0)
	if n.hi-m.hi-borrow != 0 {
		return ^uint64(0)
	}
	return lo
}

// digit returns the base-64 digit of n at a level; level 0 is the lowest.
func (n number) digit(level int) uint {
	switch at := uint(level) * 6; {
	case at >= 64:
		return uint(n.hi>>(at-64)) & 63
	case at > 58:
		return uint(n.lo>>at|n.hi<<(64-at)) & 63
	default:
		return uint(n.lo>>at) & 63
	}
}

// with returns n with the digit at a level added; it must be 0 before.
func (n number) with(level int, digit uint) number {
	switch at, d := uint(level)*6, uint64(digit); {
	case at >= 64:
		n.hi |= d << (at - 64)
	case at > 58:
		n.lo |= d << at
		n.hi |= d >> (64 - at)
	default:
		n.lo |= d << at
	}
	return n
}
