package netlink

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// LocalRoute is a route by which the host takes packets itself. The zero value is any other route.
type LocalRoute struct {
	Dst      netip.Prefix
	Link     uint32 // the index of its device
	Protocol uint8  // who made it: unix.RTPROT_KERNEL for that of an address
}

// ReadLocalRoute reads a message about a route.
func ReadLocalRoute(data []byte) (r LocalRoute, err error) {
	if len(data) < unix.SizeofRtMsg {
		return r, ErrMalformed
	}
	if data[4] != unix.RT_TABLE_LOCAL || data[7] != unix.RTN_LOCAL {
		return r, nil
	}
	attrs := Attrs{B: data[unix.SizeofRtMsg:]}
	for typ, v, ok := attrs.Next(); ok; typ, v, ok = attrs.Next() {
		switch typ {
		case unix.RTA_DST:
			a, ok := netip.AddrFromSlice(v)
			if !ok {
				return r, ErrMalformed
			}
			r.Dst = netip.PrefixFrom(a, int(data[1]))
		case unix.RTA_OIF:
			if len(v) != 4 {
				return r, ErrMalformed
			}
			r.Link = binary.NativeEndian.Uint32(v)
		}
	}
	r.Protocol = data[5]
	return r, attrs.Err
}
