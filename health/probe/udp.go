package probe

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// openUDP returns a socket that sends to addr, with the error of connect; or -1 if it can't be
// opened. A connected socket receives only from addr, and reports ICMP errors: port unreachable is
// ECONNREFUSED.
func openUDP(addr netip.AddrPort) (fd int, err error) {
	family, to := sockaddr(addr)
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	return fd, unix.Connect(fd, to)
}
