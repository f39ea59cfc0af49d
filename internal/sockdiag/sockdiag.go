// Package sockdiag asks the kernel which socket gets the packets for an address and port. A question costs
// one lookup, however many sockets the host has. Programs of type sk_lookup take part in it, so the answer
// can be a socket that is bound elsewhere.
package sockdiag

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// Conn asks about the network namespace in which it was opened. It is not safe for concurrent use.
type Conn struct {
	netlink  *netlink.Conn
	counters netlink.Counters
}

// Open returns a Conn. It returns an error if this kernel doesn't answer: a kernel without the modules
// tcp_diag or udp_diag says that there is no socket, whatever the question is.
func Open() (*Conn, error) {
	c := &Conn{}
	c.netlink = netlink.NewConn(unix.NETLINK_SOCK_DIAG, &c.counters)
	if err := c.netlink.Open(); err != nil {
		return nil, err
	}
	for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		if err := c.check(protocol); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// Close closes the Conn. Nil is allowed.
func (c *Conn) Close() {
	if c != nil {
		c.netlink.Close()
	}
}

// check asks about a socket that it has opened.
func (c *Conn) check(protocol uint8) error {
	kind := unix.SOCK_STREAM
	if protocol == unix.IPPROTO_UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return fmt.Errorf("bind to a loopback address: %w", err)
	}
	if kind == unix.SOCK_STREAM {
		if err := unix.Listen(fd, 1); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("getsockname: %w", err)
	}
	at := name.(*unix.SockaddrInet4)
	_, found, err := c.Lookup(netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port)), protocol)
	if err == nil && !found {
		return lacks(protocol)
	}
	return err
}

// lacks returns the error of a kernel that answers nothing about the sockets of a protocol.
func lacks(protocol uint8) error {
	module := map[uint8]string{unix.IPPROTO_TCP: "tcp_diag", unix.IPPROTO_UDP: "udp_diag"}[protocol]
	return fmt.Errorf("this kernel tells nothing about sockets: modprobe %s", module)
}

// Lookup returns where the socket is bound that gets the packets for an address and port, and whether there is one. The
// protocol is that of IP, 6 or 17. For TCP, this is a listening socket; for UDP, one that isn't connected.
func (c *Conn) Lookup(place netip.AddrPort, protocol uint8) (at netip.AddrPort, found bool, err error) {
	from, to := place, netip.AddrPort{}
	if protocol == unix.IPPROTO_UDP { // the kernel takes the ends the other way round, and keeps it so
		from, to = to, from
	}
	err = c.netlink.Query(context.Background(), func(b []byte) []byte { return question(b, protocol, from, to) }, func(_ uint16, data []byte) error {
		at, err = answer(data)
		found = err == nil
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return at, found, err
}

// UserOf returns which user has the socket of a TCP connection in this network namespace, from its own end to the
// other one, and whether the kernel says so. A socket that no process has any more is unknown. It costs a netlink
// socket and one lookup.
func UserOf(from, to netip.AddrPort) (uid uint32, known bool) {
	from, to = netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port()), netip.AddrPortFrom(to.Addr().Unmap().WithZone(""), to.Port())
	c := netlink.NewConn(unix.NETLINK_SOCK_DIAG, &netlink.Counters{})
	if c.Open() != nil {
		return 0, false
	}
	defer c.Close()
	err := c.Query(context.Background(), func(b []byte) []byte {
		return question(b, unix.IPPROTO_TCP, from, to)
	}, func(_ uint16, data []byte) error {
		if len(data) < sizeOfMessage {
			return netlink.ErrMalformed
		}
		uid = binary.NativeEndian.Uint32(data[userAt:])
		known = data[1] == StateEstablished && binary.NativeEndian.Uint32(data[inodeAt:]) != 0
		return nil
	})
	return uid, known && err == nil
}

// answerHead is the size of struct inet_diag_msg of linux/inet_diag.h before its inet_diag_sockid.
const answerHead = 4

// Offsets in struct inet_diag_msg, and its size.
const userAt, inodeAt, sizeOfMessage = 64, 68, 72

// Offsets in struct inet_diag_sockid.
const (
	near, far         = 0, 2 // ports
	nearAddr, farAddr = 4, 20
	cookie            = 40
	sizeOfID          = 48
)

// question appends a message with a struct inet_diag_req_v2, which asks for one socket in any state by its end and the
// other one. One of them may be the zero value.
func question(b []byte, protocol uint8, from, to netip.AddrPort) []byte {
	family := uint8(unix.AF_INET6)
	if from.Addr().Is4() || to.Addr().Is4() {
		family = unix.AF_INET
	}
	var id [sizeOfID]byte
	binary.BigEndian.PutUint16(id[near:], from.Port())
	copy(id[nearAddr:], from.Addr().AsSlice())
	binary.BigEndian.PutUint16(id[far:], to.Port())
	copy(id[farAddr:], to.Addr().AsSlice())
	binary.NativeEndian.PutUint64(id[cookie:], ^uint64(0)) // any
	b = netlink.BeginMessage(b, unix.SOCK_DIAG_BY_FAMILY, 0)
	b = append(b, family, protocol, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, ^uint32(0))
	return append(b, id[:]...)
}

// answer returns where the socket in an answer is bound.
func answer(data []byte) (netip.AddrPort, error) {
	if len(data) < answerHead+sizeOfID {
		return netip.AddrPort{}, netlink.ErrMalformed
	}
	id := data[answerHead:]
	addr := netip.AddrFrom16([16]byte(id[nearAddr:]))
	if data[0] == unix.AF_INET {
		addr = netip.AddrFrom4([4]byte(id[nearAddr:]))
	}
	return netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(id[near:])), nil
}
