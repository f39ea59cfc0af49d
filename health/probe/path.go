package probe

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/vip"
)

// A probe with a path connects to the virtual address, with the mark of the path. The address of its
// own is the one that this host would use for the backend: for a connection to the virtual address,
// which is this host's, the kernel would select that address itself. A probe of this host itself has the
// virtual address as its own and no mark.

// address returns where a job connects to: the target's address, or the VIP of its path.
func (j *job) address() netip.AddrPort {
	if p := j.t.Path(); !p.IsZero() {
		return netip.AddrPortFrom(p.VIP, j.t.Addr.Port())
	}
	return j.t.Addr
}

// prepare gives the socket of a job the mark of the path and the source address, if the job has a
// path. Its error is a pathError.
func prepare(fd int, j *job) error {
	p := j.t.Path()
	if p.IsZero() {
		return nil
	}
	var source unix.Sockaddr
	if j.t.Private() { // from the VIP: so another host that has it can't answer
		_, source = sockaddr(netip.AddrPortFrom(p.VIP, 0))
		_ = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_FREEBIND, 1) // for a local route of IPv6
	} else {
		var err error
		if source, err = sourceFor(p.Backend); err != nil {
			return pathError{"find a way to " + p.Backend.String(), err}
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(j.mark)); err != nil {
			return pathError{"set the packet mark", err}
		}
	}
	// Else bind would reserve a port for all destinations.
	_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	if err := unix.Bind(fd, source); err != nil {
		return pathError{"bind", err}
	}
	return nil
}

// sourceFor returns the address that this host uses for connections to an address. It sends nothing.
func sourceFor(to netip.Addr) (unix.Sockaddr, error) {
	const anyPort = 9
	family, sa := sockaddr(netip.AddrPortFrom(to, anyPort))
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, sa); err != nil {
		return nil, err
	}
	source, err := unix.Getsockname(fd)
	switch s := source.(type) {
	case *unix.SockaddrInet4:
		s.Port = 0
	case *unix.SockaddrInet6:
		s.Port = 0
	}
	return source, err
}

// pathError is the error of a socket that can't be prepared for a path.
type pathError struct {
	operation string
	err       error
}

func (e pathError) Error() string { return fmt.Sprintf("%s: %v", e.operation, e.err) }

// judge returns the outcome. A host without a route has no way for clients, either.
func (e pathError) judge() (Outcome, string) {
	if e.err == unix.EPERM {
		return Local, e.Error() + ": the agent needs CAP_NET_ADMIN"
	}
	return judge(e.operation, e.err)
}

// needPath counts the targets that need a target's path. The caller holds mu.
func (e *Engine) needPath(t Target, more int) {
	p := t.Path()
	if p.IsZero() || t.Private() || e.o.Paths == nil {
		return
	}
	if e.paths[p] += more; e.paths[p] > 0 {
		e.o.Paths.Set(p)
	} else {
		delete(e.paths, p)
		e.o.Paths.Delete(p)
	}
}

// markOf returns the mark of a target's path, or 0.
func (e *Engine) markOf(t *target) (uint32, error) {
	switch p := t.Path(); {
	case p.IsZero(), t.Private():
		return 0, nil
	case e.o.Mark == nil:
		return 0, ErrNoPaths
	default:
		return e.o.Mark(p)
	}
}

// ErrNoPaths means that the dataplane has no paths for probes.
var ErrNoPaths = vip.Problem{Code: vip.CodeDataplane, Message: "the dataplane has no paths for probes"}
