package proxy

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sklookup"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/sockopt"
	"github.com/ironvip/ironvip/proxy/loop"
	"github.com/ironvip/ironvip/vip"
)

// steered is the arrival by a common socket. Replies leave through a socket that is bound to the
// frontend's address and port while the frontend has sessions; the kernel passes no datagrams to it,
// because the program selects another one. Without a usable backend, the kernel answers port
// unreachable, and no other process gets the datagrams.
type steered struct {
	s     *steering
	isNew bool // until it has begun
}

func (w *steered) begin(u *udpListener) error {
	key := u.f.Key
	if err := w.s.enter(key, w.isNew, func() { w.s.udp[entryOf(key)] = u }); err != nil {
		w.s.forget(key)
		return err
	}
	w.isNew = false
	return nil
}

func (w *steered) end(u *udpListener, gone bool) {
	key := u.f.Key
	switch {
	case u.stopped.Load():
	case gone:
		w.s.remove(key)
	default:
		if err := w.s.table.Put(entryOf(key), sklookup.Refused); err != nil {
			u.f.complain("refuse datagrams", err)
		}
		w.s.forget(key)
	}
	w.idle(u)
}

func (w *steered) stop(u *udpListener) { w.s.forget(u.f.Key) }

func (w *steered) reply(u *udpListener) error {
	if u.conn != nil {
		return nil
	}
	if err := u.f.target.balance.Capacity.AddListener(); err != nil {
		return err
	}
	conn, err := bindReply(u.f.Key.AddrPort())
	if err != nil {
		u.f.target.balance.Capacity.RemoveListener()
		return err
	}
	u.conn = conn
	return nil
}

func (w *steered) idle(u *udpListener) {
	if u.conn != nil {
		u.conn.Close()
		u.f.target.balance.Capacity.RemoveListener()
		u.conn = nil
	}
}

func (w *steered) died(u *udpListener) error {
	if u.death != nil {
		return u.death
	}
	if !u.open {
		return nil
	}
	return w.s.died(u.f.Key)
}

// bindReply returns a socket for the replies of a frontend. A process that was replaced may have one, too.
func bindReply(at netip.AddrPort) (*sockets.Unpolled, error) {
	share := sockopt.Control(func(fd int) error {
		loop.PrepareReplies(fd)
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	})
	network := "udp6"
	if at.Addr().Is4() {
		network = "udp4"
	}
	conn, err := (&net.ListenConfig{Control: share}).ListenPacket(context.Background(), network, at.String())
	if err != nil {
		return nil, err
	}
	return sockets.Unpoll(conn.(*net.UDPConn))
}

// receiveDestinations makes the kernel report the destination of each datagram, of the family of like.
func receiveDestinations(conn *sockets.Unpolled, like netip.Addr) (err error) {
	level, name := unix.SOL_IPV6, unix.IPV6_RECVORIGDSTADDR
	if like.Is4() {
		level, name = unix.SOL_IP, unix.IP_RECVORIGDSTADDR
	}
	_ = conn.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, name, 1) })
	return err
}

// destination returns the destination in the control messages of a datagram.
func destination(control []byte) (at netip.AddrPort, ok bool) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return at, false
	}
	for _, m := range messages {
		// struct sockaddr_in and sockaddr_in6: family, port, for IPv6 a flow label, address
		switch {
		case m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_ORIGDSTADDR && len(m.Data) >= 8:
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte(m.Data[4:8])), binary.BigEndian.Uint16(m.Data[2:])), true
		case m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_ORIGDSTADDR && len(m.Data) >= 24:
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte(m.Data[8:24])), binary.BigEndian.Uint16(m.Data[2:])), true
		}
	}
	return at, false
}

// deliver passes a datagram to its frontend. It holds no lock of s meanwhile: the listener takes no
// datagram once it is closed.
func (s *steering) deliver(d loop.Datagram, by *loop.Loop) {
	to, ok := destination(d.Control())
	if !ok {
		return
	}
	s.mu.RLock()
	u := s.udp[sklookup.KeyOf(to, uint8(vip.UDP))]
	s.mu.RUnlock()
	if u != nil {
		u.receive(d, by)
	}
}
