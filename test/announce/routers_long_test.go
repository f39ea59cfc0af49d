//go:build system && long

package announce

import (
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/routers"
)

// FRR without a configured address: both find each other by router advertisements, IPv4 VIPs have a
// link-local next hop, and BFD finds that the path has failed, on both sides.
func TestUnnumberedFRR(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 1)
	a := l.hosts[0]
	node := l.Join("router")
	far := l.Behind(node, "far")
	l.start("bgp", "[[announce.bgp]]\ninterface = \"eth0\"\nasn = 65000\nlocal_asn = 65010\nbfd = \"5x300ms\"\n")
	frr := routers.StartFRR(t, node, `frr version 8.4
log stdout
bfd
 profile patient
  detect-multiplier 5
  receive-interval 300
  transmit-interval 300
router bgp 65000
 bgp router-id 10.78.0.250
 no bgp ebgp-requires-policy
 neighbor eth0 interface remote-as external
 neighbor eth0 timers connect 1
 neighbor eth0 bfd profile patient
 address-family ipv6 unicast
  neighbor eth0 activate
`, "bfdd", "bgpd")
	state := func() any { return a.must("announce", "peers") + frr.Ask("show bgp summary") }
	up := func(p v1.AnnouncePeer) bool { return p.Up }
	awaitRoutes(t, node, true, state)
	a.awaitPeers(2, "an established session and path", up)
	if r := routeTo(t, node, vip4(0)); r == nil || r.Via == nil || !strings.Contains(r.Via.String(), "fe80::") {
		t.Errorf("the next hop of an IPv4 VIP is not link-local: %v", r)
	}
	asks(t, far, a.Name)

	l.cutOff(a, true)
	awaitRoutes(t, node, false, state)
	a.awaitPeers(2, "the failed path", func(p v1.AnnouncePeer) bool { return !p.Up && (p.Kind == "bfd" || strings.Contains(p.Reason, "BFD: ")) })
	if out, _ := a.run("status"); !strings.Contains(out, "router eth0 is ") || !strings.Contains(out, "BFD: no packet from ") { // it warns
		t.Error(out)
	}
	expect.Contains(t, a.must("events"), "announce_peer_down")
	l.cutOff(a, false)
	awaitRoutes(t, node, true, state)
	a.awaitPeers(2, "an established session and path", up)
	asks(t, far, a.Name)
}
