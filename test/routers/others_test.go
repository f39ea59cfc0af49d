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

func TestGoBGP(t *testing.T) {
	t.Parallel()
	families(t, func(t *testing.T, v6 bool) {
		t.Parallel()
		s, rib := newLab(t).withGoBGP(t, v6, 4200065010)
		for _, text := range []string{vip4.String(), vip6.String(), "4200065010", "{Med: 77}", "65010:100"} {
			rib(text, true)
		}
		s.Do("drain")
		rib("planned-shut", true)
		s.Do("withdraw", vip4)
		rib(vip4.String(), false)
		s.Do("shutdown")
		rib(vip6.String(), false)
	})
}

// withGoBGP returns a speaker with a session to GoBGP, and a function that waits until GoBGP's routes have a text, or
// have it no longer.
func (l lab) withGoBGP(t *testing.T, v6 bool, localASN uint32) (s *routers.Speaker, rib func(text string, want bool)) {
	t.Helper()
	gobgp := routers.StartGoBGP(t, l.router, fmt.Sprintf(`
[global.config]
  as = 65000
  router-id = "10.0.0.1"
[[neighbors]]
  [neighbors.config]
    neighbor-address = "%s"
    peer-as = %d
    auth-password = "secret"
  [neighbors.transport.config]
    passive-mode = true
  [neighbors.graceful-restart.config]
    enabled = true
    restart-time = 60
  [[neighbors.afi-safis]]
    [neighbors.afi-safis.config]
      afi-safi-name = "ipv4-unicast"
    [neighbors.afi-safis.mp-graceful-restart.config]
      enabled = true
  [[neighbors.afi-safis]]
    [neighbors.afi-safis.config]
      afi-safi-name = "ipv6-unicast"
    [neighbors.afi-safis.mp-graceful-restart.config]
      enabled = true
`, l.us(v6), localASN))
	c := l.settings(v6)
	p := &c.Peers[0]
	p.LocalASN = localASN
	p.Password, p.MED, p.Communities = "secret", new(uint32(77)), []string{"65010:100"}
	s = routers.StartSpeaker(t, l.Director, c)
	x := s.AwaitUp()
	expect.True(t, x.GracefulRestart, "%+v", x)
	return s, func(text string, want bool) {
		t.Helper()
		var all string
		wait.Until(t, fmt.Sprintf("%q in the routes: %t", text, want), func() bool {
			all = gobgp.Ask("global", "rib", "-a", "ipv4") + gobgp.Ask("global", "rib", "-a", "ipv6")
			return strings.Contains(all, text) == want
		}, func() any { return all })
	}
}

func TestExaBGP(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		router := l.router.Addr4
		if v6 {
			router = l.router.Addr6
		}
		c := l.settings(v6)
		p := &c.Peers[0]
		p.MED, p.Communities = new(uint32(77)), []string{"65010:100"}
		s, saw := l.withExaBGP(t, l.us(v6), router, c)
		for _, text := range []string{vip4.String(), vip6.String(), `"med": 77`, `"as-path": [ 4200065010 ]`, "[ 65010, 100 ]"} {
			saw(text)
		}
		s.Do("drain")
		saw("[ 65535, 0 ]")
		s.Do("withdraw", vip4)
		saw("withdraw")
	})
}

// withExaBGP returns a speaker with a session to ExaBGP, and a function that waits until ExaBGP has reported a text.
func (l lab) withExaBGP(t *testing.T, us, router netip.Addr, c routers.Settings) (s *routers.Speaker, saw func(text string)) {
	t.Helper()
	exabgp := routers.StartExaBGP(t, l.router, fmt.Sprintf(`%s {
  router-id 10.0.0.1;
  local-address %s;
  local-as 65000;
  peer-as %d;
  passive;
  family { ipv4 unicast; ipv6 unicast; }
  api { processes [ log ]; receive { parsed; update; } }
}
`, us, router, c.Peers[0].LocalASN))
	s = routers.StartSpeaker(t, l.Director, c)
	s.AwaitUp()
	return s, func(text string) {
		t.Helper()
		wait.Until(t, "ExaBGP reports "+text, func() bool { return strings.Contains(exabgp.Messages(), text) }, func() any { return exabgp.Messages() })
	}
}
