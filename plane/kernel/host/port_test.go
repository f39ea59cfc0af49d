package host

import (
	"net"
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func TestPortsThatProcessesHave(t *testing.T) {
	listenTCP := func(network, at string) (uint16, func()) {
		l := must.Get(net.Listen(network, at))(t)
		return l.Addr().(*net.TCPAddr).AddrPort().Port(), func() { l.Close() }
	}
	listenUDP := func(network, at string) (uint16, func()) {
		c := must.Get(net.ListenPacket(network, at))(t)
		return c.LocalAddr().(*net.UDPAddr).AddrPort().Port(), func() { c.Close() }
	}
	for _, tc := range []struct {
		name   string
		listen func() (uint16, func())
		ask    string
		p      vip.Protocol
		taken  bool
	}{
		{"the address itself", func() (uint16, func()) { return listenTCP("tcp4", "127.0.0.1:0") }, "127.0.0.1", vip.TCP, true},
		{"all addresses", func() (uint16, func()) { return listenTCP("tcp4", "0.0.0.0:0") }, "127.0.0.1", vip.TCP, true},
		{"all addresses of both families", func() (uint16, func()) { return listenTCP("tcp", "[::]:0") }, "127.0.0.1", vip.TCP, true},
		{"all addresses, IPv6", func() (uint16, func()) { return listenTCP("tcp", "[::]:0") }, "::1", vip.TCP, true},
		{"another address", func() (uint16, func()) { return listenTCP("tcp4", "127.0.0.2:0") }, "127.0.0.1", vip.TCP, false},
		{"another protocol", func() (uint16, func()) { return listenTCP("tcp4", "127.0.0.1:0") }, "127.0.0.1", vip.UDP, false},
		{"udp, the address itself", func() (uint16, func()) { return listenUDP("udp4", "127.0.0.1:0") }, "127.0.0.1", vip.UDP, true},
		{"udp, all addresses", func() (uint16, func()) { return listenUDP("udp4", "0.0.0.0:0") }, "127.0.0.1", vip.UDP, true},
		{"udp, another address", func() (uint16, func()) { return listenUDP("udp4", "127.0.0.2:0") }, "127.0.0.1", vip.UDP, false},
		{"an address that this host lacks", func() (uint16, func()) { return listenTCP("tcp4", "127.0.0.1:0") }, "192.0.2.1", vip.TCP, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			port, stop := tc.listen()
			defer stop()
			k := vip.FrontendKey{Addr: netip.MustParseAddr(tc.ask), Port: port, Protocol: tc.p}
			err := FreePort(k)
			if p, is := err.(vip.Problem); tc.taken != (is && p.Code == vip.CodePortTaken && p.Hint != "") {
				t.Errorf("free(%s) is %v", k, err)
			}
			stop()
			expect.Succeed(t, FreePort(k), "after the listener's end")
		})
	}
}

// Connections of a closed listener don't make a port look used.
func TestPortWithConnectionsOnlyIsFree(t *testing.T) {
	l := must.Get(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer l.Close()
	client := must.Get(net.Dial("tcp4", l.Addr().String()))(t)
	defer client.Close()
	server := must.Get(l.Accept())(t)
	defer server.Close()
	l.Close()
	at := server.LocalAddr().(*net.TCPAddr).AddrPort()
	expect.Succeed(t, FreePort(vip.FrontendKey{Addr: at.Addr(), Port: at.Port(), Protocol: vip.TCP}))
}
