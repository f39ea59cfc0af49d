package hostnet

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// HasAddr reports whether packets to an address are for this host, by the kernel's routes: an interface
// has it, or its range is a local one, such as 127.0.0.0/8. So it also sees what a Snapshot leaves out. It
// is true if that can't be read, and for an address with a zone.
func HasAddr(a netip.Addr) bool {
	if a.Zone() != "" {
		return true
	}
	routes, err := netlink.RouteGet(a.AsSlice())
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		return false // no route, or one that refuses
	case err != nil || len(routes) == 0:
		return true
	}
	return routes[0].Type == unix.RTN_LOCAL
}
