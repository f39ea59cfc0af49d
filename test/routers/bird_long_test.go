//go:build system && long

package routers_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// Mistakes as in TestReasonsWithBird.
func TestSlowReasonsWithBird(t *testing.T) {
	silent := map[bool]netip.Addr{false: netip.MustParseAddr("10.77.1.77"), true: netip.MustParseAddr("fd77:1::77")}
	reasonsWithBird(t, []mistake{
		{"wrong password", func(s string) string {
			return strings.Replace(s, "graceful restart on;", `graceful restart on; password "other";`, 1)
		},
			func(c *routers.Settings) { c.Peers[0].Password = "secret" }, "the password is wrong, or the router has none", ""},
		{"no password", func(s string) string {
			return strings.Replace(s, "graceful restart on;", `graceful restart on; password "other";`, 1)
		},
			nil, "the router requires a password; the router requires ttl_security", ""},
		{"TTL security of the router alone", func(s string) string {
			return strings.Replace(s, "graceful restart on;", "graceful restart on; ttl security on;", 1)
		},
			nil, "the router requires ttl_security", ""},
		{"TTL security of this host alone", nil, func(c *routers.Settings) { c.Peers[0].TTLSecurity = true }, "the router has no TTL security", ""},
		{"unreachable", nil, func(c *routers.Settings) { c.Peers[0].Peer = silent[c.Peers[0].Peer.Is6()] }, "unreachable: no answer from PEER at the link layer", ""},
	})
}

// An unnumbered peer follows its interface: it reports that the interface is missing or silent, and
// connects when the interface is there again.
func TestUnnumberedInterface(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	c := l.settings(false)
	c.Peers[0].Peer, c.Peers[0].Interface = netip.Addr{}, "eth9"
	s := routers.StartSpeaker(t, l.Director, c)
	s.AwaitReason("interface eth9 does not exist")
	link := must.Get(l.Director.Netlink.LinkByName("backend1"))(t)
	rename := func(name string) {
		t.Helper()
		for _, err := range []error{l.Director.Netlink.LinkSetDown(link), l.Director.Netlink.LinkSetName(link, name), l.Director.Netlink.LinkSetUp(link)} {
			must.Succeed(t, err)
		}
	}
	rename("eth9")
	s.AwaitReason("no router advertisement on eth9: enable router advertisements")
}

// With "bfd graceful", BIRD takes a failed BFD session as a restart, too. With "bfd on", a kill
// deletes the routes.
func TestRestartWithBirdAndBFD(t *testing.T) {
	for _, c := range []struct {
		mode    string
		deleted bool
	}{{"graceful", false}, {"on", true}} {
		t.Run(c.mode, func(t *testing.T) {
			inLabs(t, func(t *testing.T, l lab, v6 bool) {
				bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), "bfd "+c.mode+";"))
				settings := l.settings(v6)
				settings.BFD = []bfd.Settings{{Key: bfd.Key{Peer: settings.Peers[0].Peer}, Interval: patient.Interval, Multiplier: patient.Multiplier}}
				s, events := restartable(t, l, settings)
				s.AwaitBFD(bfd.Up)
				s.Kill()
				wait.Until(t, "BIRD's BFD session is down", func() bool {
					return !strings.Contains(bird.Ask("show", "bfd", "sessions"), "Up ")
				}, func() any { return bird.Ask("show", "bfd", "sessions") })
				s.StartAgain()
				s.AwaitUp()
				s.Do("ready")
				wait.Until(t, "all routes", func() bool { return bird.Count() == 1002 })
				n := events.Deleted.Load()
				expect.Equal(t, n > 0, c.deleted, "%d routes were deleted", n)
			})
		})
	}
}

// BIRD on the same host learns every route from our table at once, because they are paced: none
// is left for its next scan of the kernel, a minute later.
func TestRoutesToBird(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	bird := routers.StartBird(t, l.Director, `router id 10.0.0.2;
protocol kernel vips4 { kernel table 179; learn; scan time 60; ipv4 { import all; export none; }; }
protocol kernel vips6 { kernel table 179; learn; scan time 60; ipv6 { import all; export none; }; }
`)
	// The pace is for a daemon that gets the processor. A busy machine would let the kernel's queue overflow.
	must.Succeed(t, unix.Setpriority(unix.PRIO_PROCESS, bird.Pid(), -20))
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
	log := bird.LogEnd(1 << 20)
	expect.False(t, strings.Contains(log, "dropped"), "BIRD lost changes:\n%s", log)
}
