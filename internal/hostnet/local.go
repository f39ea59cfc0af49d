package hostnet

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// HasAddr reports whether packets to an address are for this host: an interface has it, by the snapshot,
// or the kernel's routes say so now. The routes also know what a snapshot leaves out, and local ranges,
// such as 127.0.0.0/8. They don't know an address of a VRF, which has its own. HasAddr is true if the
// routes can't be read, and for an address with a zone.
func (s *Snapshot) HasAddr(a netip.Addr) bool {
	if a.Zone() != "" || slices.ContainsFunc(s.Addrs, func(has Addr) bool { return has.Prefix.Addr() == a }) {
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
