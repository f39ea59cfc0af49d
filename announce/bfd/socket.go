package bfd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sockopt"
)

// The UDP ports of RFC 5881, section 4, and RFC 5883, section 5.
const (
	portSingleHop = 3784
	portMultihop  = 4784
	firstSource   = 49152
	lastSource    = 65535
)

// socketKind identifies a receiving socket.
type socketKind struct {
	v6, multihop bool
	vrf          string
}

func kindOf(c Settings) socketKind { return socketKind{c.Peer.Is6(), c.Multihop, c.VRF} }

func (k socketKind) port() uint16 {
	if k.multihop {
		return portMultihop
	}
	return portSingleHop
}

// origin is where a packet came from.
type origin struct {
	addr netip.Addr // with a zone if it is link-local
	ttl  int        // 0 if unknown
}

// network opens sockets. Tests replace the kernel's.
type network interface {
	listen(socketKind) (receiver, error)
	dial(c Settings, port uint16) (sender, error) // from that port, if it is free; 0: any one
}

type receiver interface {
	// receive blocks until there is a packet. It returns an error only if the socket is of no use
	// any more.
	receive(b []byte) (n int, from origin, err error)
	Close() error
}

type sender interface {
	send(b []byte) error
	port() uint16
	Close() error
}

type kernel struct{}

func (kernel) listen(k socketKind) (receiver, error) {
	network, addr := "udp4", "0.0.0.0"
	if k.v6 {
		network, addr = "udp6", "::"
	}
	c, err := listenUDP(network, netip.AddrPortFrom(netip.MustParseAddr(addr), k.port()), func(fd int) error {
		if err := sockopt.BindToDevice(fd, k.vrf); err != nil {
			return err
		}
		if k.v6 {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1)
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTTL, 1)
	})
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("listen on UDP port %d: in use: another BFD daemon runs on this host", k.port())
	}
	if err != nil {
		return nil, fmt.Errorf("listen on UDP port %d: %w", k.port(), err)
	}
	return &udpReceiver{c, make([]byte, 64), k.vrf, sockopt.DeviceIndex(k.vrf)}, nil
}

func (kernel) dial(c Settings, port uint16) (sender, error) {
	network, local := "udp4", netip.IPv4Unspecified()
	if c.Peer.Is6() {
		network, local = "udp6", netip.IPv6Unspecified()
	}
	if c.Source.IsValid() {
		local = c.Source
	}
	options := func(fd int) error {
		if err := sockopt.BindToDevice(fd, c.VRF); err != nil {
			return err
		}
		if c.Peer.Is6() {
			return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 255),
				unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, sockopt.ClassSelector6))
		}
		return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, 255),
			unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, sockopt.ClassSelector6))
	}
	var err error
	for range 8 { // until a free port is found
		var u *net.UDPConn
		if port == 0 {
			port = uint16(firstSource + rand.IntN(lastSource-firstSource+1))
		}
		if u, err = listenUDP(network, netip.AddrPortFrom(local, port), options); err == nil {
			return &udpSender{u, netip.AddrPortFrom(c.Peer, kindOf(c).port())}, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
		port = 0
	}
	return nil, err
}

func listenUDP(network string, at netip.AddrPort, options func(fd int) error) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: sockopt.Control(options)}
	c, err := lc.ListenPacket(context.Background(), network, at.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

type udpSender struct {
	*net.UDPConn
	to netip.AddrPort
}

func (u *udpSender) port() uint16 { return u.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

func (u *udpSender) send(b []byte) error {
	_, err := u.WriteToUDPAddrPort(b, u.to)
	// The socket reports an ICMP error of an earlier packet: the peer's daemon doesn't run.
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err // the addresses are in the caller's text
	}
	return err
}

type udpReceiver struct {
	*net.UDPConn
	oob   []byte
	vrf   string // "": none
	index int    // of the VRF
}

func (u *udpReceiver) receive(b []byte) (int, origin, error) {
	for {
		if u.vrf != "" {
			u.SetReadDeadline(time.Now().Add(sockopt.DeviceCheck))
		}
		n, oobn, _, from, err := u.ReadMsgUDPAddrPort(b, u.oob)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return 0, origin{}, err
			}
			if errors.Is(err, os.ErrDeadlineExceeded) && sockopt.DeviceIndex(u.vrf) != u.index {
				return 0, origin{}, fmt.Errorf("device %s was removed or created again", u.vrf)
			}
			continue // of one packet: an ICMP error, no memory
		}
		return n, origin{from.Addr().Unmap(), sockopt.HopLimit(u.oob[:oobn])}, nil
	}
}
