//go:build system

package routers_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/announce/bgp/session"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// Mistakes in the settings of either side, and the reason that the operator of this host gets.
func TestReasonsWithBird(t *testing.T) {
	for _, c := range []struct {
		name   string
		router func(config string) string
		change func(c *routers.Settings)
		reason string // PEER stands for the peer's address, AT for its address and port
		hint   string
	}{
		{"wrong ASN of the router", nil, func(c *routers.Settings) { c.Peers[0].ASN = 65001 }, "ASN wrong: the router has ASN 65000, the configuration has 65001", "set asn"},
		{"wrong ASN of this host", nil, func(c *routers.Settings) { c.Peers[0].LocalASN = 65011 }, "ASN wrong: the router expects another ASN than 65011", "set local_asn"},
		{"router ID of the router", func(s string) string { return strings.Replace(s, "4200065010", "65000", 1) }, func(c *routers.Settings) {
			c.RouterID, c.Peers[0].LocalASN = netip.MustParseAddr("10.0.0.1"), 65000
		}, "router ID wrong", "give the router a router ID"},
		{"wrong password", func(s string) string {
			return strings.Replace(s, "graceful restart on;", `graceful restart on; password "other";`, 1)
		},
			func(c *routers.Settings) { c.Peers[0].Password = "secret" }, "the password is wrong, or a filter drops TCP port 179", ""},
		{"no password", func(s string) string {
			return strings.Replace(s, "graceful restart on;", `graceful restart on; password "other";`, 1)
		},
			nil, "the router requires a password", ""},
		{"unreachable", nil, func(c *routers.Settings) { c.Peers[0].Address = silent[c.Peers[0].Address.Is6()] }, "unreachable: no answer from PEER at the link layer", ""},
		{"no route", nil, func(c *routers.Settings) {
			c.Peers[0].Address, c.Peers[0].Multihop = nowhere[c.Peers[0].Address.Is6()], 3
		}, "unreachable: this host has no route to PEER", ""},
		{"nothing listens", nil, func(c *routers.Settings) { c.Peers[0].Port = 1790 }, "connection refused: no BGP daemon listens on AT", "as a neighbor"},
		{"no neighbor", func(s string) string {
			return strings.NewReplacer("10.77.1.1", "10.77.1.9", "fd77:1::1", "fd77:1::9").Replace(s)
		}, nil, "connection", "as a neighbor"},
		{"maximum prefixes", func(s string) string {
			return strings.Replace(s, "ipv4 { import all;", "ipv4 { import all; import limit 1 action disable;", 1)
		},
			func(c *routers.Settings) { c.Prefixes = vips(3) }, "maximum prefixes exceeded", "import limit"},
		{"disabled", nil, nil, "", "enable the session"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			families(t, func(t *testing.T, v6 bool) {
				t.Parallel()
				l := newLab(t)
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
				reason := strings.NewReplacer("PEER", p.Address.String(), "AT", netip.AddrPortFrom(p.Address, p.Port).String()).Replace(c.reason)
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

// Addresses without a station, by whether they are of IPv6: on the link to the router, and without a
// route.
var (
	silent  = map[bool]netip.Addr{false: netip.MustParseAddr("10.77.1.77"), true: netip.MustParseAddr("fd77:1::77")}
	nowhere = map[bool]netip.Addr{false: netip.MustParseAddr("172.31.9.9"), true: netip.MustParseAddr("2001:db8::9")}
)

// The shortest hold timer of BGP is 3 s (RFC 4271). A router that removes routes earlier used BFD.
const shortestHold = 3 * time.Second

// BFD with BIRD: the agreed detection time is three intervals, and after a silent failure of this
// host, the router's kernel has no route to it. BENCHMARKS.md has the measured times, which a busy
// machine extends.
func TestDetectionByBird(t *testing.T) {
	for _, interval := range []time.Duration{50 * ms, 100 * ms} {
		t.Run(fmt.Sprintf("3x%s", interval), func(t *testing.T) {
			families(t, func(t *testing.T, v6 bool) {
				l := newLab(t)
				routers.StartBird(t, l.router, birdPeer(l.us(v6), fmt.Sprintf("bfd { interval %d ms; multiplier 3; };", interval/ms)))
				settings := l.settings(v6)
				settings.BFD = []bfd.Settings{{Peer: settings.Peers[0].Address, Interval: interval, Multiplier: 3}}
				s := routers.StartSpeaker(t, l.Director, settings)
				s.AwaitUp()
				if st := s.AwaitBFD(bfd.Up); st.Reason != "" {
					t.Errorf("%+v", st)
				}
				wait.Until(t, "the agreed detection time", func() bool { return s.BFD()[0].Detect == 3*interval }, func() any { return s.BFD() })
				events := routers.WatchRoutes(t, l.router)
				l.awaitKernelRoute(t, vip4, true)
				l.awaitKernelRoute(t, vip6, true)
				took := silence(t, s, events)
				t.Logf("withdrawn after %v", took.Round(ms))
				if took < interval || took > shortestHold {
					t.Errorf("withdrawn after %v", took)
				}
			})
		})
	}
}

// silence stalls the speaker, and returns the time until the router's kernel has deleted the routes
// to both VIPs.
func silence(t *testing.T, s *routers.Speaker, events *routers.RouteEvents) time.Duration {
	t.Helper()
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	wait.Until(t, "both routes are deleted", func() bool { return events.Deleted.Load() == 2 })
	return time.Unix(0, events.LastDeleted.Load()).Sub(began)
}

// This host ends a session when the router fails silently, and names BFD as the reason.
func TestDetectionOfBird(t *testing.T) {
	families(t, func(t *testing.T, v6 bool) {
		l := newLab(t)
		bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), "bfd { interval 50 ms; multiplier 3; };"))
		settings := l.settings(v6)
		settings.BFD = []bfd.Settings{{Peer: settings.Peers[0].Address, Interval: 50 * ms, Multiplier: 3}}
		s := routers.StartSpeaker(t, l.Director, settings)
		s.AwaitUp()
		s.AwaitBFD(bfd.Up)
		if err := bird.Pause(); err != nil {
			t.Fatal(err)
		}
		s.AwaitReason("BFD: no packet from " + settings.Peers[0].Address.String() + " for ")
		if st := s.AwaitBFD(bfd.Down); !st.Failed || st.Downs != 1 {
			t.Errorf("%+v", st)
		}
		bird.Resume() // and restarts its BFD session with its BGP session
		s.AwaitUp()
		wait.Until(t, "the agreed detection time", func() bool { return s.BFD()[0].Detect == 150*ms }, func() any { return s.BFD() })
		before := s.BFD()[0].Downs

		// A new interval keeps the session.
		s.ChangeBFD(bfd.Settings{Peer: settings.Peers[0].Address, Interval: 200 * ms, Multiplier: 3})
		wait.Until(t, "the new detection time", func() bool {
			return strings.Contains(bird.Ask("show", "bfd", "sessions"), "0.200")
		}, func() any { return bird.Ask("show", "bfd", "sessions") })
		if st := s.BFD()[0]; st.State != bfd.Up || st.Downs != before {
			t.Errorf("%+v", st)
		}
	})
}

// A BFD session that never comes up does not disturb BGP, and names its reason.
func TestBFDThatNeverComesUp(t *testing.T) {
	families(t, func(t *testing.T, v6 bool) {
		t.Parallel()
		l := newLab(t)
		routers.StartBird(t, l.router, birdPeer(l.us(v6), ""))
		settings := l.settings(v6)
		peer := settings.Peers[0].Address
		settings.BFD = []bfd.Settings{{Peer: peer, Interval: 50 * ms, Multiplier: 3}}
		s := routers.StartSpeaker(t, l.Director, settings)
		s.AwaitUp()
		wait.Until(t, "several packets went out", func() bool { return time.Since(s.Sessions()[0].Since) > 2*time.Second })
		if st := s.BFD()[0]; st.State != bfd.Down || st.Failed || st.Reason != "no packet from "+peer.String()+" yet" {
			t.Errorf("%+v", st)
		}
		if x := s.Sessions()[0]; x.State != session.Established {
			t.Errorf("%+v", x)
		}
	})
}
