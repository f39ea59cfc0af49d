package proxy

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sockets"
)

// socket is one side of a TCP connection. Go's poller doesn't have it; a loop does, from loop.add on.
// Its owner guards it: a descriptor that is closed may be that of another socket a moment later.
type socket struct {
	fd int // -1: closed

	loop     *eventLoop // nil: it has no events
	owner    watcher    // guarded by loop.mu
	slot, id uint32
	events   uint32 // that the loop reports

	readable, writable bool
	// careful: a read that returns less than it could may not have emptied the socket, because its end,
	// an error or an urgent byte follows
	careful bool
	broken  bool // it is closed in both directions, or has an error
}

func newSocket(fd int) *socket { return &socket{fd: fd, events: incoming, writable: true} }

// note takes in events.
func (s *socket) note(events uint32) {
	const wrong = unix.EPOLLHUP | unix.EPOLLERR
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLPRI|wrong) != 0 {
		s.readable = true
	}
	if events&(unix.EPOLLOUT|wrong) != 0 {
		s.writable = true
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLPRI|wrong) != 0 {
		s.careful = true
	}
	if events&wrong != 0 {
		s.broken = true
	}
}

func (s *socket) isOpen() bool { return s.fd >= 0 }

func (s *socket) close() {
	if s.isOpen() {
		if s.loop != nil {
			s.loop.forget(s)
		}
		unix.Close(s.fd)
		s.fd = -1
	}
}

// reset closes s so that its peer receives a reset, even if data is unsent.
func (s *socket) reset() {
	if s.isOpen() {
		_ = unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		s.close()
	}
}

// closeWrite ends the direction to the peer.
func (s *socket) closeWrite() { _ = unix.Shutdown(s.fd, unix.SHUT_WR) }

// state returns the state of the connection in the kernel.
func (s *socket) state() uint8 {
	if !s.isOpen() {
		return tcpClosed
	}
	info, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return tcpClosed
	}
	return info.State
}

// States of the kernel.
const (
	tcpClosed    = 7 // TCP_CLOSE
	tcpCloseWait = 8 // TCP_CLOSE_WAIT
)

// dead reports whether the kernel or this process has closed the connection.
func (s *socket) dead() bool { return s.state() == tcpClosed }

// isEnded reports whether the peer has ended its direction or reset the connection, even if not
// everything before that was read.
func (s *socket) isEnded() bool {
	state := s.state()
	return state == tcpClosed || state == tcpCloseWait
}

// unsent returns the number of written bytes that the peer has not acknowledged; 0 if it never will.
func (s *socket) unsent() int {
	if !s.isOpen() {
		return 0
	}
	n, err := unix.IoctlGetInt(s.fd, unix.SIOCOUTQ)
	if err != nil || n > 0 && s.dead() {
		return 0
	}
	return n
}

// localAddr returns the address that the peer has connected to.
func (s *socket) localAddr() netip.AddrPort {
	var name sockaddr
	size := uint32(unsafe.Sizeof(name))
	if _, _, errno := unix.Syscall(unix.SYS_GETSOCKNAME, uintptr(s.fd), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&size))); errno != 0 {
		return netip.AddrPort{}
	}
	return name.addrPort()
}

// accept returns the next client of a listener, and its address.
func accept(listener int) (*socket, netip.AddrPort, error) {
	var name sockaddr
	size := uint32(unsafe.Sizeof(name))
	fd, _, errno := unix.Syscall6(unix.SYS_ACCEPT4, uintptr(listener), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&size)), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0, 0)
	if errno != 0 {
		return nil, netip.AddrPort{}, errno
	}
	return newSocket(int(fd)), name.addrPort(), nil
}

// sockaddr is the address and port of a peer as the kernel writes it. An address of IPv4 needs less of it. The functions
// of package unix ask the kernel for the protocol of the socket as well.
type sockaddr struct{ unix.RawSockaddrInet6 }

func (n *sockaddr) addrPort() netip.AddrPort {
	switch n.Family {
	case unix.AF_INET:
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(n))
		return netip.AddrPortFrom(netip.AddrFrom4(four.Addr), swapped(four.Port))
	case unix.AF_INET6:
		addr := netip.AddrFrom16(n.Addr).Unmap()
		if n.Scope_id != 0 {
			addr = addr.WithZone(strconv.Itoa(int(n.Scope_id)))
		}
		return netip.AddrPortFrom(addr, swapped(n.Port))
	}
	return netip.AddrPort{}
}

// swapped changes a port between the orders of bytes of the network and of this host.
func swapped(port uint16) uint16 {
	var order [2]byte
	binary.NativeEndian.PutUint16(order[:], port)
	return binary.BigEndian.Uint16(order[:])
}

// NewSockets returns a set for the listeners of a Target that has inherited none. They may be at addresses that the host
// doesn't have yet, and clients inherit their options.
func NewSockets() *sockets.Set {
	return &sockets.Set{Control: func(network, _ string, raw syscall.RawConn) (err error) {
		failed := raw.Control(func(fd uintptr) {
			level, name := unix.IPPROTO_IPV6, unix.IPV6_FREEBIND
			if strings.HasSuffix(network, "4") {
				level, name = unix.IPPROTO_IP, unix.IP_FREEBIND
			}
			err = unix.SetsockoptInt(int(fd), level, name, 1)
			if strings.HasPrefix(network, "tcp") {
				prepare(int(fd))
			} else {
				prepareReplies(int(fd))
			}
		})
		return errors.Join(err, failed)
	}}
}

// keepAliveOptions detect dead peers, on both sides of a connection, within about three minutes.
// Accepted sockets inherit them from the listener, as they do TCP_NODELAY.
var keepAliveOptions = []struct{ level, name, value int }{
	{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
	{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 60},
	{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 20},
	{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 6},
	{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
}

// prepare sets the options of a connection, or those that the connections of a listener inherit. It
// fails only for a peer that is gone.
func prepare(fd int) {
	for _, o := range keepAliveOptions {
		_ = unix.SetsockoptInt(fd, o.level, o.name, o.value)
	}
}

// replyRoom is the room for replies of UDP that the network hasn't taken yet. Without CAP_NET_ADMIN, the kernel's limit
// (net.core.wmem_max) is less. The kernel's default is full with a few replies of 32 KiB, and what does not fit is dropped.
const replyRoom = 4 << 20

// prepareReplies sets the options of a socket through which the sessions of a frontend reply.
func prepareReplies(fd int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, replyRoom) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, replyRoom)
	}
}

// connectTo starts to connect a socket of a type to an address, and doesn't wait for the answer. A socket of TCP is
// writable when the connection is established.
func connectTo(to netip.AddrPort, kind int) (*socket, error) {
	family, at := unix.AF_INET, unix.Sockaddr(nil)
	if addr := to.Addr().Unmap(); addr.Is4() {
		at = &unix.SockaddrInet4{Addr: addr.As4(), Port: int(to.Port())}
	} else {
		family, at = unix.AF_INET6, &unix.SockaddrInet6{Addr: addr.As16(), Port: int(to.Port())}
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := newSocket(fd)
	s.events = replies
	if kind == unix.SOCK_STREAM {
		s.events = incoming | outgoing
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // the others follow if the connection stays
	}
	if err := unix.Connect(fd, at); err != nil && err != unix.EINPROGRESS && err != unix.EINTR { //nolint:errorlint // an errno
		unix.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	return s, nil
}

// connectError returns why a connect failed, or nil.
func (s *socket) connectError() error {
	errno, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return os.NewSyscallError("getsockopt", err)
	case errno != 0:
		return os.NewSyscallError("connect", unix.Errno(errno))
	}
	return nil
}

// dialError returns the error of a connect in the form of the standard library.
func dialError(to netip.AddrPort, err error) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: err}
}
