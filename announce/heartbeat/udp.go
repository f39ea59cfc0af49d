package heartbeat

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Packet is a received datagram.
type Packet struct {
	From netip.AddrPort
	Data []byte
}

// ErrBusy means that the kernel has no room for a packet now.
var ErrBusy = errors.New("the send queue is full")

// Conn is the socket of the heartbeats.
type Conn struct {
	udp *net.UDPConn
	// sendto is the system call. Tests replace it.
	sendto func(packet []byte, to netip.AddrPort) (int, error)
}

// Listen opens the socket at an address such as ":7481".
func Listen(address string) (*Conn, error) {
	addr, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, fmt.Errorf("heartbeats: %w", err)
	}
	udp, err := net.ListenUDP("udp", addr)
	if err != nil {
		return nil, fmt.Errorf("heartbeats: %w", err)
	}
	_ = udp.SetReadBuffer(1 << 20) // a burst of claims from every peer
	if raw, err := udp.SyscallConn(); err == nil {
		// Class selector 6, network control: heartbeats must pass when links are full.
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, 0xc0)
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 0xc0)
		})
	}
	return &Conn{udp, udp.WriteToUDPAddrPort}, nil
}

// Read waits for the next packet. It returns an error once the socket is closed. Longer packets
// than MaxSize are cut, and thus refused.
func (c *Conn) Read() (Packet, error) {
	b := make([]byte, MaxSize+1)
	n, from, err := c.udp.ReadFromUDPAddrPort(b)
	return Packet{from, b[:n]}, err
}

// Write sends a packet. An error concerns this packet only. It is ErrBusy, or that of the system.
func (c *Conn) Write(to netip.AddrPort, packet []byte) error {
	_, err := c.sendto(packet, to)
	if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EAGAIN) {
		return ErrBusy
	}
	return err
}

// Addr returns the local address.
func (c *Conn) Addr() net.Addr { return c.udp.LocalAddr() }

// Close closes the socket.
func (c *Conn) Close() error { return c.udp.Close() }
