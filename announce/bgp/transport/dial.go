package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/sockopt"
)

// bgpPort is the port of BGP.
const bgpPort = 179

func portOf(p *announce.BGPPeer) uint16 { return cmp.Or(p.Port, bgpPort) }

// Dial connects to a router, at the address that was configured or found. Its errors are in an operator's
// terms.
func Dial(ctx context.Context, p *announce.BGPPeer, router netip.Addr) (net.Conn, error) {
	return dial(ctx, p, netip.AddrPortFrom(router, portOf(p)))
}

func dial(ctx context.Context, p *announce.BGPPeer, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Control: sockopt.Control(func(fd int) error {
		if err := cmp.Or(sockopt.BindToDevice(fd, p.VRF), setOptions(fd, to.Addr().Is6(), p)); err != nil || p.Password == "" {
			return err
		}
		return setPassword(fd, netip.PrefixFrom(to.Addr().WithZone(""), to.Addr().BitLen()), p.Password)
	})}
	if p.Source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.Source, 0))
	}
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, explain(ctx, p, to, err)
	}
	return c, nil
}

// setOptions sets TTL and traffic class of a connection.
func setOptions(fd int, v6 bool, p *announce.BGPPeer) error {
	ttl, least := ttl(p)
	return setTTL(fd, v6, ttl, least)
}

// setTTL sets the traffic class, and the TTL of sent and the least one of received packets; 0: the kernel's default.
func setTTL(fd int, v6 bool, ttl, least int) error {
	level, ttlOption, minOption, classOption := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_MINTTL, unix.IP_TOS
	if v6 {
		level, ttlOption, minOption, classOption = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_MINHOPCOUNT, unix.IPV6_TCLASS
	}
	for _, o := range []struct{ name, value int }{{classOption, sockopt.ClassSelector6}, {ttlOption, ttl}, {minOption, least}} {
		if o.value == 0 {
			continue
		}
		if err := unix.SetsockoptInt(fd, level, o.name, o.value); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

// setPassword requires MD5 signatures with a password from the routers with a prefix.
func setPassword(fd int, of netip.Prefix, password string) error {
	sig := unix.TCPMD5Sig{Keylen: uint16(len(password)), Prefixlen: uint8(of.Bits()), Flags: unix.TCP_MD5SIG_FLAG_PREFIX}
	copy(sig.Key[:], password)
	if of.Addr().Is4() {
		sig.Addr.Family = unix.AF_INET
		a := of.Addr().As4()
		putBytes(&sig.Addr, 2, a[:]) // struct sockaddr_in: port, address
	} else {
		sig.Addr.Family = unix.AF_INET6
		a := of.Addr().As16()
		putBytes(&sig.Addr, 6, a[:]) // struct sockaddr_in6: port, flow, address
	}
	if err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG_EXT, &sig); err != nil {
		return os.NewSyscallError("setsockopt TCP_MD5SIG_EXT", err)
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
func ttl(p *announce.BGPPeer) (ttl, least int) {
	switch {
	case p.TTLSecurity: // RFC 5082, section 3
		return 255, 256 - max(p.Multihop, 1)
	case p.Multihop > 0:
		return p.Multihop, 0
	case p.IBGP():
		return 0, 0
	}
	return 1, 0
}

// ErrRefused means that nothing listens on the router's port.
var ErrRefused = errors.New("connection refused")

// explain explains why no connection was opened.
func explain(ctx context.Context, p *announce.BGPPeer, to netip.AddrPort, err error) error {
	direct := p.Multihop <= 1 && !p.IBGP()
	switch {
	case ctx.Err() == context.Canceled:
		return context.Cause(ctx)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("device %s does not exist on this host", p.VRF)
	case errors.Is(err, unix.EADDRNOTAVAIL) && p.Source.IsValid():
		return fmt.Errorf("source %s is not an address of this host%s", p.Source, inVRF(p.VRF))
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("%w: no BGP daemon listens on %s, or it rejects this host", ErrRefused, to)
	case errors.Is(err, unix.EHOSTUNREACH) && direct:
		return fmt.Errorf("unreachable: no answer from %s at the link layer, or the router is not directly connected (multihop is not set)", to.Addr())
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		return fmt.Errorf("unreachable: this host has no route to %s%s", to.Addr(), inVRF(p.VRF))
	case errors.Is(err, unix.ENOPROTOOPT) && p.Password != "":
		return errors.New("password not supported: this kernel has no TCP MD5 signatures")
	case !isTimeout(err):
		return fmt.Errorf("connect to %s: %w", to, err)
	}
	password, hops := "the router requires a password", "the router requires ttl_security"
	if p.Password != "" {
		password = "the password is wrong, or the router has none"
	}
	if p.TTLSecurity {
		hops = "the router has no TTL security, or is farther away than multihop says"
	}
	return fmt.Errorf("no answer from %s: %s; %s; or a filter drops TCP port %d", to.Addr(), password, hops, to.Port())
}

// inVRF returns " in VRF NAME", or "" without one.
func inVRF(name string) string {
	if name == "" {
		return ""
	}
	return " in VRF " + name
}

func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, unix.ETIMEDOUT)
}
