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
