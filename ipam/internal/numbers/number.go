// Package numbers has sets and ranges of addresses and ports as unsigned integers.
//
// The allocator asks them for the next free address or node port of a pool. The package knows no pools
// and no leases, and does no I/O.
//
//   - number.go: Number, an address or a port
//   - set.go: Set, the numbers in use
//   - spans.go: Spans, the ranges of a pool in the order of their use
package numbers

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Number is an unsigned integer of 128 bits.
type Number struct{ hi, lo uint64 }

// Of returns an address as a number. It has no place for the family.
func Of(a netip.Addr) Number {
	if a.Is4() {
		b := a.As4()
		return Number{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return Number{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// OfPort returns a port as a number.
func OfPort(p uint16) Number { return Number{lo: uint64(p)} }

// Addr is the inverse of Of; v4 is the family of the address.
func (n Number) Addr(v4 bool) netip.Addr {
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

// Port is the inverse of OfPort.
func (n Number) Port() uint16 { return uint16(n.lo) }

func (n Number) less(m Number) bool { return n.hi < m.hi || n.hi == m.hi && n.lo < m.lo }

// Plus returns n + k and wraps at 2^128.
func (n Number) Plus(k uint64) Number {
	lo, carry := bits.Add64(n.lo, k, 0)
	return Number{n.hi + carry, lo}
}

// minus returns n - m, at most 2^64-1; m must not be above n.
func (n Number) minus(m Number) uint64 {
	lo, borrow := bits.Sub64(n.lo, m.lo, 0)
	if n.hi-m.hi-borrow != 0 {
		return ^uint64(0)
	}
	return lo
}
