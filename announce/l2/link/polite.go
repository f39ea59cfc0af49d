package link

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// appendPolite appends the message that sets arp_announce of an interface. Unlike a write to /proc,
// it works in the network namespace of the socket, and with a read-only /proc/sys.
func appendPolite(b []byte, index int) []byte {
	b = netlink.BeginMessage(b, unix.RTM_NEWLINK, 0)
	info := make([]byte, ifinfoSize)
	binary.NativeEndian.PutUint32(info[4:], uint32(index))
	b = append(b, info...)
	b, spec := netlink.BeginNest(b, unix.IFLA_AF_SPEC|unix.NLA_F_NESTED)
	b, inet := netlink.BeginNest(b, unix.AF_INET|unix.NLA_F_NESTED)
	b, conf := netlink.BeginNest(b, inetConf|unix.NLA_F_NESTED)
	b = netlink.AppendAttr32(b, arpAnnounce, bestAddress)
	return netlink.EndNest(netlink.EndNest(netlink.EndNest(b, conf), inet), spec)
}
