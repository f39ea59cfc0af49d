package proxy

import (
	"context"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/sockopt"
	"github.com/ironvip/ironvip/proxy/loop"
	"github.com/ironvip/ironvip/proxy/steer"
	"github.com/ironvip/ironvip/vip"
)

// steeredTCP is the listener of a frontend whose clients a common socket accepts.
type steeredTCP struct {
	s       *steer.Steering
	key     vip.FrontendKey
	stopped bool
}

func (l *steeredTCP) usable(bool) error { return nil }
func (l *steeredTCP) died() error       { return l.s.Died(l.key) }

func (l *steeredTCP) stop() {
	l.stopped = true
	l.s.Forget(l.key)
}

func (l *steeredTCP) close() {
	if !l.stopped {
		l.s.Remove(l.key)
	}
}

// steeredUDP is the arrival by a common socket. Replies leave through a socket that is bound to the
// frontend's address and port while the frontend has sessions; the kernel passes no datagrams to it,
// because the program selects another one. Without a usable backend, the kernel answers port
// unreachable, and no other process gets the datagrams.
type steeredUDP struct {
	s     *steer.Steering
	isNew bool // until it has begun
}

func (w *steeredUDP) begin(u *udpListener) error {
	err := w.s.EnterUDP(u.f.Key, w.isNew, u.receive)
	w.isNew = w.isNew && err != nil
	return err
}

func (w *steeredUDP) end(u *udpListener, gone bool) {
	switch {
	case u.stopped.Load():
	case gone:
		w.s.Remove(u.f.Key)
	default:
		if err := w.s.Refuse(u.f.Key); err != nil {
			u.f.complain("refuse datagrams", err)
		}
	}
	w.idle(u)
}

func (w *steeredUDP) stop(u *udpListener) { w.s.Forget(u.f.Key) }

func (w *steeredUDP) reply(u *udpListener) error {
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

func (w *steeredUDP) idle(u *udpListener) {
	if u.conn != nil {
		u.conn.Close()
		u.f.target.balance.Capacity.RemoveListener()
		u.conn = nil
	}
}

func (w *steeredUDP) died(u *udpListener) error {
	if u.death != nil {
		return u.death
	}
	if !u.open {
		return nil
	}
	return w.s.Died(u.f.Key)
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
