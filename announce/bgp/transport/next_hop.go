package transport

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"

	"github.com/ironvip/ironvip/announce/bgp/message"
)

// NextHops returns the next hops of routes that a connection announces: its own address, and an address
// of its interface for the other family. An invalid one is not known. extended says that the router
// accepts IPv6 next hops of IPv4 prefixes (RFC 8950). An interface of another VRF than that of the session, "" for none, may
// have the same address.
func NextHops(c net.Conn, vrf string, extended bool) (hops [message.Families]netip.Addr) {
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
		hops[other] = addressBeside(local, vrf, other)
	}
	return hops
}

// addressBeside returns an address of a family on the interface that has local: a global one, or
// the zero value. With a VRF, it is an interface of the VRF, or the VRF itself.
func addressBeside(local netip.Addr, vrf string, f message.Family) (found netip.Addr) {
	devices, err := net.Interfaces()
	if err != nil {
		return found
	}
	master := masters()
	for _, d := range devices {
		if vrf != "" && d.Name != vrf {
			if of, err := net.InterfaceByName(vrf); err != nil || master[d.Index] != of.Index {
				continue
			}
		}
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

// masters returns the master of each interface that has one, such as a VRF, by their indexes.
func masters() map[int]int {
	of := map[int]int{}
	dump, err := syscall.NetlinkRIB(syscall.RTM_GETLINK, syscall.AF_UNSPEC)
	if err != nil {
		return of
	}
	messages, _ := syscall.ParseNetlinkMessage(dump)
	for i := range messages {
		m := &messages[i]
		if m.Header.Type != syscall.RTM_NEWLINK || len(m.Data) < syscall.SizeofIfInfomsg {
			continue
		}
		attrs, _ := syscall.ParseNetlinkRouteAttr(m)
		for _, a := range attrs {
			if a.Attr.Type == syscall.IFLA_MASTER && len(a.Value) == 4 {
				of[int(binary.NativeEndian.Uint32(m.Data[4:]))] = int(binary.NativeEndian.Uint32(a.Value))
			}
		}
	}
	return of
}
