package probe

import (
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// openTCP returns a socket that connects to a job's address, with EINPROGRESS or the error of connect; or -1
// if it can't be opened.
//
// Closing the socket sends a reset. The connection therefore leaves no TIME_WAIT on this host,
// which would use up its ports: 10,000 probes every 2 s for the 60 s of TIME_WAIT are 300,000.
//
// With bare, the probe only connects. Then the socket delays the acknowledgment that completes the
// handshake, and closing sends the reset instead of it. The target's program does not see the
// connection at all, as with HAProxy.
func openTCP(j *job, bare bool) (fd int, err error) {
	family, to := sockaddr(j.address())
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := prepare(fd, j); err != nil {
		unix.Close(fd)
		return -1, err
	}
	// These fail only with an invalid argument.
	unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	if bare {
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0)
	}
	return fd, unix.Connect(fd, to)
}

// connectedToItself reports whether the kernel connected a socket to itself. This happens if the
// target is an address of this host with no listener, and the kernel selects the target's port as
// the local port.
func connectedToItself(fd int, target netip.AddrPort) bool {
	local, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	switch l := local.(type) {
	case *unix.SockaddrInet4:
		return l.Port == int(target.Port()) && l.Addr == target.Addr().As4()
	case *unix.SockaddrInet6:
		return l.Port == int(target.Port()) && l.Addr == target.Addr().As16()
	}
	return false
}

// sockaddr returns the address family and the kernel's form of an address.
func sockaddr(addr netip.AddrPort) (family int, sa unix.Sockaddr) {
	ip, port := addr.Addr(), int(addr.Port())
	if ip.Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Addr: ip.As4(), Port: port}
	}
	sa6 := &unix.SockaddrInet6{Addr: ip.As16(), Port: port}
	if zone := ip.Zone(); zone != "" {
		if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
			sa6.ZoneId = uint32(n)
		} else if dev, err := net.InterfaceByName(zone); err == nil {
			sa6.ZoneId = uint32(dev.Index)
		}
	}
	return unix.AF_INET6, sa6
}
