//go:build system

package routers_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// mistake is one in the settings of either side, and the reason that the operator of this host gets.
type mistake struct {
	name   string
	router func(config string) string
	change func(c *routers.Settings)
	reason string // PEER stands for the peer's address
	hint   string
}

// Other mistakes, for which the reason needs seconds, are in TestSlowReasonsWithBird.
func TestReasonsWithBird(t *testing.T) {
	reasonsWithBird(t, []mistake{
		{"wrong ASN of the router", nil, func(c *routers.Settings) { c.Peers[0].ASN = 65001 }, "ASN wrong: the router has ASN 65000, the configuration has 65001", "set asn"},
		{"wrong ASN of this host", nil, func(c *routers.Settings) { c.Peers[0].LocalASN = 65011 }, "ASN wrong: the router expects another ASN than 65011", "set local_asn"},
		{"router ID of the router", func(s string) string { return strings.Replace(s, "4200065010", "65000", 1) }, func(c *routers.Settings) {
			c.RouterID, c.Peers[0].LocalASN = netip.MustParseAddr("10.0.0.1"), 65000
		}, "router ID wrong", "give the router a router ID"},
		{"no route", nil, func(c *routers.Settings) {
			at := netip.MustParseAddr("172.31.9.9")
			if c.Peers[0].Peer.Is6() {
				at = netip.MustParseAddr("2001:db8::9")
			}
			c.Peers[0].Peer, c.Peers[0].Multihop = at, 3
		}, "unreachable: this host has no route to PEER", ""},
		{"no neighbor", func(s string) string {
			return strings.NewReplacer("10.77.1.1", "10.77.1.9", "fd77:1::1", "fd77:1::9").Replace(s)
		}, nil, "connection", "as a neighbor"},
		{"maximum prefixes", func(s string) string {
			return strings.Replace(s, "ipv4 { import all;", "ipv4 { import all; import limit 1 action disable;", 1)
		},
			func(c *routers.Settings) { c.Prefixes = vips(3) }, "maximum prefixes exceeded", "import limit"},
		{"disabled", nil, nil, "", "enable the session"},
	})
}

func reasonsWithBird(t *testing.T, mistakes []mistake) {
	for _, c := range mistakes {
		t.Run(c.name, func(t *testing.T) {
			inLabs(t, func(t *testing.T, l lab, v6 bool) {
				config := birdPeer(l.us(v6), "")
				if c.router != nil {
					config = c.router(config)
				}
				bird := routers.StartBird(t, l.router, config)
				settings := l.settings(v6)
				if c.change != nil {
					c.change(&settings)
				}
				p := settings.Peers[0]
				reason := strings.ReplaceAll(c.reason, "PEER", p.Peer.String())
				s := routers.StartSpeaker(t, l.Director, settings)
				if c.name == "disabled" {
					s.AwaitUp()
					bird.Ask("disable", "vips", `"maintenance of rack 7"`)
					reason = `the router has shut the session down: "maintenance of rack 7"`
				}
				if c.name == "maximum prefixes" {
					// BIRD is disabled after one session, and sometimes resets the connection without a NOTIFICATION.
					wait.Until(t, "the end of a session with a NOTIFICATION", func() bool {
						switch now := s.Sessions()[0].Reason; {
						case strings.Contains(now, reason):
							return true
						case strings.Contains(now, "connection refused"):
							bird.Ask("enable", "vips")
						}
						return false
					}, func() any { return s.Sessions() })
				}
				s.AwaitReason(reason)
				if x := s.Sessions()[0]; c.hint != "" && !strings.Contains(x.Hint, c.hint) {
					t.Errorf("hint %q, want %q", x.Hint, c.hint)
				}
			})
		})
	}
}

// BFD with BIRD: both sides agree on the detection time. After a silent failure of this host, the router deletes
// the routes to it because of BFD, long before its hold timer of BGP expires. docs/performance.md has the measured
// times, which a busy machine extends.
// Slow: BFD needs a second to come up.
func TestDetectionByBird(t *testing.T) {
	families(t, func(t *testing.T, v6 bool) {
		t.Parallel()
		l := newLab(t)
		bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), "bfd { interval 100 ms; multiplier 3; };"))
		settings := l.settings(v6)
		settings.BFD = []bfd.Settings{{Key: bfd.Key{Peer: settings.Peers[0].Peer}, Interval: 100 * ms, Multiplier: 3}}
		s := routers.StartSpeaker(t, l.Director, settings)
		detected(t, l, s, 300*ms)
		expect.Contains(t, bird.Ask("show", "protocols", "all", "vips"), "BFD session down", "the session did not end because of BFD")
	})
}

// detected waits until the speaker's BFD session has the agreed detection time, and stalls the speaker. It waits
// until the router's kernel has deleted the routes to both VIPs.
func detected(t *testing.T, l lab, s *routers.Speaker, agreed time.Duration) {
	t.Helper()
	s.AwaitUp()
	l.awaitKernelRoute(t, vip4, true)
	l.awaitKernelRoute(t, vip6, true)
	wait.Until(t, "the agreed detection time", func() bool { st := s.BFD()[0]; return st.State == bfd.Up && st.Detect == agreed && st.Reason == "" }, func() any { return s.BFD() })
	must.Succeed(t, s.Pause())
	l.awaitKernelRoute(t, vip4, false)
	l.awaitKernelRoute(t, vip6, false)
}

// This host ends a session when the router fails silently, and names BFD as the reason. A new interval keeps
// the session.
// Slow: BFD needs a second to come up, twice, and 1.5 s to fail.
func TestDetectionOfBird(t *testing.T) {
	families(t, func(t *testing.T, v6 bool) {
		t.Parallel()
		l := newLab(t)
		bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), "bfd { interval 300 ms; multiplier 5; };"))
		settings := l.settings(v6)
		peer := settings.Peers[0].Peer
		settings.BFD = []bfd.Settings{{Key: bfd.Key{Peer: peer}, Interval: patient.Interval, Multiplier: patient.Multiplier}}
		s := routers.StartSpeaker(t, l.Director, settings)
		s.AwaitUp()
		s.AwaitBFD(bfd.Up)
		s.ChangeBFD(bfd.Settings{Key: bfd.Key{Peer: peer}, Interval: 400 * ms, Multiplier: patient.Multiplier})
		wait.Until(t, "the new detection time", func() bool {
			return strings.Contains(bird.Ask("show", "bfd", "sessions"), "0.400")
		}, func() any { return bird.Ask("show", "bfd", "sessions") })
		if st := s.BFD()[0]; st.State != bfd.Up || st.Downs != 0 {
			t.Errorf("%+v", st)
		}
		must.Succeed(t, bird.Pause())
		s.AwaitReason("BFD: no packet from " + peer.String() + " for ")
		if st := s.AwaitBFD(bfd.Down); !st.Failed || st.Downs != 1 {
			t.Errorf("%+v", st)
		}
		bird.Resume() // and restarts its BFD session with its BGP session
		s.AwaitUp()
		s.AwaitBFD(bfd.Up)
	})
}
