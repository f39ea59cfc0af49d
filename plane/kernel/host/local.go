package host

import (
	"net/netip"

	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// IsLocal reports whether the host takes packets to an address, in the calling thread's network namespace: it has the
// address, or a local route to it. It asks the kernel's routes and sends nothing.
func IsLocal(a netip.Addr) bool {
	routes, err := rtnl.RouteGet(a.AsSlice())
	return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL
}
