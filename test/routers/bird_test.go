//go:build system

package routers_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// birdPeer is a BIRD configuration for a peer, with lines for the protocol.
func birdPeer(us netip.Addr, lines string) string {
	return fmt.Sprintf(`router id 10.0.0.1;
protocol kernel k4 { graceful restart; ipv4 { export all; }; }
protocol kernel k6 { graceful restart; ipv6 { export all; }; }
protocol bfd { }
protocol bgp vips {
  local as 65000;
  neighbor %s as 4200065010;
  ipv4 { import all; export none; extended next hop; };
  ipv6 { import all; export none; };
  graceful restart on;
  error wait time 1, 2;
  %s
}
`, us, lines)
}

func TestBird(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), `password "secret"; ttl security on;`))
		c := l.settings(v6)
		p := &c.Peers[0]
		p.Password, p.TTLSecurity = "secret", true
		p.MED, p.Communities = 77, []string{"65010:100"}
		s := routers.StartSpeaker(t, l.Director, c)
		x := s.AwaitUp()
		l.awaitKernelRoute(t, vip4, true)
		l.awaitKernelRoute(t, vip6, true)
		if !x.GracefulRestart || x.RouterID.String() != "10.0.0.1" || x.Warning != "" {
			t.Errorf("%+v", x)
		}
		for _, vip := range []netip.Prefix{vip4, vip6} {
			all := bird.Ask("show", "route", vip.String(), "all")
			for _, want := range []string{"BGP.as_path: 4200065010", "BGP.med: 77", "BGP.community: (65010,100)", "BGP.origin: IGP"} {
				expect.Contains(t, all, want)
			}
		}

		s.Do("drain")
		wait.Until(t, "the community GRACEFUL_SHUTDOWN on both routes", func() bool {
			return bird.Count("where (65535, 0) ~ bgp_community") == 2
		}, func() any { return bird.Ask("show", "route", "all") })

		s.Do("withdraw", vip4)
		l.awaitKernelRoute(t, vip4, false)
		expect.True(t, l.kernelRoute(vip6) != "", "the other route was withdrawn, too")
		s.Do("shutdown")
		l.awaitKernelRoute(t, vip6, false)
		expect.Contains(t, bird.LogEnd(1<<20), "Administrative shutdown", "the router saw another end of the session")
	})
}

// Attributes of iBGP, and BFD, over two hops.
func TestBirdInternalMultihop(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		us, router := l.Client.Addr4, l.router.Addr4
		if v6 {
			us, router = l.Client.Addr6, l.router.Addr6
		}
		bird := routers.StartBird(t, l.router, strings.Replace(birdPeer(us,
			fmt.Sprintf("source address %s; multihop 2; ttl security on; bfd { interval 100 ms; multiplier 3; };", router)), "4200065010", "65000", 1))
		c := l.settings(v6)
		p := &c.Peers[0]
		p.LocalASN, p.Multihop, p.TTLSecurity, p.LocalPref = 65000, 2, true, 300
		c.BFD = []bfd.Settings{{Peer: p.Peer, Interval: 100 * ms, Multiplier: 3, Multihop: true}}
		s := routers.StartSpeaker(t, l.Client, c)
		s.AwaitUp()
		s.AwaitBFD(bfd.Up)
		wait.Until(t, "both routes", func() bool { return bird.Count() == 2 }, func() any { return bird.Ask("show", "route", "all") })
		if all := bird.Ask("show", "route", "all"); strings.Count(all, "BGP.local_pref: 300") != 2 {
			t.Error(all)
		}
	})
}

// Unnumbered: BIRD sends router advertisements by its protocol radv, and accepts any link-local
// neighbor of the interface.
// Slow: BIRD sends its first router advertisements seconds after its start.
func TestBirdUnnumbered(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	routers.StartBird(t, l.router, `router id 10.0.0.1;
protocol kernel k4 { ipv4 { export all; }; }
protocol kernel k6 { ipv6 { export all; }; }
protocol radv { interface "eth0" { default lifetime 0; }; }
protocol bgp vips {
  local as 65000;
  neighbor range fe80::/10 as 4200065010;
  interface "eth0";
  ipv4 { import all; export none; extended next hop; };
  ipv6 { import all; export none; };
}
`)
	c := l.settings(false)
	c.Peers[0].Peer, c.Peers[0].Interface = netip.Addr{}, "backend1"
	s := routers.StartSpeaker(t, l.Director, c)
	s.AwaitUp()
	l.awaitKernelRoute(t, vip4, true)
	l.awaitKernelRoute(t, vip6, true)
	expect.Contains(t, l.kernelRoute(vip4), "fe80::", "the next hop is not link-local")
}
