package zone

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// The namespaces of addresses' names.
const (
	reverse4 = "in-addr.arpa"
	reverse6 = "ip6.arpa"
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

// reverse returns the reverse zone that a name is in, "" for none, and whether the name exists without a
// record.
//
// A pool of /20 is in sixteen zones of three labels: a zone begins at the first label boundary inside
// the pool. Names above these zones also count as zones that exist: resolvers that minimize query
// names ask for them, and stop at an error. Names of address blocks inside a pool always exist, also
// without an address.
func (z *Zone) reverse(name string) (apex string, exists bool) {
	switch {
	case len(z.pools) == 0:
	case dns.IsSubDomain(reverse4, name):
		return z.reverseOf(name, reverse4, 4, 8)
	case dns.IsSubDomain(reverse6, name):
		return z.reverseOf(name, reverse6, 16, 4)
	}
	return "", false
}

// reverseOf is reverse for one family, whose addresses have some bytes. Each label of its names is a number
// of some bits.
func (z *Zone) reverseOf(name, suffix string, size, bits int) (apex string, exists bool) {
	labels := dns.SplitDomainName(name)
	labels = labels[:len(labels)-2] // of the suffix
	n := len(labels)
	// The last label is the most significant number.
	var addr [16]byte
	valid := 0
	for ; valid < n && valid*bits < size*8; valid++ {
		v, ok := number(labels[n-1-valid], bits)
		if !ok {
			break
		}
		bit := valid * bits
		addr[bit/8] |= v << (8 - bits - bit%8)
	}
	a, _ := netip.AddrFromSlice(addr[:size])
	block, err := a.Prefix(valid * bits)
	if err != nil {
		return "", false
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
		return strings.Join(append(labels[n-zone:], suffix), "."), valid == n && valid*bits < size*8
	}
	return "", false
}

// number reads the number of a label: a byte without leading zeros, or a hexadecimal digit in lower case.
func number(label string, bits int) (byte, bool) {
	base := 10
	if bits == 4 {
		base = 16
	}
	v, err := strconv.ParseUint(label, base, bits)
	return byte(v), err == nil && strconv.FormatUint(v, base) == label
}
