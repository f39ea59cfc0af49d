//go:build system

package routers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// BIRD on the same host learns every route from our table at once, because they are paced: none
// is left for its next scan of the kernel, a minute later.
func TestRoutesToBird(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	bird := routers.StartBird(t, l.Director, `router id 10.0.0.2;
protocol kernel vips4 { kernel table 179; learn; scan time 60; ipv4 { import all; export none; }; }
protocol kernel vips6 { kernel table 179; learn; scan time 60; ipv6 { import all; export none; }; }
`)
	c := routers.Settings{RouterID: l.us4, Routes: true, Prefixes: append(vips(4000), vip4, vip6)}
	began := time.Now()
	s := routers.StartSpeaker(t, l.Director, c)
	wait.Until(t, "4,002 routes", func() bool { return bird.Count() == 4002 }, func() any { return bird.Count() })
	if took := time.Since(began); took < 1500*ms { // 2,000 per second
		t.Errorf("4,002 routes came within %v: they are not paced", took)
	}
	s.Do("withdraw", vip4, vip6)
	wait.Until(t, "4,000 routes", func() bool { return bird.Count() == 4000 }, func() any { return bird.Count() })
	s.Kill()
	s.StartAgain() // it adopts its routes
	s.Do("withdraw", vips(4000)...)
	wait.Until(t, "two routes", func() bool { return bird.Count() == 2 }, func() any { return bird.Count() })
	if log := bird.LogEnd(1 << 20); strings.Contains(log, "dropped") {
		t.Errorf("BIRD lost changes:\n%s", log)
	}
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
