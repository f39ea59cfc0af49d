package unnumbered

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sockopt"
)

// The types of messages (RFC 4861, 4.1 and 4.2).
const (
	icmpSolicitation  = 133
	icmpAdvertisement = 134
)

var allNodes, allRouters = netip.MustParseAddr("ff02::1"), netip.MustParseAddr("ff02::2")

// accept validates a message (RFC 4861, 6.1.1 and 6.1.2), and returns its type, or 0. A hop limit
// of 255 proves that no router forwarded it.
func accept(b []byte, from netip.Addr, limit int) int {
	switch {
	case limit != 255 || len(b) < 8 || b[1] != 0:
		return 0
	case b[0] == icmpAdvertisement && len(b) >= 16 && from.IsLinkLocalUnicast():
		return icmpAdvertisement
	case b[0] == icmpSolicitation:
		return icmpSolicitation
	}
	return 0
}

// advertisement returns a router advertisement of this host: no hop limit, lifetime or prefix is
// given. The kernel adds the checksum.
func advertisement() []byte { return append([]byte{icmpAdvertisement}, make([]byte, 15)...) }

func solicitation() []byte { return append([]byte{icmpSolicitation}, make([]byte, 7)...) }

// listenICMP opens a socket for router advertisements and solicitations on one device.
func listenICMP(device *net.Interface) (*net.IPConn, error) {
	lc := net.ListenConfig{Control: sockopt.Control(func(fd int) error { return setICMPOptions(fd, device) })}
	c, err := lc.ListenPacket(context.Background(), "ip6:ipv6-icmp", "::")
	if err != nil {
		return nil, err
	}
	return c.(*net.IPConn), nil
}

func setICMPOptions(fd int, device *net.Interface) error {
	var filter unix.ICMPv6Filter // a set bit blocks
	for i := range filter.Data {
		filter.Data[i] = ^uint32(0)
	}
	for _, typ := range []int{icmpSolicitation, icmpAdvertisement} {
		filter.Data[typ>>5] &^= 1 << (typ & 31)
	}
	return errors.Join(
		unix.BindToDevice(fd, device.Name),
		unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &filter),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1),
		// Solicitations go to all routers. A device is in the group of all nodes anyway.
		unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: allRouters.As16(), Interface: uint32(device.Index)}),
	)
}
