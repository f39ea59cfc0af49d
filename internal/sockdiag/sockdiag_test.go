package sockdiag

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// hold opens a socket, and returns its port.
func hold(t *testing.T, network, at string) uint16 {
	t.Helper()
	var addr net.Addr
	if network[:3] == "tcp" {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false)
		l := must.Get(config.Listen(context.Background(), network, at))(t)
		t.Cleanup(func() { l.Close() })
		addr = l.Addr()
	} else {
		c := must.Get(net.ListenPacket(network, at))(t)
		t.Cleanup(func() { c.Close() })
		addr = c.LocalAddr()
	}
	return netip.MustParseAddrPort(addr.String()).Port()
}

func TestLookup(t *testing.T) {
	c := must.Get(Open())(t)
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
			at, found, err := c.Lookup(netip.AddrPortFrom(netip.MustParseAddr(test.ask), port), protocol)
			got := ""
			if found {
				got = at.Addr().String()
				expect.Equal(t, at.Port(), port, "port")
			}
			if err != nil || got != test.want {
				t.Errorf("%s%s at %s: %s gets %q instead of %q, %v", name, test.network, test.at, test.ask, got, test.want, err)
			}
		}
	}
}

// A kernel without the module of a protocol has no errno for the reader.
func TestEachWithoutTheModule(t *testing.T) {
	const unknown = 250
	err := Each(t.Context(), unknown, -1, func(Socket, []byte) {})
	must.True(t, err != nil, "no error")
	expect.Contains(t, err.Error(), "this kernel tells nothing about sockets: modprobe")
}
