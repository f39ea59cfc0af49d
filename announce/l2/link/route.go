package link

import (
	"context"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// Way is how this host reaches a neighbor.
type Way struct {
	Link   Link
	Source netip.Addr // of this host's packets to it
}

// To returns how the kernel reaches an address, with one message to it. Ok is false if the address is not
// on the segment of an Ethernet interface with a carrier.
func (f *Follower) To(ctx context.Context, addr netip.Addr) (w Way, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn == nil {
		return w, false
	}
	err := f.conn.Query(ctx, func(b []byte) []byte { return f.appendQuestion(b, addr) }, func(typ uint16, data []byte) error {
		if typ == unix.RTM_NEWROUTE {
			w, ok = f.host.decodeRoute(data)
		}
		return nil
	})
	return w, err == nil && ok && w.Link.Usable()
}

// appendQuestion appends the question for the route to an address.
func (f *Follower) appendQuestion(b []byte, addr netip.Addr) []byte {
	family := byte(unix.AF_INET6)
	if addr.Is4() {
		family = unix.AF_INET
	}
	header := [unix.SizeofRtMsg]byte{family, byte(addr.BitLen())}
	b = append(netlink.BeginMessage(b, unix.RTM_GETROUTE, 0), header[:]...)
	b = netlink.AppendAttr(b, unix.RTA_DST, addr.AsSlice()...)
	if zone := addr.Zone(); zone != "" {
		for _, l := range f.host.links {
			if l.Name == zone {
				b = netlink.AppendAttr32(b, unix.RTA_OIF, uint32(l.Index))
			}
		}
	}
	return b
}

// decodeRoute reads a route. Ok is false for one through a gateway.
func (h *host) decodeRoute(data []byte) (w Way, ok bool) {
	if len(data) < unix.SizeofRtMsg || data[7] != unix.RTN_UNICAST {
		return w, false
	}
	attrs := netlink.Attrs{B: data[unix.SizeofRtMsg:]}
	for typ, v, more := attrs.Next(); more; typ, v, more = attrs.Next() {
		switch typ {
		case unix.RTA_GATEWAY, unix.RTA_VIA:
			return w, false
		case unix.RTA_OIF:
			if len(v) == 4 {
				w.Link = h.links[int(binary.NativeEndian.Uint32(v))]
			}
		case unix.RTA_PREFSRC:
			w.Source, _ = netip.AddrFromSlice(v)
		}
	}
	return w, attrs.Err == nil && w.Source.IsValid()
}
