//go:build system

package routers_test

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// chosen are prefixes with what their routes carry: everything for one, little for the others, and one for another router.
func chosen(router netip.Addr) []announce.PrefixRoute {
	return []announce.PrefixRoute{
		routers.With(vip4, 3, announce.RouteKeys{Communities: []string{"65010:100", "no-export", "blackhole", "4200065010:1:4294967295"}, MED: new(uint32(77)),
			LocalPref: new(uint32(300)), Prepend: new(2), LinkBandwidth: announce.LinkBandwidthBackends, Peers: []string{router.String()}}),
		routers.With(vip6, 3, announce.RouteKeys{Communities: []string{"no-advertise", "no-export-subconfed", "graceful-shutdown"}}),
		routers.With(aggregate, 0, announce.RouteKeys{MED: new(uint32(5))}),
		routers.With(netip.MustParsePrefix("10.96.0.9/32"), 0, announce.RouteKeys{Peers: []string{"192.0.2.1"}}),
	}
}

var aggregate = netip.MustParsePrefix("10.96.0.0/24")

// policySettings are those of a speaker whose routes carry what chosen says. Its own keys are the defaults.
func (l lab) policySettings() routers.Settings {
	c := l.settings(false)
	c.Prefixes, c.Policies = nil, chosen(c.Peers[0].Peer)
	c.Peers[0].LocalASN = 65010
	c.Peers[0].Communities = []string{"65010:9"}
	return c
}

// BIRD gets the attributes of each prefix, and a change of one alone as one UPDATE.
func TestPoliciesWithBird(t *testing.T) {
	t.Parallel()
	for name, asn := range map[string]uint32{"eBGP": 65010, "iBGP": 65000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			bird := routers.StartBird(t, l.router, strings.Replace(birdPeer(l.us4, ""), "4200065010", fmt.Sprint(asn), 1))
			c := l.policySettings()
			c.Peers[0].LocalASN = asn
			s := routers.StartSpeaker(t, l.Director, c)
			s.AwaitUp()
			wait.Until(t, "three routes", func() bool { return bird.Count() == 3 }, func() any { return bird.Ask("show", "route", "all") })
			all := bird.Ask("show", "route", vip4.String(), "all")
			wants := []string{"BGP.med: 77", "BGP.community: (65010,100) (65535,65281) (65535,666)", "BGP.large_community: (4200065010, 1, 4294967295)"}
			if asn == 65000 {
				// BIRD 2.0 has no name for the link bandwidth: 1219959552 is 375,000 bytes per second in IEEE 754.
				wants = append(wants, "BGP.local_pref: 300", "BGP.as_path: \n", "BGP.ext_community: (unknown 0x4004, 65000, 1219959552)")
			} else {
				wants = append(wants, "BGP.as_path: 65010 65010 65010", "BGP.ext_community: (unknown 0x4, 65010, 1219959552)")
			}
			for _, want := range wants {
				expect.Contains(t, all, want)
			}
			expect.Contains(t, bird.Ask("show", "route", vip6.String(), "all"), "BGP.community: (65535,65282) (65535,65283) (65535,0)")
			all = bird.Ask("show", "route", aggregate.String(), "all")
			expect.Contains(t, all, "BGP.med: 5")
			expect.Contains(t, all, "BGP.community: (65010,9)", "the keys of the router are no defaults")

			before := imported(bird)
			s.Announce(routers.With(vip4, 1, announce.RouteKeys{Communities: []string{}}), chosen(c.Peers[0].Peer)[1])
			wait.Until(t, "a route without communities", func() bool {
				return !strings.Contains(bird.Ask("show", "route", vip4.String(), "all"), "community")
			}, func() any { return bird.Ask("show", "route", "all") })
			expect.Equal(t, imported(bird)-before, 1, "updates of BIRD")
		})
	}
}

// imported returns how many updates of IPv4 BIRD has received from the session.
func imported(bird *routers.Bird) (n int) {
	m := regexp.MustCompile(`Import updates: +(\d+)`).FindStringSubmatch(bird.Ask("show", "protocols", "all", "vips"))
	if m != nil {
		fmt.Sscan(m[1], &n)
	}
	return n
}

// FRR gets the attributes, and weighs the paths of two hosts by the backends that these have.
func TestPoliciesWithFRR(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	config := fmt.Sprintf(`frr version 8.4
log stdout
ip nht resolve-via-default
router bgp 65000
 bgp router-id 10.0.0.1
 no bgp ebgp-requires-policy
 bgp bestpath as-path multipath-relax
 neighbor hosts peer-group
 neighbor hosts remote-as 65010
 neighbor hosts ebgp-multihop 2
 neighbor hosts timers connect 1
 neighbor %s peer-group hosts
 neighbor %s peer-group hosts
 address-family ipv4 unicast
  maximum-paths 4
`, l.us4, l.Client.Addr4)
	frr := routers.StartFRR(t, l.router, config, "bgpd")
	first := l.policySettings()
	s := routers.StartSpeaker(t, l.Director, first)
	second := l.policySettings()
	second.RouterID, second.Peers[0].Multihop = l.Client.Addr4, 2
	second.Policies[0].Backends = 1
	other := routers.StartSpeaker(t, l.Client, second)
	s.AwaitUp()
	other.AwaitUp()

	show := func(command string) string { return frr.Ask("show " + command) }
	wait.Until(t, "two paths to the aggregate", func() bool {
		return strings.Contains(show("bgp ipv4 unicast "+aggregate.String()), "2 available")
	}, func() any { return show("bgp ipv4 unicast") })
	expect.False(t, strings.Contains(show("bgp ipv4 unicast"), "10.96.0.9"), "FRR has a route for another router")
	all := show("bgp ipv4 unicast " + vip4.String())
	for _, want := range []string{"65010 65010 65010", "metric 77", "Community: 65010:100 blackhole no-export", "Large Community: 4200065010:1:4294967295", "LB:65010:375000 (3.000 Mbps)", "LB:65010:125000 (1.000 Mbps)"} {
		expect.Contains(t, all, want)
	}
	expect.Contains(t, show("bgp ipv4 unicast "+aggregate.String()), "Community: 65010:9")
	weights := func(first, second int) {
		t.Helper()
		wait.Until(t, fmt.Sprintf("weights of %d and %d", first, second), func() bool {
			route := show("ip route " + vip4.String())
			return strings.Contains(route, fmt.Sprintf("%s, via eth0, weight %d", l.us4, first)) && strings.Contains(route, fmt.Sprintf("%s (recursive), weight %d", l.Client.Addr4, second))
		}, func() any { return show("ip route "+vip4.String()) + show("bgp ipv4 unicast "+vip4.String()) })
	}
	weights(75, 25)
	// Two backends of the first host fail.
	failed := chosen(l.router.Addr4)[0]
	failed.Backends = 1
	s.Announce(failed)
	weights(50, 50)
}

// FRR in the same AS gets LOCAL_PREF, no AS path, and the link bandwidth that does not leave the AS.
func TestInternalPoliciesWithFRR(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	frr := routers.StartFRR(t, l.router, frrPeer(l.us4.String(), "remote-as 65000", "timers connect 1"), "bgpd")
	c := l.policySettings()
	c.Peers[0].LocalASN = 65000
	s := routers.StartSpeaker(t, l.Director, c)
	s.AwaitUp()
	var all string
	wait.Until(t, "the route", func() bool {
		all = frr.Ask("show bgp ipv4 unicast " + vip4.String())
		return strings.Contains(all, "LB:65000:375000")
	}, func() any { return all })
	for _, want := range []string{"  Local\n", "metric 77, localpref 300", "Community: 65010:100 blackhole no-export", "Large Community: 4200065010:1:4294967295"} {
		expect.Contains(t, all, want)
	}
}

func TestPoliciesWithGoBGP(t *testing.T) {
	t.Parallel()
	for name, asn := range map[string]uint32{"eBGP": 65010, "iBGP": 65000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			s, rib := l.withGoBGP(t, false, asn)
			wants := []string{"{Med: 77}", "{Communities: 65010:100, no-export, blackhole}", "4200065010:1:4294967295", aggregate.String(), "{Med: 5}",
				"no-advertise, no-export-subconfed, planned-shut"}
			if asn == 65000 {
				wants = append(wants, "{LocalPref: 300}", "{Extcomms: [65000:375000]}")
			} else {
				wants = append(wants, "65010 65010 65010", "{Extcomms: [65010:375000]}")
			}
			s.Announce(chosen(l.router.Addr4)...)
			for _, want := range wants {
				rib(want, true)
			}
			rib("10.96.0.9", false)
		})
	}
}

func TestPoliciesWithExaBGP(t *testing.T) {
	t.Parallel()
	for name, asn := range map[string]uint32{"eBGP": 65010, "iBGP": 65000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			c := l.policySettings()
			c.Peers[0].LocalASN = asn
			// ExaBGP shows the link bandwidth as one number: its type, the ASN, and 375,000 as a float.
			_, saw := l.withExaBGP(t, l.us4, l.router.Addr4, c)
			wants := []string{`"med": 77`, "[ 65010, 100 ], [ 65535, 65281 ], [ 65535, 666 ]", "[ 4200065010, 1 , 4294967295 ]", `"nlri": "10.96.0.0/24"`, `"med": 5`}
			if asn == 65000 {
				wants = append(wants, `"local-preference": 300`, fmt.Sprint(uint64(0x4004fde848b71b00)))
			} else {
				wants = append(wants, `"as-path": [ 65010, 65010, 65010 ]`, fmt.Sprint(uint64(0x0004fdf248b71b00)))
			}
			for _, want := range wants {
				saw(want)
			}
		})
	}
}
