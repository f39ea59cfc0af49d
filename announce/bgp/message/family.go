package message

import "net/netip"

// Family is an address family of unicast prefixes.
type Family uint8

// The families. Families is their number, for arrays with a value for each one.
const (
	IPv4 Family = iota
	IPv6
	Families
)

const safiUnicast = 1

// FamilyOf returns the family of a prefix.
func FamilyOf(p netip.Prefix) Family {
	if p.Addr().Is4() {
		return IPv4
	}
	return IPv6
}

func (f Family) String() string { return [...]string{"IPv4", "IPv6"}[f] }

// afi returns the Address Family Identifier: 1 is IPv4, 2 is IPv6.
func (f Family) afi() uint16 { return uint16(f) + 1 }

// parseFamily returns the family with the given AFI and SAFI. It returns false for other ones, such
// as VPN prefixes.
func parseFamily(afi uint16, safi uint8) (Family, bool) {
	return Family(afi - 1), safi == safiUnicast && (afi == 1 || afi == 2)
}
