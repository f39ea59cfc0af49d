//go:build linux

package netlab

import (
	"context"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// SCTP's one-to-one sockets behave as TCP's do, so package net can use them once they exist. It has
// no function that creates them.

// listenSCTP listens in the present namespace.
func listenSCTP(at netip.AddrPort) (net.Listener, error) {
	fd, err := socketSCTP(at.Addr())
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "sctp")
	defer f.Close() // FileListener has a copy
	if err := unix.Bind(fd, sockaddr(at)); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, 64); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	return net.FileListener(f)
}

// dialSCTP connects in the present namespace.
func dialSCTP(ctx context.Context, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	fd, err := socketSCTP(to.Addr())
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "sctp")
	defer f.Close()
	if from.IsValid() {
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, 0))); err != nil {
			return nil, os.NewSyscallError("bind", err)
		}
	}
	if err := unix.Connect(fd, sockaddr(to)); err != nil && err != unix.EINPROGRESS {
		return nil, os.NewSyscallError("connect", err)
	}
	if err := connected(ctx, fd); err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	return net.FileConn(f)
}

// connected waits for the end of a connect. A connect that blocks in the kernel gets no ICMP
// errors.
func connected(ctx context.Context, fd int) error {
	for {
		events := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(events, 50)
		if err != nil && err != unix.EINTR {
			return err
		}
		if n > 0 {
			if code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil {
				return err
			} else if code != 0 {
				return unix.Errno(code)
			}
			if events[0].Revents&unix.POLLOUT != 0 {
				return nil
			}
		}
		if ctx.Err() != nil {
			return unix.ETIMEDOUT
		}
	}
}

func socketSCTP(family netip.Addr) (int, error) {
	domain := unix.AF_INET
	if family.Is6() {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_SCTP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	// Unlike TCP, SCTP retries after a port-unreachable error, unless the socket reports errors.
	level, option := unix.IPPROTO_IP, unix.IP_RECVERR
	if family.Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("setsockopt", err)
	}
	return fd, nil
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}
