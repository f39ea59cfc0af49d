//go:build vm

package routers_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// A session with BIRD, with BFD, between a VRF of the host and one of the router. Outside of its VRF, each has no way to the other.
func TestBirdInAVRF(t *testing.T) {
	l := netlab.NewLAN(t, "host", "router")
	host, router := l.Nodes[0], l.Nodes[1]
	for _, n := range l.Nodes {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "red"
		must.Succeed(t, n.Netlink.LinkAdd(&netlink.Vrf{LinkAttrs: attrs, Table: 10}))
		red := must.Get(n.Netlink.LinkByName("red"))(t)
		must.Succeed(t, n.Netlink.LinkSetUp(red))
		must.Succeed(t, n.Netlink.LinkSetMaster(must.Get(n.Netlink.LinkByName("eth0"))(t), red))
	}
	bird := routers.StartBird(t, router, fmt.Sprintf(`router id 10.0.0.1;
protocol bfd { vrf "red"; interface "eth0" { interval 1 s; multiplier 10; }; }
protocol bgp vips {
  vrf "red";
  local as 65000;
  neighbor %s as 4200065010;
  bfd on;
  error wait time 1, 2;
  ipv4 { import all; export none; };
}
`, host.Addr4))
	p := announce.BGPPeer{Peer: router.Addr4, VRF: "red", ASN: 65000, LocalASN: 4200065010}
	vip := netip.MustParsePrefix("10.96.0.1/32")
	s := routers.StartSpeaker(t, host, routers.Settings{RouterID: host.Addr4, Peers: []announce.BGPPeer{p}, Prefixes: []netip.Prefix{vip},
		BFD: []bfd.Settings{{Key: bfd.Key{Peer: router.Addr4, VRF: "red"}, Interval: time.Second, Multiplier: 10}}})
	s.AwaitUp()
	wait.Until(t, "the route", func() bool { return bird.Count() == 1 }, func() any { return bird.Ask("show", "route", "all") })
	expect.Contains(t, bird.Ask("show", "route", vip.String(), "all"), fmt.Sprintf("via %s on eth0", host.Addr4), "next hop")
	sessions := func() string { return bird.Ask("show", "bfd", "sessions") }
	wait.Until(t, "BFD", func() bool { return strings.Contains(sessions(), " Up ") }, func() any { return sessions() })
}
