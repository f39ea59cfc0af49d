package loop

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

// Socket is one side of a TCP connection. Go's poller doesn't have it; a loop does, from loop.add on.
// Its owner guards it: a descriptor that is closed may be that of another socket a moment later.
type Socket struct {
	FD int // -1: closed

	loop     *Loop   // nil: it has no events
	owner    Watcher // guarded by loop.mu
	slot, id uint32
	events   uint32 // that the loop reports

	Readable, Writable bool
	// Careful: a read that returns less than it could may not have emptied the socket, because its end,
	// an error or an urgent byte follows
	Careful bool
	Broken  bool // it is closed in both directions, or has an error
}

func NewSocket(fd int) *Socket { return &Socket{FD: fd, events: incoming, Writable: true} }

// Note takes in events.
func (s *Socket) Note(events uint32) {
	const wrong = unix.EPOLLHUP | unix.EPOLLERR
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLPRI|wrong) != 0 {
		s.Readable = true
	}
	if events&(unix.EPOLLOUT|wrong) != 0 {
		s.Writable = true
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLPRI|wrong) != 0 {
		s.Careful = true
	}
	if events&wrong != 0 {
		s.Broken = true
	}
}

func (s *Socket) IsOpen() bool { return s.FD >= 0 }

func (s *Socket) Close() {
	if s.IsOpen() {
		if s.loop != nil {
			s.loop.forget(s)
		}
		unix.Close(s.FD)
		s.FD = -1
	}
}

// Reset closes s so that its peer receives a reset, even if data is unsent.
func (s *Socket) Reset() {
	if s.IsOpen() {
		_ = unix.SetsockoptLinger(s.FD, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		s.Close()
	}
}

// CloseWrite ends the direction to the peer.
func (s *Socket) CloseWrite() { _ = unix.Shutdown(s.FD, unix.SHUT_WR) }

// state returns the state of the connection in the kernel.
func (s *Socket) state() uint8 {
	if !s.IsOpen() {
		return tcpClosed
	}
	info, err := unix.GetsockoptTCPInfo(s.FD, unix.IPPROTO_TCP, unix.TCP_INFO)
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

// Dead reports whether the kernel or this process has closed the connection.
func (s *Socket) Dead() bool { return s.state() == tcpClosed }

// IsEnded reports whether the peer has ended its direction or reset the connection, even if not
// everything before that was read.
func (s *Socket) IsEnded() bool {
	state := s.state()
	return state == tcpClosed || state == tcpCloseWait
}

// Unsent returns the number of written bytes that the peer has not acknowledged; 0 if it never will.
func (s *Socket) Unsent() int {
	if !s.IsOpen() {
		return 0
	}
	n, err := unix.IoctlGetInt(s.FD, unix.SIOCOUTQ)
	if err != nil || n > 0 && s.Dead() {
		return 0
	}
	return n
}

// LocalAddr returns the address that the peer has connected to.
func (s *Socket) LocalAddr() netip.AddrPort {
	var name Sockaddr
	size := uint32(unsafe.Sizeof(name))
	if _, _, errno := unix.Syscall(unix.SYS_GETSOCKNAME, uintptr(s.FD), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&size))); errno != 0 {
		return netip.AddrPort{}
	}
	return name.AddrPort()
}

// accept returns the next client of a listener, and its address.
func accept(listener int) (*Socket, netip.AddrPort, error) {
	var name Sockaddr
	size := uint32(unsafe.Sizeof(name))
	fd, _, errno := unix.Syscall6(unix.SYS_ACCEPT4, uintptr(listener), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&size)), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0, 0)
	if errno != 0 {
		return nil, netip.AddrPort{}, errno
	}
	return NewSocket(int(fd)), name.AddrPort(), nil
}

// Sockaddr is the address and port of a peer as the kernel writes it. An address of IPv4 needs less of it. The functions
// of package unix ask the kernel for the protocol of the socket as well.
type Sockaddr struct{ unix.RawSockaddrInet6 }

func (n *Sockaddr) AddrPort() netip.AddrPort {
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
				PrepareReplies(int(fd))
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

// KeepAlive sets the options that connectTo leaves out, while s is open.
func (s *Socket) KeepAlive() {
	if s.IsOpen() {
		prepare(s.FD)
	}
}

// replyRoom is the room for replies of UDP that the network hasn't taken yet. Without CAP_NET_ADMIN, the kernel's limit
// (net.core.wmem_max) is less. The kernel's default is full with a few replies of 32 KiB, and what does not fit is dropped.
const replyRoom = 4 << 20

// PrepareReplies sets the options of a socket through which the sessions of a frontend reply.
func PrepareReplies(fd int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, replyRoom) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, replyRoom)
	}
}

// Connect starts to connect a socket of a type to an address, and doesn't wait for the answer. A socket of TCP is
// writable when the connection is established.
func Connect(to netip.AddrPort, kind int) (*Socket, error) {
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
	s := NewSocket(fd)
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

// ConnectError returns why a connect failed, or nil.
func (s *Socket) ConnectError() error {
	errno, err := unix.GetsockoptInt(s.FD, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return os.NewSyscallError("getsockopt", err)
	case errno != 0:
		return os.NewSyscallError("connect", unix.Errno(errno))
	}
	return nil
}

// DialError returns the error of a connect in the form of the standard library.
func DialError(to netip.AddrPort, err error) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: err}
}
