package host

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/netlab"
)

func TestIsLocal(t *testing.T) {
	lab := netlab.New(t)
	vips := []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd96::1")}
	local := func(when string, addr netip.Addr, want bool) {
		t.Helper()
		lab.Director.Do(func() {
			expect.Equal(t, IsLocal(addr), want, "%s: %s", when, addr)
		})
	}
	for _, a := range []netip.Addr{lab.Director.Addr4, lab.Director.Addr6, netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()} {
		local("its own", a, true)
	}
	for _, a := range []netip.Addr{lab.Backends[0].Addr4, lab.Backends[0].Addr6} {
		local("another host's", a, false)
	}
	for _, a := range vips {
		local("before", a, false)
		lab.Director.Deliver("lo", netip.PrefixFrom(a, a.BitLen()))
		local("added", a, true)
		lab.Director.Bounce("lo", netip.PrefixFrom(a, a.BitLen()))
		local("removed", a, false)
	}
}
