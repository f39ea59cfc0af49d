package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// classSelector6 is the traffic class of routing protocols (RFC 4594, 3.2: DSCP CS6).
const classSelector6 = 0xc0

// tcp opens TCP connections.
type tcp struct{}

func (*tcp) dial(ctx context.Context, p *Peer, router netip.Addr) (net.Conn, error) {
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		return cmp.Or(raw.Control(func(fd uintptr) { failed = setOptions(int(fd), p, router) }), failed)
	}}
	if p.Source.IsValid() && p.Source.Is4() == router.Is4() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.Source, 0))
	}
	to := netip.AddrPortFrom(router, p.Port)
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, explainDial(ctx, p, to, err)
	}
	return c, nil
}

// setOptions sets TTL, traffic class and password of a connection.
func setOptions(fd int, p *Peer, router netip.Addr) error {
	level, ttlOption, minOption, classOption := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_MINTTL, unix.IP_TOS
	if router.Is6() {
		level, ttlOption, minOption, classOption = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_MINHOPCOUNT, unix.IPV6_TCLASS
	}
	ttl, least := p.ttl()
	for _, o := range []struct{ name, value int }{{classOption, classSelector6}, {ttlOption, ttl}, {minOption, least}} {
		if o.value == 0 {
			continue
		}
		if err := unix.SetsockoptInt(fd, level, o.name, o.value); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if p.Password == "" {
		return nil
	}
	s := unix.TCPMD5Sig{Keylen: uint16(len(p.Password))}
	copy(s.Key[:], p.Password)
	if router.Is4() {
		s.Addr.Family = unix.AF_INET
		a := router.As4()
		putBytes(&s.Addr, 2, a[:]) // struct sockaddr_in: port, address
	} else {
		s.Addr.Family = unix.AF_INET6
		a := router.As16()
		putBytes(&s.Addr, 6, a[:]) // struct sockaddr_in6: port, flow, address
	}
	if err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &s); err != nil {
		return os.NewSyscallError("setsockopt TCP_MD5SIG", err)
	}
	return nil
}

// putBytes writes b into the address, at an offset after the family.
func putBytes(a *unix.SockaddrStorage, at int, b []byte) {
	for i, x := range b {
		a.Data[at+i] = x
	}
}

// ttl returns the TTL of our packets and the least TTL of the router's; 0: the kernel's default.
func (p *Peer) ttl() (ttl, least int) {
	switch {
	case p.TTLSecurity: // RFC 5082, section 3
		return 255, 256 - int(max(p.Multihop, 1))
	case p.Multihop > 0:
		return int(p.Multihop), 0
	case p.internal():
		return 0, 0
	}
	return 1, 0
}

// errRefused means that nothing listens on the router's port.
var errRefused = errors.New("connection refused")

// explainDial explains why no connection was opened.
func explainDial(ctx context.Context, p *Peer, to netip.AddrPort, err error) error {
	direct := p.Multihop <= 1 && !p.internal()
	switch {
	case ctx.Err() == context.Canceled:
		return context.Cause(ctx)
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("%w: no BGP daemon listens on %s, or it rejects this host", errRefused, to)
	case errors.Is(err, unix.EHOSTUNREACH) && direct:
		return fmt.Errorf("unreachable: no answer from %s at the link layer, or the router is not directly connected (multihop is not set)", to.Addr())
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		return fmt.Errorf("unreachable: this host has no route to %s", to.Addr())
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("source address %s is not an address of this host", p.Source)
	case errors.Is(err, unix.ENOPROTOOPT) && p.Password != "":
		return errors.New("password not supported: this kernel has no TCP MD5 signatures")
	case !isTimeout(err):
		return fmt.Errorf("connect to %s: %w", to, err)
	case p.Password != "":
		return fmt.Errorf("no answer from %s: the password is wrong, or a filter drops TCP port %d", to.Addr(), to.Port())
	}
	return fmt.Errorf("no answer from %s: the router requires a password, or a filter drops TCP port %d", to.Addr(), to.Port())
}

func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, unix.ETIMEDOUT)
}

// nextHops returns the configured next hops, else the connection's own address, else an address of
// its interface for the other family.
func (*tcp) nextHops(c net.Conn, p *Peer, peer6 bool) (hops [families]netip.Addr) {
	hops = [families]netip.Addr{p.NextHop4, p.NextHop6}
	at, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return hops
	}
	local := at.AddrPort().Addr().Unmap()
	own := ip4
	if local.Is6() {
		own = ip6
	}
	if !hops[own].IsValid() {
		hops[own] = local.WithZone("")
	}
	other := ip6 - own
	if hops[other].IsValid() {
		return hops
	}
	if own == ip6 && peer6 { // RFC 8950: the routes take the path of the session
		hops[ip4] = hops[ip6]
	} else {
		hops[other] = addressBeside(local, other)
	}
	return hops
}

// addressBeside returns an address of a family on the interface that has local: a global one, or
// the zero value.
func addressBeside(local netip.Addr, f family) (found netip.Addr) {
	devices, err := net.Interfaces()
	if err != nil {
		return found
	}
	for _, d := range devices {
		addrs, err := d.Addrs()
		if err != nil {
			continue
		}
		here := false
		var candidate netip.Addr
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			addr, _ := netip.AddrFromSlice(n.IP)
			addr = addr.Unmap()
			if addr == local.WithZone("") && (local.Zone() == "" || local.Zone() == d.Name) {
				here = true
			}
			if !candidate.IsValid() && addr.IsGlobalUnicast() && addr.Is4() == (f == ip4) {
				candidate = addr
			}
		}
		if here {
			return candidate
		}
	}
	return found
}
