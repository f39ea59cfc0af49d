package sockets

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// errNoSocket means that a descriptor is not a socket.
var errNoSocket = errors.New("not an open socket")

// option is a socket option with the value that a socket of this package has. An inherited socket
// with another value comes from another version of the agent, or from another program.
type option struct {
	level, name int
	want        int
	text        string
}

var (
	optionsOfAll = []option{
		{unix.SOL_SOCKET, unix.SO_REUSEPORT, 0, "SO_REUSEPORT"},
		{unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, 0, "SO_BINDTODEVICE"},
		{unix.SOL_SOCKET, unix.SO_MARK, 0, "SO_MARK"},
	}
	optionsOf = map[string][]option{
		"tcp": {
			{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1, "SO_REUSEADDR"},
			{unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 0, "TCP_DEFER_ACCEPT"},
		},
		"udp": {
			{unix.SOL_SOCKET, unix.SO_REUSEADDR, 0, "SO_REUSEADDR"},
			{unix.SOL_SOCKET, unix.SO_BROADCAST, 1, "SO_BROADCAST"},
		},
	}
	optionsOfFamily = map[int][]option{
		unix.AF_INET: {
			{unix.IPPROTO_IP, unix.IP_TRANSPARENT, 0, "IP_TRANSPARENT"},
		},
		unix.AF_INET6: {
			{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1, "IPV6_V6ONLY"},
			{unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, 0, "IPV6_TRANSPARENT"},
		},
	}
)

// identifier recognizes sockets of this process's network namespace.
type identifier struct{ namespace uint64 } // 0: unknown, so that no socket is refused for it

func newIdentifier() identifier { return identifier{Namespace()} }

// Namespace returns the kernel's number of this thread's network namespace; 0 before Linux 5.14.
func Namespace() uint64 {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	return namespaceOf(fd)
}

// namespaceOf returns the kernel's number of a socket's network namespace; 0 before Linux 5.14.
func namespaceOf(fd int) uint64 {
	n, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return n
}

// identify returns where a socket listens. The error says why it can't be one of this package. It
// costs about ten system calls.
func (i identifier) identify(fd int) (place, error) {
	get := func(name int) int {
		v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, name)
		if err != nil {
			return -1
		}
		return v
	}
	if get(unix.SO_TYPE) < 0 {
		return identifyBPF(fd)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return place{}, fmt.Errorf("getsockname: %w", err)
	}
	var p place
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		p.at = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		p.at = netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
		if a.ZoneId != 0 {
			return p, fmt.Errorf("%s has a zone", p.at)
		}
	case *unix.SockaddrUnix:
		if p.path = a.Name; p.path == "" || p.path[0] == '@' {
			return p, errors.New("a unix socket without a file")
		}
	default:
		return p, errors.New("not a socket of IPv4, IPv6 or a file")
	}
	switch kind, protocol := get(unix.SO_TYPE), get(unix.SO_PROTOCOL); {
	case kind == unix.SOCK_STREAM && protocol == unix.IPPROTO_TCP:
		p.protocol = "tcp"
		if get(unix.SO_ACCEPTCONN) != 1 {
			return p, fmt.Errorf("%s doesn't listen", p)
		}
	case kind == unix.SOCK_STREAM && p.path != "":
		p.protocol = "unix"
		if get(unix.SO_ACCEPTCONN) != 1 {
			return p, fmt.Errorf("%s doesn't listen", p)
		}
	case kind == unix.SOCK_DGRAM && protocol == unix.IPPROTO_UDP:
		p.protocol = "udp"
		if _, err := unix.Getpeername(fd); err == nil {
			return p, fmt.Errorf("%s is connected", p)
		}
	case p.path != "":
		return p, fmt.Errorf("%s has type %d", p.path, kind)
	default:
		return p, fmt.Errorf("%s has type %d and protocol %d, neither TCP nor UDP", p.at, kind, protocol)
	}
	if p.path == "" && p.at.Port() == 0 {
		return p, fmt.Errorf("%s is not bound", p)
	}
	polled := []unix.PollFd{{Fd: int32(fd)}}
	if _, err := unix.Poll(polled, 0); err == nil && polled[0].Revents&unix.POLLHUP != 0 {
		return p, fmt.Errorf("%s was shut down", p)
	}
	if i.namespace != 0 && i.namespace != namespaceOf(fd) {
		return p, fmt.Errorf("%s is in another network namespace", p)
	}
	for _, options := range [][]option{optionsOfAll, optionsOf[p.protocol], optionsOfFamily[get(unix.SO_DOMAIN)]} {
		for _, o := range options {
			if v, err := unix.GetsockoptInt(fd, o.level, o.name); err == nil && v != o.want {
				return p, fmt.Errorf("%s has %s %d instead of %d", p, o.text, v, o.want)
			}
		}
	}
	return p, nil
}

// prepare sets what can't be read from an inherited socket. Listening again sets the length of the
// accept queue, which the kernel bounds to net.core.somaxconn, as for a new listener.
func prepare(fd int, p place) error {
	if p.protocol == "udp" {
		return nil
	}
	if err := unix.Listen(fd, 1<<16-1); err != nil {
		return err
	}
	if p.protocol == "unix" && !leads(p.path) {
		return fmt.Errorf("%s leads elsewhere", p)
	}
	return nil
}
