//go:build system && long

package routers_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// Unnumbered: both sides find each other by router advertisements, and IPv4 prefixes have an IPv6
// next hop. The session survives a restart of this process, and BFD finds its end.
func TestFRRUnnumbered(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	frr := routers.StartFRR(t, l.router, frrPeer("eth0", "interface remote-as external", "timers connect 1", "bfd", "bfd check-control-plane-failure"), "bfdd", "bgpd")
	c := l.settings(false)
	c.Peers[0].Peer, c.Peers[0].Interface = netip.Addr{}, "backend1"
	s := routers.StartSpeaker(t, l.Director, c)
	x := s.AwaitUp()
	if x.Peer != "backend1" || !x.Address.Is6() || !x.Address.IsLinkLocalUnicast() || x.Address.Zone() != "backend1" {
		t.Errorf("%+v", x)
	}
	l.awaitKernelRoute(t, vip4, true)
	l.awaitKernelRoute(t, vip6, true)
	expect.Contains(t, frr.Ask("show bgp ipv4 unicast "+vip4.String()), "fe80::", "the next hop is not link-local")
	s.ChangeBFD(bfd.Settings{Key: bfd.Key{Peer: x.Address}, Interval: 100 * ms, Multiplier: 3})
	s.AwaitBFD(bfd.Up)
	// This host is not a default router.
	list := must.Get(l.router.Netlink.RouteList(nil, unix.AF_INET6))(t)
	for _, r := range list {
		expect.True(t, r.Protocol != unix.RTPROT_RA, "the router took this host as its default router: %v", r)
	}
}

// A restart of the announcing process deletes no route in FRR.
func TestRestartWithFRR(t *testing.T) {
	for _, withBFD := range []bool{false, true} {
		t.Run(fmt.Sprintf("bfd=%t", withBFD), func(t *testing.T) {
			inLabs(t, func(t *testing.T, l lab, v6 bool) {
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
					settings.BFD = []bfd.Settings{{Key: bfd.Key{Peer: settings.Peers[0].Peer}, Interval: patient.Interval, Multiplier: patient.Multiplier}}
				}
				s, events := restartable(t, l, settings)
				for _, end := range []func(){s.Kill, func() { s.Stop() }} {
					if withBFD {
						s.AwaitBFD(bfd.Up)
						wait.Until(t, "FRR's BFD session is up", func() bool { return strings.Contains(frr.Ask("show bfd peers brief"), " up") })
						// FRR begins its BFD session anew when the BGP session is established.
						expect.Equal(t, s.Sessions()[0].Established, 1, "how often the BGP session was established")
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
					must.AtMost(t, events.Deleted.Load(), 0, "deleted routes")
				}
				s.Kill()
				s.StartAgain()
				s.AwaitUp()
				s.Do("withdraw", vip4)
				s.Do("ready")
				l.awaitKernelRoute(t, vip4, false)
				wait.Until(t, "the report of the deletion", func() bool { return events.Deleted.Load() > 0 })
				expect.Equal(t, events.Deleted.Load(), 1, "deleted routes")
			})
		})
	}
}

// BFD with FRR, as TestDetectionByBird.
func TestDetectionByFRR(t *testing.T) {
	families(t, func(t *testing.T, v6 bool) {
		t.Parallel()
		l := newLab(t)
		us := l.us(v6)
		frr := routers.StartFRR(t, l.router, frrPeer(us.String(), "remote-as 4200065010", "timers connect 1", "bfd")+
			fmt.Sprintf("bfd\n peer %s\n  detect-multiplier 3\n  receive-interval 100\n  transmit-interval 100\n", us), "bfdd", "bgpd")
		settings := l.settings(v6)
		settings.BFD = []bfd.Settings{{Key: bfd.Key{Peer: settings.Peers[0].Peer}, Interval: 100 * ms, Multiplier: 3}}
		detected(t, l, routers.StartSpeaker(t, l.Director, settings), 300*ms)
		expect.Contains(t, frr.Ask("show bgp neighbors "+us.String()), "BFD Down", "the session did not end because of BFD")
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
			inLabs(t, func(t *testing.T, l lab, v6 bool) {
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
