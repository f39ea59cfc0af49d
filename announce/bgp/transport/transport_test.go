package transport

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

func TestTTL(t *testing.T) {
	for _, c := range []struct {
		p          announce.BGPPeer
		ttl, least int
	}{
		{announce.BGPPeer{ASN: 1}, 1, 0}, // RFC 4271: directly connected
		{announce.BGPPeer{}, 0, 0},       // iBGP
		{announce.BGPPeer{ASN: 1, Multihop: 3}, 3, 0},
		{announce.BGPPeer{Multihop: 3}, 3, 0},
		{announce.BGPPeer{ASN: 1, TTLSecurity: true}, 255, 255},
		{announce.BGPPeer{ASN: 1, TTLSecurity: true, Multihop: 3}, 255, 253},
	} {
		if ttl, least := ttl(&c.p); ttl != c.ttl || least != c.least {
			t.Errorf("%+v: %d, %d, want %d, %d", c.p, ttl, least, c.ttl, c.least)
		}
	}
}

// Connections have the options of the settings, and the next hops are their addresses.
func TestDial(t *testing.T) {
	for _, to := range []string{"127.0.0.1", "::1"} {
		router := netip.MustParseAddr(to)
		l := must.Get(net.Listen("tcp", netip.AddrPortFrom(router, 0).String()))(t)
		at := l.Addr().(*net.TCPAddr).AddrPort()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c, err := dial(ctx, &announce.BGPPeer{TTLSecurity: true, Multihop: 255}, at) // the listener has the usual TTL
		must.Succeed(t, err)
		raw := must.Get(c.(*net.TCPConn).SyscallConn())(t)
		raw.Control(func(fd uintptr) {
			level, option := unix.IPPROTO_IP, unix.IP_TTL
			if router.Is6() {
				level, option = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
			}
			if ttl, err := unix.GetsockoptInt(int(fd), level, option); ttl != 255 || err != nil {
				t.Errorf("TTL %d, %v", ttl, err)
			}
		})
		own := message.IPv4
		if router.Is6() {
			own = message.IPv6
		}
		if hops := NextHops(c, "", true); hops[own] != router || router.Is6() && hops[message.IPv4] != router {
			t.Errorf("next hops %v of %v", hops, router)
		}
		c.Close()
		l.Close()
		if _, err := dial(ctx, &announce.BGPPeer{}, at); !errors.Is(err, ErrRefused) {
			t.Errorf("%v, want %v", err, ErrRefused)
		}
	}
}

func TestExplain(t *testing.T) {
	to := netip.MustParseAddrPort("10.0.0.1:179")
	ended, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("configuration changed")
	cancel(cause)
	late, stop := context.WithDeadline(t.Context(), time.Now())
	defer stop()
	for _, c := range []struct {
		ctx  context.Context
		p    announce.BGPPeer
		err  error
		want string
	}{
		{ended, announce.BGPPeer{ASN: 1}, context.Canceled, "configuration changed"},
		{t.Context(), announce.BGPPeer{ASN: 1}, unix.ECONNREFUSED, "connection refused: no BGP daemon listens on 10.0.0.1:179"},
		{t.Context(), announce.BGPPeer{ASN: 1}, unix.EHOSTUNREACH, "unreachable: no answer from 10.0.0.1 at the link layer"},
		{t.Context(), announce.BGPPeer{}, unix.EHOSTUNREACH, "unreachable: this host has no route"},
		{t.Context(), announce.BGPPeer{ASN: 1}, unix.ENETUNREACH, "unreachable: this host has no route"},
		{t.Context(), announce.BGPPeer{ASN: 1, Password: "x"}, unix.ENOPROTOOPT, "password not supported"},
		{late, announce.BGPPeer{ASN: 1}, context.DeadlineExceeded, "the router requires a password"},
		{late, announce.BGPPeer{ASN: 1, Password: "x"}, context.DeadlineExceeded, "the password is wrong, or the router has none; the router requires ttl_security; or a filter"},
		{late, announce.BGPPeer{ASN: 1, TTLSecurity: true, Multihop: 2}, context.DeadlineExceeded, "the router has no TTL security, or is farther away than multihop says"},
		{t.Context(), announce.BGPPeer{ASN: 1}, unix.EPERM, "connect to 10.0.0.1:179: operation not permitted"},
	} {
		got := explain(c.ctx, &c.p, to, c.err)
		expect.Contains(t, got.Error(), c.want, "%v: %q", c.err, got)
	}
}
