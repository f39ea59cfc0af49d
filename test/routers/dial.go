//go:build linux

package routers

import (
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sockopt"
)

// DialBGP connects to TCP port 179 as a router with an address and the password of TCP MD5 signatures; "": none. It does
// not use the code under test.
func DialBGP(from, to netip.Addr, password string, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), Control: sockopt.Control(func(fd int) error {
		level, option := unix.IPPROTO_IP, unix.IP_TTL
		if to.Is6() {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
		}
		if err := unix.SetsockoptInt(fd, level, option, 255); err != nil || password == "" {
			return err
		}
		sig := unix.TCPMD5Sig{Keylen: uint16(len(password))}
		copy(sig.Key[:], password)
		at, family, addr := 2, uint16(unix.AF_INET), to.AsSlice()
		if to.Is6() {
			at, family = 6, unix.AF_INET6
		}
		sig.Addr.Family = family
		for i, b := range addr {
			sig.Addr.Data[at+i] = b
		}
		return unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &sig)
	})}
	return d.Dial("tcp", netip.AddrPortFrom(to, 179).String())
}
