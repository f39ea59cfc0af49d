//go:build linux

package netlab

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Take moves a device from the process's namespace to the node until the end of the test. It
// restores the device's addresses, because the kernel removes them when a device moves.
func (n *Node) Take(dev string) {
	n.t.Helper()
	here, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	must(n.t, "netlink", err)
	n.t.Cleanup(here.Close)
	var addrs []netlink.Addr
	move := func(from, to *netlink.Handle, ns int) {
		link, err := from.LinkByName(dev)
		must(n.t, "device "+dev, err)
		if addrs == nil {
			addrs, err = from.AddrList(link, netlink.FAMILY_ALL)
			must(n.t, dev+": addresses", err)
		}
		must(n.t, dev+": move", from.LinkSetNsFd(link, ns))
		link, err = to.LinkByName(dev)
		must(n.t, "device "+dev+" at its new place", err)
		must(n.t, dev+" up", to.LinkSetUp(link))
		for _, a := range addrs {
			addr, _ := netip.AddrFromSlice(a.IP)
			if addr.IsLinkLocalUnicast() {
				continue // the kernel's own
			}
			must(n.t, dev+": address "+a.IPNet.String(), to.AddrAdd(link, &netlink.Addr{IPNet: a.IPNet, Flags: a.Flags & unix.IFA_F_NODAD}))
		}
	}
	place, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(n.t, "the current namespace", err)
	n.t.Cleanup(func() {
		move(n.Netlink, here, place)
		unix.Close(place)
	})
	move(here, n.Netlink, int(n.ns))
}
