package host

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/vip"
)

// FreePort returns a problem if a socket in the calling thread's network namespace has k's
// port on k's address or on all addresses. IPVS receives packets before any socket does, so
// a node port on that port would silently cut off the socket's process. It binds a socket
// and closes it, so the cost doesn't depend on the number of sockets. It returns nil if it
// can't check.
func FreePort(k vip.FrontendKey) error {
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
		return nil // the host has no sockets of this protocol
	}
	defer unix.Close(fd)
	if k.Protocol != vip.UDP {
		// Connections in TIME_WAIT, and outgoing ones from this port, don't conflict.
		// Listeners do, also with this option.
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
