package heartbeat

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

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
	raw syscall.RawConn // of udp
	// sendto is send. Tests replace it.
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
	raw, err := udp.SyscallConn()
	if err != nil {
		udp.Close()
		return nil, fmt.Errorf("heartbeats: %w", err)
	}
	c := &Conn{udp: udp, raw: raw}
	c.sendto = c.send
	// Class selector 6, network control: heartbeats must pass when links are full.
	c.set(unix.IPPROTO_IP, unix.IP_TOS, 0xc0)
	c.set(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 0xc0)
	return c, nil
}

// set sets an option of the socket. A socket of one family refuses those of the other one.
func (c *Conn) set(level, option, value int) {
	_ = c.raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), level, option, value) })
}

// send sends a packet with reports of errors. Without these, the kernel conceals that an interface's
// queue has dropped a packet of UDP. They are not on all the time, because they include ICMP errors of
// earlier packets to any peer, which would take room from received packets. Ending them drops these.
func (c *Conn) send(packet []byte, to netip.AddrPort) (int, error) {
	level, option := unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	if to.Addr().Unmap().Is4() {
		level, option = unix.IPPROTO_IP, unix.IP_RECVERR
	}
	c.set(level, option, 1)
	defer c.set(level, option, 0)
	n, err := c.udp.WriteToUDPAddrPort(packet, to)
	if err != nil && !isBusy(err) { // it may concern an earlier packet, and is reported once
		n, err = c.udp.WriteToUDPAddrPort(packet, to)
	}
	return n, err
}

func isBusy(err error) bool { return errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EAGAIN) }

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
	if isBusy(err) {
		return ErrBusy
	}
	return err
}

// Close closes the socket.
func (c *Conn) Close() error { return c.udp.Close() }
