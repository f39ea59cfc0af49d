package transport

import (
	"net"
	"net/netip"

	"github.com/ironvip/ironvip/announce/bgp/message"
)

// NextHops returns the next hops of routes that a connection announces: its own address, and an address
// of its interface for the other family. An invalid one is not known. extended says that the router
// accepts IPv6 next hops of IPv4 prefixes (RFC 8950).
func NextHops(c net.Conn, extended bool) (hops [message.Families]netip.Addr) {
	at, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return hops
	}
	local := at.AddrPort().Addr().Unmap()
	own := message.IPv4
	if local.Is6() {
		own = message.IPv6
	}
	hops[own] = local.WithZone("")
	if own == message.IPv6 && extended { // RFC 8950: the routes take the path of the session
		hops[message.IPv4] = hops[message.IPv6]
	} else {
		other := message.IPv6 - own
		hops[other] = addressBeside(local, other)
	}
	return hops
}

// addressBeside returns an address of a family on the interface that has local: a global one, or
// the zero value.
func addressBeside(local netip.Addr, f message.Family) (found netip.Addr) {
	devices, err := net.Interfaces()
	if err != nil {
		return found
	}
	for _, d := range devices {
		addrs, err := d.Addrs()
		if err != nil {
			continue
		}
		here := false
		var candidate netip.Addr
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			addr, _ := netip.AddrFromSlice(n.IP)
			addr = addr.Unmap()
			if addr == local.WithZone("") && (local.Zone() == "" || local.Zone() == d.Name) {
				here = true
			}
			if !candidate.IsValid() && addr.IsGlobalUnicast() && addr.Is4() == (f == message.IPv4) {
				candidate = addr
			}
		}
		if here {
			return candidate
		}
	}
	return found
}
