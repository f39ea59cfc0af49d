package host

import (
	"errors"
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

// CanBind reports whether sockets can be bound to an address. It asks the kernel, which also counts 127.0.0.0/8 and local
// routes. It costs a socket, which no goroutine waits for: package net would also set options, read its name and add it to
// the poller, for every changed frontend.
func CanBind(a netip.Addr) bool {
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: a.As16()})
	if a.Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Addr: a.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return true // unknown
	}
	defer unix.Close(fd)
	return !errors.Is(unix.Bind(fd, to), unix.EADDRNOTAVAIL)
}
