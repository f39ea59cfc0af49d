//go:build system

package routers_test

import (
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

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
