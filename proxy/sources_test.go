package proxy

import (
	"net"
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// nobody is an Options.Own for tests. All their clients are on loopback.
func nobody(netip.Addr) bool { return false }

func only(f *vip.Frontend, ranges ...string) *vip.Frontend {
	g := *f
	g.SourceRanges = nil
	for _, r := range ranges {
		g.SourceRanges = append(g.SourceRanges, netip.MustParsePrefix(r))
	}
	return &g
}

func TestSourceRangesUDP(t *testing.T) {
	p := newTarget(t, Options{Own: nobody})
	key := freeKey(t, "127.96.0.1", vip.UDP)
	f := onVIP(key, vip.RoundRobin, udpBackend(t, "127.0.0.1", "a"))
	p.must(only(f, "127.0.0.9/32"))
	from := func(addr string) *net.UDPConn {
		c := must.Get(net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(addr)}, net.UDPAddrFromAddrPort(key.AddrPort())))(t)
		t.Cleanup(func() { c.Close() })
		return c
	}
	inside, stranger := from("127.0.0.9"), from("127.0.0.10")
	mustAsk(t, inside, "x")
	must.Get(stranger.Write([]byte("x")))(t)
	wait.Until(t, "the stranger's datagram is dropped", func() bool { return p.Stats().Strangers == 1 })
	expect.Equal(t, p.Stats().Sessions, 1, "sessions")
	p.must(only(f, "10.0.0.0/8"))
	mustAsk(t, inside, "open sessions go on")
}

func TestAdmit(t *testing.T) {
	own := func(a netip.Addr) bool { return a == netip.MustParseAddr("10.9.0.1") }
	f := &frontend{key: vip.FrontendKey{Addr: netip.MustParseAddr("192.0.2.1")}, target: &Target{opts: Options{Own: own}}}
	both := []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8::/32")}
	for client, want := range map[string]bool{
		"198.51.100.7": true, "::ffff:198.51.100.7": true, "2001:db8::1%eth0": true, "198.51.101.7": false, "2001:db9::1": false,
		"10.9.0.1": true, "10.9.0.2": false, "192.0.2.1": true, "192.0.2.2": false,
	} {
		expect.Equal(t, f.accepts(both, netip.MustParseAddr(client)), want, "%s", client)
	}
	expect.True(t, f.accepts(nil, netip.MustParseAddr("203.0.113.1")), "no ranges keep somebody out")
	expect.False(t, f.accepts(both[1:], netip.MustParseAddr("203.0.113.1")), "ranges of the other family let everybody in")
}

// Backends always see this host's address, with any masquerade setting. A frontend with the local
// policy is served, and the setting is no change.
func TestMasqueradeOwnIsServed(t *testing.T) {
	p, key := target(t)
	auto := onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a")))
	auto.Masquerade = vip.MasqueradeAuto
	own := *auto
	own.Masquerade = vip.MasqueradeOwn
	p.must(&own)
	who(t, key)
	expect.True(t, p.Same(auto, &own), "auto and own differ")
}
