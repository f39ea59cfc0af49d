//go:build system

package announce

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// routeTo returns a node's route to a VIP, or nil.
func routeTo(t testing.TB, n *netlab.Node, vip netip.Addr) *netlink.Route {
	t.Helper()
	list := netlab.List(t, func() ([]netlink.Route, error) {
		return n.Netlink.RouteList(nil, map[bool]int{true: unix.AF_INET, false: unix.AF_INET6}[vip.Is4()])
	})
	for _, r := range list {
		if r.Dst != nil && r.Dst.String() == netip.PrefixFrom(vip, vip.BitLen()).String() {
			return &r
		}
	}
	return nil
}

// awaitRoutes waits until a node has a route to each VIP, or to none.
func awaitRoutes(t *testing.T, n *netlab.Node, want bool, state func() any) {
	t.Helper()
	wait.Until(t, fmt.Sprintf("routes to all VIPs in %s: %t", n.Name, want), func() bool {
		for _, vip := range vips() {
			if (routeTo(t, n, vip) != nil) != want {
				return false
			}
		}
		return true
	}, state)
}

// asks sends a request to the first VIP of each family.
func asks(t *testing.T, client *netlab.Node, server string) {
	t.Helper()
	for _, vip := range []netip.Addr{vip4(0), vip6(0)} {
		expect.Equal(t, must.Get(client.Ask("tcp", netip.AddrPortFrom(vip, servicePort)))(t).Name, server, "%s", vip)
	}
}

// Mistakes in the settings of a session are named in every view, in both families, and end with a
// correction.
// Slow: the kernel gives up a router that does not answer after 3 s.
func TestReasons(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 1)
	a := l.hosts[0]
	open, secret := l.Join("open"), l.Join("secret")
	for _, r := range []struct {
		node *netlab.Node
		line string
	}{{open, ""}, {secret, `password "of the router";`}} {
		config := "router id " + r.node.Addr4.String() + ";\n"
		for i, at := range []netip.Addr{a.Addr4, a.Addr6} {
			config += fmt.Sprintf("protocol bgp p%d { local as 65000; neighbor %s as 65010; error wait time 1, 2;\nipv4 { import all; export none; extended next hop; };\nipv6 { import all; export none; };\n%s\n}\n", i, at, r.line)
		}
		routers.StartBird(t, r.node, config)
	}
	password := filepath.Join(a.dir, "password")
	write := func(text string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(password, []byte(text), 0o600))
	}
	write("of the host\n")
	wrong, right := "", ""
	reasons := map[string]string{} // by router
	for i, at := range []netip.Addr{open.Addr4, open.Addr6, secret.Addr4, secret.Addr6, netip.MustParseAddr("10.78.0.99"), netip.MustParseAddr("fd78::99")} {
		switch i / 2 {
		case 0:
			wrong += bgpPeer(at, 65001, "")
			right += bgpPeer(at, 65000, "")
			reasons[at.String()] = "ASN wrong: the router has ASN 65000, the configuration has 65001"
		case 1:
			wrong += bgpPeer(at, 65000, `password_file = "password"`)
			right += bgpPeer(at, 65000, `password_file = "password"`)
			reasons[at.String()] = "the password is wrong"
		default:
			wrong += bgpPeer(at, 65000, "")
			reasons[at.String()] = "unreachable: no answer from " + at.String()
		}
	}
	l.start("bgp", wrong)
	a.awaitPeers(len(reasons), "the reason", func(p v1.AnnouncePeer) bool { return !p.Up && strings.Contains(p.Reason, reasons[p.Name]) })
	status, _ := a.run("status") // it warns
	for command, out := range map[string]string{"announce peers": a.must("announce", "peers"), "status": status} {
		for at, reason := range reasons {
			if !strings.Contains(out, at) || !strings.Contains(out, reason) {
				t.Errorf("%s does not name %q of %s:\n%s", command, reason, at, out)
			}
		}
	}

	write("of the router\n")
	a.configure(services(serviceCount, l.backends), l.config(a, "bgp", right))
	a.must("reload")
	a.awaitPeers(4, "an established session", func(p v1.AnnouncePeer) bool { return p.Up && p.Reason == "" })
	if out, _ := a.run("status"); strings.Contains(out, "wrong") || strings.Contains(out, "unreachable") {
		t.Error(out)
	}
}

// BIRD on the host exports the routes of table 179 to a router. They follow the drain of the host, and
// stay when the announcer restarts or is killed.
// Slow: BIRD connects again after a second, and VIPs stay for 2 s without the agent.
func TestRoutesThroughOwnRouter(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 1)
	a := l.hosts[0]
	node := l.Join("router")
	far := l.Behind(node, "far")
	own := routers.StartBird(t, a.Node, fmt.Sprintf(`router id %s;
protocol kernel vips4 { kernel table 179; learn; scan time 60; ipv4 { import all; export none; }; }
protocol kernel vips6 { kernel table 179; learn; scan time 60; ipv6 { import all; export none; }; }
protocol bgp up { local as 65010; neighbor %s as 65000; error wait time 1, 2; connect delay time 1; connect retry time 1;
ipv4 { import none; export all; next hop self; };
ipv6 { import none; export all; next hop self; };
}
`, a.Addr4, node.Addr4))
	router := routers.StartBird(t, node, birdConfig(l, ""))
	state := func() any { return own.Ask("show", "route") + router.Ask("show", "route") + a.must("announce", "list") }
	events := routers.WatchRoutes(t, node)
	l.start("routes", "")
	awaitRoutes(t, node, true, state)
	asks(t, far, a.Name)
	out := a.must("announce", "list")
	expect.Equal(t, strings.Count(out, "announced"), len(vips()), out)
	for _, end := range []func(){func() {
		must.Succeed(t, a.announcer.Stop())
	}, a.announcer.Kill} {
		end()
		a.startAnnouncer()
		a.awaitAll()
		asks(t, far, a.Name)
	}
	expect.AtMost(t, events.Deleted.Load(), 0, "routes that restarts of the announcer deleted")
	a.must("node", "drain", "--wait")
	awaitRoutes(t, node, false, state)
	a.must("node", "undrain")
	awaitRoutes(t, node, true, state)
	a.agent.Kill()
	awaitRoutes(t, node, false, state) // the userspace proxy forwards nothing without its agent
}

// A VIP with a route that the kernel refuses is not announced, in every view, until the kernel has the route.
func TestRouteThatTheKernelRefuses(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 1)
	a := l.hosts[0]
	foreign := &netlink.Route{Dst: &net.IPNet{IP: vip4(0).AsSlice(), Mask: net.CIDRMask(32, 32)}, Table: 179, LinkIndex: 1, Scope: netlink.SCOPE_LINK, Protocol: unix.RTPROT_STATIC}
	must.Succeed(t, a.Netlink.RouteAdd(foreign))
	l.start("routes", "")
	state := func(want, reason string) {
		t.Helper()
		wait.For(t, vip4(0).String()+" is "+want, func() error {
			all, err := a.announcements()
			for _, vip := range vips() {
				state, why := "announced", ""
				if vip == vip4(0) {
					state, why = want, reason
				}
				if n := all[vip]; err == nil && (n.State != state || !strings.Contains(n.Reason, why)) {
					err = fmt.Errorf("%s is %q: %s", vip, n.State, n.Reason)
				}
			}
			return err
		})
	}
	state("waiting", "table 179: route "+vip4(0).String()+"/32 in table 179: another program has a route")
	expect.Contains(t, a.must("announce", "explain", vip4(0).String()), "It is not: waiting: table 179:")
	status, _ := a.run("status")
	expect.Contains(t, status, fmt.Sprintf("%d VIPs announced here, 1 waiting", len(vips())-1))
	must.Succeed(t, a.Netlink.RouteDel(foreign))
	state("announced", "")
}

// A VIP is announced only if a session carries its family, in every view, until the router enables the family.
func TestFamiliesThatTheRouterLacks(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 1)
	a := l.hosts[0]
	node := l.Join("router")
	l.start("bgp", bgpPeer(node.Addr4, 65000, ""))
	config := func(channels string) string {
		return fmt.Sprintf("router id 10.78.0.250;\nprotocol bgp lb1 { local as 65000; neighbor %s as 65010; error wait time 1, 2; connect delay time 1;\n%s\n}\n", a.Addr4, channels)
	}
	const v4, v6 = "ipv4 { import all; export none; };\n", "ipv6 { import all; export none; };\n"
	bird := routers.StartBird(t, node, config(v4))
	const lacks = "the router has not enabled IPv6 unicast"
	state := func(six, reason string) {
		t.Helper()
		wait.For(t, "IPv6 is "+six, func() error {
			all, err := a.announcements()
			for _, vip := range vips() {
				want, why := "announced", ""
				if vip.Is6() {
					want, why = six, reason
				}
				if n := all[vip]; err == nil && (n.State != want || !strings.Contains(n.Reason, why)) {
					err = fmt.Errorf("%s is %q: %s", vip, n.State, n.Reason)
				}
			}
			return err
		})
	}
	state("waiting", lacks)
	expect.Equal(t, bird.Count(), serviceCount, "routes in BIRD")
	expect.Contains(t, a.must("announce", "explain", vip6(0).String()), "It is not: waiting: "+node.Addr4.String()+": IPv6 prefixes are not announced")
	expect.Contains(t, a.must("announce", "explain", vip4(0).String()), "is announced by this host (bgp)")
	status, _ := a.run("status")
	expect.Contains(t, status, fmt.Sprintf("%d VIPs announced here, %d waiting", serviceCount, serviceCount))
	events := a.must("events")
	expect.Contains(t, events, vip4(0).String()+" is announced here")
	expect.False(t, strings.Contains(events, vip6(0).String()+" is announced here"), "an event of a VIP that is not announced")
	expect.Contains(t, a.must("announce", "peers"), lacks)

	bird.Configure(config(v4 + v6))
	state("announced", "")
	wait.Until(t, "all routes", func() bool { return bird.Count() == len(vips()) })
	wait.Until(t, "the event", func() bool { return strings.Contains(a.must("events"), vip6(0).String()+" is announced here") })
}
