package message

import "net/netip"

// appendNLRI appends as many prefixes as fit into room bytes (RFC 4271, 4.3, "Network Layer
// Reachability Information"), and returns the others.
func appendNLRI(b []byte, room int, prefixes []netip.Prefix) ([]byte, []netip.Prefix) {
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
