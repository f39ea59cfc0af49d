package host

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// IsLocal reports whether an address is one of the calling thread's network namespace. It asks for
// the source of a connection to it, which for such an address is the address itself, and sends
// nothing. It takes four system calls.
func IsLocal(a netip.Addr) bool {
	const anyPort = 9
	family, to := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: anyPort})
	if a.Is4() {
		to.(*unix.SockaddrInet4).Addr = a.As4()
	} else {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Port: anyPort, Addr: a.As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if unix.Connect(fd, to) != nil {
		return false
	}
	switch from, _ := unix.Getsockname(fd); from := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(from.Addr) == a
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(from.Addr) == a
	}
	return false
}
