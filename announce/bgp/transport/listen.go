package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/sockopt"
)

// Endpoint is where this host accepts the connections of routers.
type Endpoint struct {
	Addr netip.AddrPort // an unspecified address: at all of its family
	VRF  string
}

// EndpointOf returns the endpoint to which the router of a passive peer, or the routers of a range connect.
func EndpointOf(p *announce.BGPPeer) Endpoint {
	addr := p.Source
	if !addr.IsValid() {
		if addr = netip.IPv4Unspecified(); p.Peer.Is6() || p.PeerRange.Addr().Is6() {
			addr = netip.IPv6Unspecified()
		}
	}
	return Endpoint{netip.AddrPortFrom(addr, portOf(p)), p.VRF}
}

// String returns "10.0.0.5:179", or "TCP port 179" for all addresses, and the VRF.
func (e Endpoint) String() string {
	at := e.Addr.String()
	if e.Addr.Addr().IsUnspecified() {
		at = fmt.Sprintf("TCP port %d", e.Addr.Port())
	}
	return at + inVRF(e.VRF)
}

// Listen accepts connections at an endpoint. The kernel requires the passwords of the peers. If all peers have TTL
// security, packets from farther away than the farthest of them are dropped before there is a connection.
func Listen(at Endpoint, peers []announce.BGPPeer) (*net.TCPListener, error) {
	v6 := at.Addr.Addr().Is6()
	least := 255
	for i := range peers {
		_, l := ttl(&peers[i])
		least = min(least, l)
	}
	lc := net.ListenConfig{KeepAlive: -1, Control: sockopt.Control(func(fd int) error {
		// With SO_REUSEPORT, listeners of one address and of all, and of a VRF and of none, exclude each other no more. Listeners
		// of other users still do.
		err := cmp.Or(sockopt.BindToDevice(fd, at.VRF), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
			setTTL(fd, v6, 255, least)) // of the SYN-ACK; Accepted sets that of the peer
		for i := range peers {
			p := &peers[i]
			if err != nil || p.Password == "" {
				continue
			}
			of := p.PeerRange
			if !of.IsValid() {
				of = netip.PrefixFrom(p.Peer.WithZone(""), p.Peer.BitLen())
			}
			err = setPassword(fd, of, p.Password)
		}
		return err
	})}
	l, err := lc.Listen(context.Background(), map[bool]string{false: "tcp4", true: "tcp6"}[v6], at.Addr.String())
	switch {
	case err == nil:
		return l.(*net.TCPListener), nil
	case errors.Is(err, unix.ENODEV):
		return nil, fmt.Errorf("device %s does not exist on this host", at.VRF)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil, fmt.Errorf("source %s is not an address of this host%s", at.Addr.Addr(), inVRF(at.VRF))
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: in use: another BGP daemon runs on this host", at)
	case errors.Is(err, unix.EACCES):
		return nil, fmt.Errorf("listen on %s: not permitted: the process needs the capability CAP_NET_BIND_SERVICE", at)
	case errors.Is(err, unix.ENOPROTOOPT):
		return nil, errors.New("password not supported: this kernel has no TCP MD5 signatures")
	}
	return nil, fmt.Errorf("listen on %s: %w", at, err)
}

// Accepted sets the options of a peer on a connection that its router has opened.
func Accepted(c net.Conn, p *announce.BGPPeer) error {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = setOptions(int(fd), p.Peer.Is6(), p) })
	return cmp.Or(err, failed)
}

// Reset ends a connection at once, without a wait of the kernel for the other side.
func Reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.Close()
}

// RouterOf returns the address of the router that has opened a connection, with a zone if it is link-local.
func RouterOf(c net.Conn) netip.Addr {
	at, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return at.AddrPort().Addr().Unmap()
}
