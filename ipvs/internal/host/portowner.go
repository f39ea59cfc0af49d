package host

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/vip"
)

// PortOwnership tells whether a process of this host has a port already. IPVS takes
// packets before any socket sees them, so a node port on such a port would cut
// that process off without a word to anyone.
type PortOwnership struct{}

// Free returns a problem when a socket in the calling thread's network
// namespace has the address and port of k, or that port on all addresses. It
// asks by binding a socket, which is gone before free returns, so it costs the
// same on a host with many sockets. What can't be asked counts as free.
func (PortOwnership) Free(k vip.FrontendKey) error {
	kind := unix.SOCK_STREAM
	if k.Protocol == vip.UDP {
		kind = unix.SOCK_DGRAM
	}
	family, address := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(k.Port), Addr: [4]byte{}})
	if k.Addr.Is4() {
		address.(*unix.SockaddrInet4).Addr = k.Addr.As4()
	} else {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Port: int(k.Port), Addr: k.Addr.As16()}
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, int(k.Protocol))
	if err != nil {
		return nil // a protocol that this host has no sockets for
	}
	defer unix.Close(fd)
	if k.Protocol != vip.UDP {
		// Connections that only wait for their end, and those that this host made
		// from that port, are in nobody's way; listeners are, with this option too.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if unix.Bind(fd, address) != unix.EADDRINUSE {
		return nil
	}
	return vip.Problem{
		Code:    vip.CodePortTaken,
		Message: fmt.Sprintf("a process of this host has %s already", k),
		Hint:    fmt.Sprintf("`ss -lnp 'sport = :%d'` shows which; stop it, or ask for another node port", k.Port),
	}
}
