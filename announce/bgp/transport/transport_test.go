package transport

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

func TestTTL(t *testing.T) {
	for _, c := range []struct {
		s          Settings
		ttl, least int
	}{
		{Settings{}, 1, 0}, // RFC 4271: directly connected
		{Settings{IBGP: true}, 0, 0},
		{Settings{Multihop: 3}, 3, 0},
		{Settings{Multihop: 3, IBGP: true}, 3, 0},
		{Settings{TTLSecurity: true}, 255, 255},
		{Settings{TTLSecurity: true, Multihop: 3}, 255, 253},
	} {
		if ttl, least := c.s.ttl(); ttl != c.ttl || least != c.least {
			t.Errorf("%+v: %d, %d, want %d, %d", c.s, ttl, least, c.ttl, c.least)
		}
	}
}

// Connections have the options of the settings, and the next hops are their addresses.
func TestDial(t *testing.T) {
	for _, to := range []string{"127.0.0.1", "::1"} {
		router := netip.MustParseAddr(to)
		l := must.Get(net.Listen("tcp", netip.AddrPortFrom(router, 0).String()))(t)
		port := l.Addr().(*net.TCPAddr).AddrPort().Port()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c, err := Dial(ctx, Settings{Port: port, TTLSecurity: true, Multihop: 255}, router) // the listener has the usual TTL
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
		if hops := NextHops(c, [message.Families]netip.Addr{}, true); hops[own] != router || router.Is6() && hops[message.IPv4] != router {
			t.Errorf("next hops %v of %v", hops, router)
		}
		configured := [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
		expect.Equal(t, NextHops(c, configured, true), configured, "next hops")
		c.Close()
		l.Close()
		if _, err := Dial(ctx, Settings{Port: port}, router); !errors.Is(err, ErrRefused) {
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
		s    Settings
		err  error
		want string
	}{
		{ended, Settings{}, context.Canceled, "configuration changed"},
		{t.Context(), Settings{}, unix.ECONNREFUSED, "connection refused: no BGP daemon listens on 10.0.0.1:179"},
		{t.Context(), Settings{}, unix.EHOSTUNREACH, "unreachable: no answer from 10.0.0.1 at the link layer"},
		{t.Context(), Settings{IBGP: true}, unix.EHOSTUNREACH, "unreachable: this host has no route"},
		{t.Context(), Settings{}, unix.ENETUNREACH, "unreachable: this host has no route"},
		{t.Context(), Settings{Password: "x"}, unix.ENOPROTOOPT, "password not supported"},
		{late, Settings{}, context.DeadlineExceeded, "the router requires a password"},
		{late, Settings{Password: "x"}, context.DeadlineExceeded, "the password is wrong"},
		{t.Context(), Settings{}, unix.EPERM, "connect to 10.0.0.1:179: operation not permitted"},
	} {
		if got := explain(c.ctx, &c.s, to, c.err); !strings.Contains(got.Error(), c.want) {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}
