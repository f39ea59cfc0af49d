package sockdiag

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"testing"
)

// hold opens a socket, and returns its port.
func hold(t *testing.T, network, at string) uint16 {
	t.Helper()
	var addr net.Addr
	if network[:3] == "tcp" {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false)
		l, err := config.Listen(context.Background(), network, at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		addr = l.Addr()
	} else {
		c, err := net.ListenPacket(network, at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		addr = c.LocalAddr()
	}
	return netip.MustParseAddrPort(addr.String()).Port()
}

func TestLookup(t *testing.T) {
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for protocol, name := range map[uint8]string{6: "tcp", 17: "udp"} {
		for _, test := range []struct{ network, at, ask, want string }{
			{"4", "127.0.0.1", "127.0.0.1", "127.0.0.1"},
			{"4", "127.0.0.1", "127.0.0.2", ""},
			{"4", "0.0.0.0", "127.0.0.2", "0.0.0.0"},
			{"6", "::1", "::1", "::1"},
			{"6", "::", "::1", "::"},
			{"6", "::", "127.0.0.2", ""}, // IPv6 only
			{"", "::", "127.0.0.2", "::"},
			{"4", "0.0.0.0", "::1", ""},
		} {
			port := hold(t, name+test.network, net.JoinHostPort(test.at, "0"))
			at, found, err := c.Lookup(Place{netip.AddrPortFrom(netip.MustParseAddr(test.ask), port), protocol})
			got := ""
			if found {
				got = at.Addr().String()
				if at.Port() != port {
					t.Errorf("port %d instead of %d", at.Port(), port)
				}
			}
			if err != nil || got != test.want {
				t.Errorf("%s%s at %s: %s gets %q instead of %q, %v", name, test.network, test.at, test.ask, got, test.want, err)
			}
		}
	}
}

func TestList(t *testing.T) {
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for protocol, name := range map[uint8]string{6: "tcp", 17: "udp"} {
		var want []netip.AddrPort
		for range 200 { // more than fit into one answer
			for _, at := range []string{"127.0.0.1", "0.0.0.0", "::1", "::"} {
				want = append(want, netip.AddrPortFrom(netip.MustParseAddr(at), hold(t, name, net.JoinHostPort(at, "0"))))
			}
		}
		connected, err := net.Dial(name, want[0].String())
		if err != nil {
			t.Fatal(err)
		}
		defer connected.Close()
		got := make(map[netip.AddrPort]bool)
		if err := c.List(protocol, func(at netip.AddrPort) error { got[at] = true; return nil }); err != nil {
			t.Fatal(err)
		}
		for _, at := range want {
			if !got[at] && !got[netip.AddrPortFrom(netip.IPv6Unspecified(), at.Port())] { // 0.0.0.0 is :: in package net
				t.Errorf("%s: %s is missing", name, at)
			}
		}
		if at := netip.MustParseAddrPort(connected.LocalAddr().String()); got[at] {
			t.Errorf("%s: the connected socket %s is listed", name, at)
		}
		enough := errors.New("enough")
		if err := c.List(protocol, func(netip.AddrPort) error { return enough }); !errors.Is(err, enough) {
			t.Errorf("error %v", err)
		}
		if _, found, err := c.Lookup(Place{want[0], protocol}); err != nil || !found { // after the rest of a list
			t.Errorf("%s: found %t, error %v", name, found, err)
		}
	}
}

func TestTaken(t *testing.T) {
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var places []Place
	var want []int
	for i := range 600 { // more than fit into one send
		place := Place{netip.MustParseAddrPort("127.99.0.1:" + strconv.Itoa(1+i)), uint8(6 + 11*(i%2))}
		if i%200 < 2 || i == 599 {
			network := "tcp4"
			if place.Protocol == 17 {
				network = "udp4"
			}
			place.At = netip.AddrPortFrom(place.At.Addr(), hold(t, network, "127.99.0.1:0"))
			want = append(want, i)
		}
		places = append(places, place)
	}
	var got []int
	if err := c.Taken(len(places), func(i int) Place { return places[i] }, func(i int) { got = append(got, i) }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v are taken, want %v", got, want)
	}
}
