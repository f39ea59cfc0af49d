package zone

import (
	"net/netip"
)

// inPools reports whether an address has a name.
func (z *Zone) inPools(a netip.Addr) bool {
	for _, p := range z.pools {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// reverse says of a name whether it is in a reverse zone, where the name of the zone begins, and
// whether it exists without a record.
//
// A pool of /20 is in sixteen zones of three labels: a zone begins at the first label boundary inside
// the pool. Names above these zones also count as zones that exist: resolvers that minimize query
// names ask for them, and stop at an error. Names of address blocks inside a pool always exist, also
// without an address.
func (z *Zone) reverse(name []byte) (apex int, exists, ok bool) {
	if at, ok := cutSuffix(name, reverse4); ok && len(z.pools) > 0 {
		return z.reverseOf(name[:at], 4, 8)
	} else if at, ok := cutSuffix(name, reverse6); ok && len(z.pools) > 0 {
		return z.reverseOf(name[:at], 16, 4)
	}
	return 0, false, false
}

// reverseOf is reverse for the labels of one family, each of which is a number of some bits.
func (z *Zone) reverseOf(labels []byte, size, bits int) (apex int, exists, ok bool) {
	var starts [128]uint8 // of the labels
	n := 0
	for at := 0; at < len(labels); at += 1 + int(labels[at]) {
		starts[n] = uint8(at)
		n++
	}
	// The last label is the most significant number.
	var addr [16]byte
	valid := 0
	for ; valid < n && valid*bits < size*8; valid++ {
		at := int(starts[n-1-valid])
		v, ok := number(labels[at+1:at+1+int(labels[at])], bits)
		if !ok {
			break
		}
		bit := valid * bits
		addr[bit/8] |= v << (8 - bits - bit%8)
	}
	a, _ := netip.AddrFromSlice(addr[:size])
	block, err := a.Prefix(valid * bits)
	if err != nil {
		return 0, false, false
	}
	for _, p := range z.pools {
		if p.Addr().Is4() != a.Is4() || !p.Overlaps(block) {
			continue
		}
		zone := (p.Bits() + bits - 1) / bits // labels of the zone
		if valid < zone {
			if valid < n {
				continue // an address outside the pool, or no address
			}
			zone = valid
		}
		exists := valid == n && valid*bits < size*8
		if zone == 0 {
			return len(labels), exists, true
		}
		return int(starts[n-zone]), exists, true
	}
	return 0, false, false
}

// number reads the number of a label. There is no func value for it, which would move the question to
// the heap.
func number(label []byte, bits int) (byte, bool) {
	if bits == 8 {
		return octet(label)
	}
	return nibble(label)
}

// octet reads a number of up to 255 without leading zeros.
func octet(label []byte) (byte, bool) {
	if len(label) == 0 || len(label) > 3 || label[0] == '0' && len(label) > 1 {
		return 0, false
	}
	v := 0
	for _, c := range label {
		if c < '0' || c > '9' {
			return 0, false
		}
		v = 10*v + int(c-'0')
	}
	return byte(v), v <= 255
}

// nibble reads one hexadecimal digit in lower case.
func nibble(label []byte) (byte, bool) {
	if len(label) != 1 {
		return 0, false
	}
	switch c := label[0]; {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}
