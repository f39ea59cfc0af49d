package proxy

import (
	"net"
	"net/netip"
	"testing"

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

func TestSourceRangesTCP(t *testing.T) {
	p := newTarget(t, Options{Own: nobody})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	f := onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a")))
	p.must(only(f, "10.0.0.0/8", "127.0.0.9/32"))

	inside := dialFrom(t, "127.0.0.9", key)
	if got := inside.line(t); got != "a" {
		t.Errorf("inside the ranges: %q", got)
	}
	wantRefused(t, key) // from 127.0.0.1
	if n := p.Stats().Strangers; n != 1 {
		t.Errorf("%d strangers counted", n)
	}
	if got := dialFrom(t, "127.96.0.1", key).line(t); got != "a" { // like this host's own connections to its addresses
		t.Errorf("this host's own: %q", got)
	}

	// A change applies to new connections.
	narrower := only(f, "10.0.0.0/8")
	if p.Same(only(f, "127.0.0.9/32"), narrower) {
		t.Error("counts as the same, so nothing would change")
	}
	p.must(narrower)
	inside.echo(t, "open connections go on")
	wantRefusedFrom(t, "127.0.0.9", key)
	p.must(f)
	who(t, key)
}

func TestSourceRangesUDP(t *testing.T) {
	p := newTarget(t, Options{Own: nobody})
	key := freeKey(t, "127.96.0.1", vip.UDP)
	f := onVIP(key, vip.RoundRobin, udpBackend(t, "127.0.0.1", "a"))
	p.must(only(f, "127.0.0.9/32"))
	from := func(addr string) *net.UDPConn {
		c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(addr)}, net.UDPAddrFromAddrPort(key.AddrPort()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	inside, stranger := from("127.0.0.9"), from("127.0.0.10")
	mustAsk(t, inside, "x")
	if _, err := stranger.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the stranger's datagram is dropped", func() bool { return p.Stats().Strangers == 1 })
	if n := p.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions", n)
	}
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
		if got := f.accepts(both, netip.MustParseAddr(client)); got != want {
			t.Errorf("%s: %t", client, got)
		}
	}
	if !f.accepts(nil, netip.MustParseAddr("203.0.113.1")) {
		t.Error("no ranges keep somebody out")
	}
	if f.accepts(both[1:], netip.MustParseAddr("203.0.113.1")) {
		t.Error("ranges of the other family let everybody in")
	}
}

// Backends always see this host's address, with any masquerade setting. A frontend with the local
// policy is served, and the setting is no change.
func TestMasqueradeOwnIsServed(t *testing.T) {
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	auto := onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a")))
	auto.Masquerade = vip.MasqueradeAuto
	own := *auto
	own.Masquerade = vip.MasqueradeOwn
	p.must(&own)
	who(t, key)
	if !p.Same(auto, &own) {
		t.Error("auto and own differ")
	}
}
