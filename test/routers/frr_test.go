//go:build system

package routers_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/announce/bgp/message"
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
	t.Parallel()
	families(t, func(t *testing.T, v6 bool) {
		t.Parallel()
		l := newLab(t)
		us := l.us(v6).String()
		frr := routers.StartFRR(t, l.router, frrPeer(us, "remote-as 4200065010", "password secret", "ttl-security hops 1", "timers connect 1"), "bgpd")
		c := l.settings(v6)
		p := &c.Peers[0]
		p.Password, p.TTLSecurity = "secret", true
		p.MED, p.Communities = 77, []message.Community{65010<<16 | 100}
		s := routers.StartSpeaker(t, l.Director, c)
		x := s.AwaitUp()
		l.awaitKernelRoute(t, vip4, true)
		l.awaitKernelRoute(t, vip6, true)
		if !x.GracefulRestart || x.Warning != "" {
			t.Errorf("%+v", x)
		}
		for _, vip := range []netip.Prefix{vip4, vip6} {
			family := map[bool]string{true: "ipv4", false: "ipv6"}[vip.Addr().Is4()]
			all := frr.Ask("show bgp " + family + " unicast " + vip.String())
			for _, want := range []string{"4200065010", "metric 77", "Community: 65010:100"} {
				if !strings.Contains(all, want) {
					t.Errorf("%s is not in the route:\n%s", want, all)
				}
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

// Unnumbered: both sides find each other by router advertisements, and IPv4 prefixes have an IPv6
// next hop. The session survives a restart of this process, and BFD finds its end.
func TestFRRUnnumbered(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	frr := routers.StartFRR(t, l.router, frrPeer("eth0", "interface remote-as external", "timers connect 1", "bfd", "bfd check-control-plane-failure"), "bfdd", "bgpd")
	c := l.settings(false)
	c.Peers[0].Address, c.Peers[0].Interface = netip.Addr{}, "backend1"
	s := routers.StartSpeaker(t, l.Director, c)
	x := s.AwaitUp()
	if x.Peer != "backend1" || !x.Address.Is6() || !x.Address.IsLinkLocalUnicast() || x.Address.Zone() != "backend1" {
		t.Errorf("%+v", x)
	}
	l.awaitKernelRoute(t, vip4, true)
	l.awaitKernelRoute(t, vip6, true)
	if all := frr.Ask("show bgp ipv4 unicast " + vip4.String()); !strings.Contains(all, "fe80::") {
		t.Errorf("the next hop is not link-local:\n%s", all)
	}
	s.ChangeBFD(bfd.Settings{Peer: x.Address, Interval: 100 * ms, Multiplier: 3})
	s.AwaitBFD(bfd.Up)
	// This host is not a default router.
	list, err := l.router.Netlink.RouteList(nil, unix.AF_INET6)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		if r.Protocol == unix.RTPROT_RA {
			t.Errorf("the router took this host as its default router: %v", r)
		}
	}
}

// A restart of the announcing process deletes no route in FRR.
func TestRestartWithFRR(t *testing.T) {
	for _, withBFD := range []bool{false, true} {
		t.Run(fmt.Sprintf("bfd=%t", withBFD), func(t *testing.T) {
			t.Parallel()
			families(t, func(t *testing.T, v6 bool) {
				t.Parallel()
				l := newLab(t)
				us, settings := l.us(v6), l.settings(v6)
				lines := []string{"timers connect 1"}
				if withBFD {
					lines = append(lines, "bfd", "bfd check-control-plane-failure")
				}
				config := frrPeer(us.String(), "remote-as 4200065010", lines...)
				if withBFD {
					config += fmt.Sprintf("bfd\n peer %s\n  detect-multiplier %d\n  receive-interval %[3]d\n  transmit-interval %[3]d\n", us, patient.Multiplier, patient.Interval/ms)
				}
				frr := routers.StartFRR(t, l.router, config, "bfdd", "bgpd")
				if withBFD {
					settings.BFD = []bfd.Settings{{Peer: settings.Peers[0].Address, Interval: patient.Interval, Multiplier: patient.Multiplier}}
				}
				s, events := restartable(t, l, settings)
				for _, end := range []func(){s.Kill, func() { s.Stop() }} {
					if withBFD {
						s.AwaitBFD(bfd.Up)
						wait.Until(t, "FRR's BFD session is up", func() bool { return strings.Contains(frr.Ask("show bfd peers brief"), " up") })
						// FRR begins its BFD session anew when the BGP session is established.
						if n := s.Sessions()[0].Established; n != 1 {
							t.Errorf("the BGP session was established %d times", n)
						}
					}
					end()
					wait.Until(t, "FRR waits for the restart", func() bool {
						return strings.Contains(frr.Ask("show bgp ipv4 unicast "+vip4.String()), "stale")
					}, func() any { return frr.Ask("show bgp ipv4 unicast " + vip4.String()) })
					if withBFD {
						wait.Until(t, "FRR's BFD session is down", func() bool { return !strings.Contains(frr.Ask("show bfd peers brief"), " up") })
					}
					s.StartAgain()
					s.AwaitUp()
					s.Do("ready")
					wait.Until(t, "the end of the restart", func() bool {
						return !strings.Contains(frr.Ask("show bgp ipv4 unicast "+vip4.String()), "stale")
					})
					if n := events.Deleted.Load(); n > 0 {
						t.Fatalf("%d routes were deleted", n)
					}
				}
				s.Kill()
				s.StartAgain()
				s.AwaitUp()
				s.Do("withdraw", vip4)
				s.Do("ready")
				l.awaitKernelRoute(t, vip4, false)
				wait.Until(t, "the report of the deletion", func() bool { return events.Deleted.Load() > 0 })
				if n := events.Deleted.Load(); n != 1 {
					t.Errorf("%d routes were deleted, want 1", n)
				}
			})
		})
	}
}

// BFD with FRR, as TestDetectionByBird.
func TestDetectionByFRR(t *testing.T) {
	families(t, func(t *testing.T, v6 bool) {
		l := newLab(t)
		us := l.us(v6)
		routers.StartFRR(t, l.router, frrPeer(us.String(), "remote-as 4200065010", "timers connect 1", "bfd")+
			fmt.Sprintf("bfd\n peer %s\n  detect-multiplier 3\n  receive-interval 50\n  transmit-interval 50\n", us), "bfdd", "bgpd")
		settings := l.settings(v6)
		settings.BFD = []bfd.Settings{{Peer: settings.Peers[0].Address, Interval: 50 * ms, Multiplier: 3}}
		s := routers.StartSpeaker(t, l.Director, settings)
		s.AwaitUp()
		l.awaitKernelRoute(t, vip4, true)
		l.awaitKernelRoute(t, vip6, true)
		wait.Until(t, "the agreed detection time", func() bool { return s.BFD()[0].Detect == 150*ms }, func() any { return s.BFD() })
		events := routers.WatchRoutes(t, l.router)
		took := silence(t, s, events)
		t.Logf("withdrawn after %v", took.Round(ms))
		if took < 50*ms || took > shortestHold {
			t.Errorf("withdrawn after %v", took)
		}
	})
}

func TestReasonsWithFRR(t *testing.T) {
	for _, c := range []struct {
		name   string
		remote string
		lines  []string
		change func(c *routers.Settings)
		reason string
	}{
		{"wrong ASN of the router", "remote-as 4200065010", nil, func(c *routers.Settings) { c.Peers[0].ASN = 65001 }, "ASN wrong: the router has ASN 65000, the configuration has 65001"},
		{"wrong ASN of this host", "remote-as 65011", nil, nil, "ASN wrong: the router expects another ASN than 4200065010"},
		{"wrong password", "remote-as 4200065010", []string{"password other"}, func(c *routers.Settings) { c.Peers[0].Password = "secret" }, "the password is wrong"},
		{"router ID", "remote-as 65000", nil, func(c *routers.Settings) { c.RouterID, c.Peers[0].LocalASN = netip.MustParseAddr("10.0.0.1"), 65000 }, "router ID wrong"},
		{"shut down", "remote-as 4200065010", []string{"shutdown message maintenance"}, nil, "the router closed the connection before its OPEN"},
		{"maximum prefixes", "remote-as 4200065010", []string{"timers connect 1"}, func(c *routers.Settings) { c.Prefixes = vips(5) }, "maximum prefixes exceeded: the router accepts 2 IPv4 prefixes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			families(t, func(t *testing.T, v6 bool) {
				t.Parallel()
				l := newLab(t)
				config := frrPeer(l.us(v6).String(), c.remote, c.lines...)
				if c.name == "maximum prefixes" {
					config = strings.Replace(config, "activate", fmt.Sprintf("activate\n  neighbor %s maximum-prefix 2", l.us(v6)), 1)
				}
				routers.StartFRR(t, l.router, config, "bgpd")
				settings := l.settings(v6)
				if c.change != nil {
					c.change(&settings)
				}
				routers.StartSpeaker(t, l.Director, settings).AwaitReason(c.reason)
			})
		})
	}
}
