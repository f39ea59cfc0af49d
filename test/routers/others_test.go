//go:build system

package routers_test

import (
	"fmt"
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
		s, rib := withGoBGP(t, v6)
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
func withGoBGP(t *testing.T, v6 bool) (s *routers.Speaker, rib func(text string, want bool)) {
	t.Helper()
	l := newLab(t)
	gobgp := routers.StartGoBGP(t, l.router, fmt.Sprintf(`
[global.config]
  as = 65000
  router-id = "10.0.0.1"
[[neighbors]]
  [neighbors.config]
    neighbor-address = "%s"
    peer-as = 4200065010
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
`, l.us(v6)))
	c := l.settings(v6)
	p := &c.Peers[0]
	p.Password, p.MED, p.Communities = "secret", 77, []string{"65010:100"}
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
		exabgp := routers.StartExaBGP(t, l.router, fmt.Sprintf(`%s {
  router-id 10.0.0.1;
  local-address %s;
  local-as 65000;
  peer-as 4200065010;
  passive;
  family { ipv4 unicast; ipv6 unicast; }
  api { processes [ log ]; receive { parsed; update; } }
}
`, l.us(v6), router))
		c := l.settings(v6)
		p := &c.Peers[0]
		p.MED, p.Communities = 77, []string{"65010:100"}
		s := routers.StartSpeaker(t, l.Director, c)
		s.AwaitUp()
		saw := func(text string) {
			t.Helper()
			wait.Until(t, "ExaBGP reports "+text, func() bool { return strings.Contains(exabgp.Messages(), text) }, func() any { return exabgp.Messages() })
		}
		for _, text := range []string{vip4.String(), vip6.String(), `"med": 77`, `"as-path": [ 4200065010 ]`, "[ 65010, 100 ]"} {
			saw(text)
		}
		s.Do("drain")
		saw("[ 65535, 0 ]")
		s.Do("withdraw", vip4)
		saw("withdraw")
	})
}
