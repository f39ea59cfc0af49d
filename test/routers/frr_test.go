//go:build system

package routers_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// frrPeer is an FRR configuration for a peer, with lines for the neighbor.
func frrPeer(neighbor, remote string, lines ...string) string {
	text := fmt.Sprintf(`frr version 8.4
log stdout
router bgp 65000
 bgp router-id 10.0.0.1
 no bgp ebgp-requires-policy
 bgp graceful-restart
 neighbor %[1]s %[2]s
`, neighbor, remote)
	for _, line := range lines {
		text += fmt.Sprintf(" neighbor %s %s\n", neighbor, line)
	}
	return text + fmt.Sprintf(` address-family ipv4 unicast
  neighbor %[1]s activate
 exit-address-family
 address-family ipv6 unicast
  neighbor %[1]s activate
 exit-address-family
`, neighbor)
}

func TestFRR(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		us := l.us(v6).String()
		frr := routers.StartFRR(t, l.router, frrPeer(us, "remote-as 4200065010", "password secret", "ttl-security hops 1", "timers connect 1"), "bgpd")
		c := l.settings(v6)
		p := &c.Peers[0]
		p.Password, p.TTLSecurity = "secret", true
		p.MED, p.Communities = new(uint32(77)), []string{"65010:100"}
		s := routers.StartSpeaker(t, l.Director, c)
		x := s.AwaitUp()
		l.awaitKernelRoute(t, vip4, true)
		l.awaitKernelRoute(t, vip6, true)
		if !x.GracefulRestart || x.Lacks != [2]string{} {
			t.Errorf("%+v", x)
		}
		for _, vip := range []netip.Prefix{vip4, vip6} {
			family := map[bool]string{true: "ipv4", false: "ipv6"}[vip.Addr().Is4()]
			all := frr.Ask("show bgp " + family + " unicast " + vip.String())
			for _, want := range []string{"4200065010", "metric 77", "Community: 65010:100"} {
				expect.Contains(t, all, want)
			}
		}
		s.Do("drain")
		wait.Until(t, "the community GRACEFUL_SHUTDOWN", func() bool {
			return strings.Contains(frr.Ask("show bgp ipv4 unicast "+vip4.String()), "graceful-shutdown")
		}, func() any { return frr.Ask("show bgp ipv4 unicast " + vip4.String()) })
		s.Do("withdraw", vip4)
		l.awaitKernelRoute(t, vip4, false)
		s.Do("shutdown")
		l.awaitKernelRoute(t, vip6, false)
	})
}

// FRR on the same host imports the table and announces it. FRR imports tables for IPv4 only.
func TestRoutesToFRR(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	frr := routers.StartFRR(t, l.Director, `frr version 8.4
ip import-table 179
router bgp 65010
 bgp router-id 10.0.0.2
 address-family ipv4 unicast
  redistribute table 179
`, "bgpd")
	s := routers.StartSpeaker(t, l.Director, routers.Settings{RouterID: l.us4, Routes: true, Prefixes: vips(3)})
	all := func() string { return frr.Ask("show bgp ipv4 unicast") }
	wait.Until(t, "three routes in BGP", func() bool { return strings.Count(all(), "10.97.0.") == 3 }, func() any { return all() })
	s.Do("withdraw", vips(1)...)
	wait.Until(t, "two routes in BGP", func() bool { return strings.Count(all(), "10.97.0.") == 2 }, func() any { return all() })
}
