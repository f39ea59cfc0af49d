//go:build system

package announce

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// BenchmarkFailover measures what a client loses: it sends 1,000 requests per second, each with a
// connection of its own, to two VIPs of one host, while something happens to this host. keepalived has the
// same lab and addresses. The dataplane of ironvip is the userspace proxy, so a host without an agent
// refuses connections, and connections that are open when a VIP moves are reset.
func BenchmarkFailover(b *testing.B) {
	hosts := func(b *testing.B) *lab { return newLab(b, 2, "") }
	events := []event{
		{"l2/drain", atLayer2(hosts, drainNode, undrainNode)},
		{"l2/agent-upgrade", atLayer2(hosts, func(_ *lab, a *host) { a.upgrade() }, nil)},
		{"l2/announcer-restart", atLayer2(hosts, restartAnnouncer, nil)},
		{"l2/cut-off", atLayer2(hosts, func(l *lab, a *host) { l.cutOff(a, true); l.hosts[1].awaitAll() }, func(l *lab, a *host) { l.cutOff(a, false) })},
		{"l2/floating-drain", floating(haproxies, func(h *host, _ *process.Process) { drainNode(nil, h) }, func(h *host, _ *process.Process) { undrainNode(nil, h) })},
		{"l2/floating-drain-udp", floating(unbounds, func(h *host, _ *process.Process) { drainNode(nil, h) }, func(h *host, _ *process.Process) { undrainNode(nil, h) })},
		{"l2/program-killed", floating(haproxies, func(_ *host, p *process.Process) { p.Kill() }, func(_ *host, p *process.Process) { must.Succeed(b, p.Start()) })},
		{"l2/killed", atLayer2(hosts, func(l *lab, a *host) { a.announcer.Kill(); a.agent.Kill(); l.hosts[1].awaitAll() }, func(_ *lab, a *host) { a.start() })},
	}
	for _, advert := range []string{"1", "0.1"} {
		events = append(events,
			event{"keepalived-" + advert + "s/stop", withKeepalived(advert, func(k *pair) { k.stop() }, func(k *pair) { k.begin(0) })},
			event{"keepalived-" + advert + "s/cut-off", withKeepalived(advert, func(k *pair) { k.cutOff(k.hosts[0], true) }, func(k *pair) { k.cutOff(k.hosts[0], false) })},
			event{"keepalived-" + advert + "s/killed", withKeepalived(advert, func(k *pair) { k.kill() }, func(k *pair) { k.begin(0) })})
	}
	for _, r := range []router{bird, frr} {
		cut := func(l *lab, a *host) { l.cutOff(a, true) }
		join := func(l *lab, a *host) { l.cutOff(a, false) }
		events = append(events,
			event{"bgp-" + r.name + "/drain", throughRouter(r, 2, 0, 1, drainNode, undrainNode)},
			event{"bgp-" + r.name + "/cut-off-bfd-3x50ms", throughRouter(r, 2, 50*time.Millisecond, 1, cut, join)},
			event{"bgp-" + r.name + "/cut-off-bfd-3x100ms", throughRouter(r, 2, 100*time.Millisecond, 1, cut, join)},
			// The router has no other way, so it must keep its routes.
			event{"bgp-" + r.name + "/announcer-restart", throughRouter(r, 1, 0, 1, func(_ *lab, a *host) {
				a.stop(a.announcer)
				a.startAnnouncer()
				a.awaitPeers(1, "an established session", func(p v1.AnnouncePeer) bool { return p.Up })
			}, nil)})
	}
	measureAll(b, events)
}

// haproxies and unbounds are pairs with a program of docs/recipes.md.
func haproxies(b *testing.B) *floats {
	l, programs := newFloating(b, 2, "")
	return &floats{lab: l, programs: programs, vips: []netip.Addr{lb4, lb6}}
}

func unbounds(b *testing.B) *floats {
	l, programs := newResolvers(b, "")
	return &floats{lab: l, programs: programs, vips: resolverVIPs[:1],
		query: recipeQuery(b)}
}

// bfdAgrees is time for a BFD session that is up to agree about its interval.
const bfdAgrees = 2 * time.Second

// router is a routing daemon for a router of all hosts.
type router struct {
	name  string
	start func(b *testing.B, l *lab, n *netlab.Node, bfd time.Duration)
}

var (
	bird = router{"bird", func(b *testing.B, l *lab, n *netlab.Node, bfd time.Duration) {
		lines := ""
		if bfd > 0 {
			lines = fmt.Sprintf("bfd { interval %d ms; multiplier 3; };", bfd.Milliseconds())
		}
		routers.StartBird(b, n, birdConfig(l, lines))
	}}
	frr = router{"frr", func(b *testing.B, l *lab, n *netlab.Node, bfd time.Duration) {
		routers.StartFRR(b, n, frrConfig(l, bfd), "bfdd", "bgpd")
	}}
)

// frrConfig returns the configuration of a router of FRR with all hosts as neighbors.
func frrConfig(l *lab, bfd time.Duration) string {
	config := "frr version 8.4\nlog stdout\nrouter bgp 65000\n bgp router-id 10.78.0.250\n no bgp ebgp-requires-policy\n bgp graceful-restart\n"
	activate, peers := "", ""
	for _, h := range l.hosts {
		config += fmt.Sprintf(" neighbor %[1]s remote-as 65010\n neighbor %[1]s timers connect 1\n", h.Addr4)
		activate += fmt.Sprintf("  neighbor %s activate\n", h.Addr4)
		if bfd > 0 {
			config += fmt.Sprintf(" neighbor %s bfd\n", h.Addr4)
			peers += fmt.Sprintf(" peer %s\n  detect-multiplier 3\n  receive-interval %[2]d\n  transmit-interval %[2]d\n", h.Addr4, bfd.Milliseconds())
		}
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		config += fmt.Sprintf(" address-family %s unicast\n%s exit-address-family\n", family, activate)
	}
	if peers != "" {
		config += "bfd\n" + peers
	}
	return config
}

// throughRouter is a client behind a router, to which hosts announce every VIP. Left is how many of them
// remain in the router's routes when the first one is gone.
func throughRouter(r router, hosts int, bfd time.Duration, left int, happen, undo func(*lab, *host)) func(b *testing.B) *scene {
	return func(b *testing.B) *scene {
		l := prepareLab(b, hosts)
		node := l.Join("router")
		client := l.Behind(node, "far")
		for _, key := range []string{"ipv4/fib_multipath_hash_policy", "ipv6/fib_multipath_hash_policy"} {
			node.Sysctl(key, "1") // by the ports, too
		}
		lines := ""
		if bfd > 0 {
			lines = fmt.Sprintf("bfd = \"3x%s\"", bfd)
		}
		r.start(b, l, node, bfd)
		l.start("bgp", bgpPeer(node.Addr4, 65000, lines))
		events := routers.WatchRoutes(b, node)
		ready := func() {
			awaitWays(b, node, hosts)
			if bfd > 0 {
				for _, h := range l.hosts {
					h.awaitPeers(2, "an established session and path", func(p v1.AnnouncePeer) bool { return p.Up })
				}
				time.Sleep(bfdAgrees)
			}
		}
		ready()
		return &scene{client: client, vips: []netip.Addr{vip4(0), vip6(0)}, count: map[string]func() int{"deleted-routes": func() int { return int(events.Deleted.Load()) }},
			happen: func() { awaitWays(b, node, hosts); happen(l, l.hosts[0]); awaitWays(b, node, left) },
			undo: func() {
				if undo == nil {
					return
				}
				undo(l, l.hosts[0])
				ready()
			}}
	}
}

// awaitWays waits until a node's routes to all VIPs have a number of next hops.
func awaitWays(t testing.TB, n *netlab.Node, want int) {
	t.Helper()
	wait.For(t, fmt.Sprintf("%d ways to each VIP", want), func() error {
		for _, vip := range vips() {
			if got := waysTo(t, n, vip); got != want {
				return fmt.Errorf("%d to %s", got, vip)
			}
		}
		return nil
	})
}

// waysTo returns how many next hops a node's route to an address has.
func waysTo(b testing.TB, n *netlab.Node, to netip.Addr) int {
	b.Helper()
	list := netlab.List(b, func() ([]netlink.Route, error) {
		return n.Netlink.RouteList(nil, map[bool]int{true: unix.AF_INET, false: unix.AF_INET6}[to.Is4()])
	})
	ways := 0
	for _, r := range list {
		if r.Dst != nil && r.Dst.String() == netip.PrefixFrom(to, to.BitLen()).String() {
			ways += max(1, len(r.MultiPath))
		}
	}
	return ways
}

// Three hosts of a fleet on Consul know each other and share a secret without any setting. VIPs move
// when a host dies and when another one drains it, also while Consul is away.
// Slow: hosts that start or return settle for a second, four times, beside a server of Consul.
func TestFleetMovesVIPs(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 3)
	node := l.Join("consul")
	consul := consultest.Start(t, consultest.Options{In: node, Addr: node.Addr4, Memory: true})
	fleet := fmt.Sprintf("[ipam]\nstore = \"consul\"\n[consul]\naddress = %q\n", consul.Addr)
	for _, h := range l.hosts {
		h.configure(services(serviceCount, l.backends), l.config(h, "l2", fleet))
		h.start()
	}
	a, b, c := l.hosts[0], l.hosts[1], l.hosts[2]
	owners := l.settled()
	for vip := range owners {
		expect.Equal(t, must.Get(l.client.Ask("tcp", netip.AddrPortFrom(vip, servicePort)))(t).Name, owners[vip], "%s of %s", vip, owners[vip])
	}

	c.must("node", "drain", "lb2", "--wait")
	l.awaitNone(b)
	c.must("node", "undrain", "lb2")
	l.awaitThese(owners)

	consul.Pause()
	a.kill()
	l.awaitNone(a)
	l.cutOff(b, true)
	c.awaitAll()
	l.cutOff(b, false)
	consul.Continue()
	a.start()
	l.awaitThese(owners)
}

// In a fleet on Consul, any host moves a VIP to any other one, and all know it. A drain ends a move. A pinned VIP returns after the
// drain, until another host unpins it. Other VIPs stay where they are, and restarts of agents change nothing.
// Slow: hosts settle for a second, six times, beside a server of Consul.
func TestMoveInAFleet(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 3)
	node := l.Join("consul")
	consul := consultest.Start(t, consultest.Options{In: node, Addr: node.Addr4, Memory: true})
	for _, h := range l.hosts {
		h.configure(services(serviceCount, l.backends), l.config(h, "l2", patient+fmt.Sprintf("[ipam]\nstore = \"consul\"\n[consul]\naddress = %q\n", consul.Addr)))
		h.start()
	}
	a, b, c := l.hosts[0], l.hosts[1], l.hosts[2]
	owners := l.settled()
	addr := ownedBy(t, owners, a.Name, false)
	vip := addr.String()
	moved := func(to *host, why string) {
		t.Helper()
		now := maps.Clone(owners)
		now[addr] = to.Name
		l.awaitThese(now)
		for _, h := range l.hosts {
			wait.Until(t, h.Name+": "+why, func() bool { return strings.Contains(h.must("announce", "explain", vip), why) }, func() any { return h.must("announce", "explain", vip) })
		}
		expect.Equal(t, must.Get(l.client.Ask("tcp", netip.AddrPortFrom(addr, servicePort)))(t).Name, to.Name, "the host that serves")
	}
	drained := func(h *host) {
		t.Helper()
		a.must("node", "drain", h.Name, "--wait")
		l.awaitNone(h)
		a.must("node", "undrain", h.Name)
	}

	c.must("announce", "move", vip, b.Name, "--wait")
	moved(b, "moved here by an operator")
	b.upgrade()
	moved(b, "moved here by an operator")
	drained(b)
	moved(a, a.Name+": highest of 3 eligible")

	a.must("node", "drain", c.Name, "--wait")
	out, err := b.run("announce", "move", vip, c.Name)
	expect.True(t, err != nil && strings.Contains(out, "drains"), "a move to a host that drains: %v, %s", err, out)
	b.must("announce", "move", vip, c.Name, "--pin")
	a.must("node", "undrain", c.Name)
	moved(c, "pinned here by an operator")
	drained(c)
	moved(c, "pinned here by an operator")
	b.must("announce", "unpin", vip)
	moved(a, a.Name+": highest of 3 eligible")
	wait.For(t, "the events of the moves", func() error {
		out := a.must("events")
		if !strings.Contains(out, "vip_moved") || !strings.Contains(out, "vip_move_ended") {
			return errors.New(out)
		}
		return nil
	})
}

// node waits until a host's list of nodes has another one in a state.
func (h *host) node(name, state string) v1.Node {
	h.t.Helper()
	var found v1.Node
	wait.For(h.t, h.Name+": "+name+" is "+state, func() error {
		list, err := h.api.Nodes(h.t.Context())
		for _, n := range list.Items {
			if n.Name == name && n.State == state {
				found = n
				return nil
			}
		}
		return fmt.Errorf("%v: %s", err, text(list))
	})
	return found
}

// A host of a pair that fails is lost on the other one, with the VIPs that it announced, until it
// returns. The other one takes its VIPs over.
// Slow: a host is lost after 3 s of silence.
func TestLostPeer(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2, "missed = 30") // a busy machine moves no VIP
	a, b := l.hosts[0], l.hosts[1]
	owners := l.settled()
	owned := 0
	for _, owner := range owners {
		if owner == b.Name {
			owned++
		}
	}
	wait.For(t, "the number of its VIPs", func() error {
		if n := a.node(b.Name, v1.NodePresent); n.VIPCount == nil || *n.VIPCount != owned {
			return fmt.Errorf("%s", text(n))
		}
		return nil
	})
	began := time.Now()
	b.announcer.Kill()
	b.agent.Kill()
	a.awaitAll()
	n := a.node(b.Name, v1.NodeLost)
	if n.VIPCount == nil || *n.VIPCount != owned || len(n.VIPs) != owned || n.Since == nil || n.Since.Before(began.Add(-time.Second)) {
		t.Errorf("%s", text(n))
	}
	for _, vip := range n.VIPs {
		expect.Equal(t, owners[vip], b.Name, "%s was announced by", vip)
	}
	if out, err := a.run("status"); err == nil || !strings.Contains(out, "lb2 is lost: silent for") {
		t.Error(out)
	}
	if out, err := a.run("node", "forget", b.Name); err == nil || !strings.Contains(out, "announce.peers") {
		t.Error(out)
	}
	b.start()
	a.node(b.Name, v1.NodePresent)
	l.awaitThese(owners)
	wait.For(t, "its events", func() error {
		if out := a.must("events"); !strings.Contains(out, "node_lost") || !strings.Contains(out, "node_returned") || strings.Contains(out, "node_forgotten") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
}

// moves returns how many moves the host has reported as events.
func (h *host) moves() int {
	h.t.Helper()
	out := h.must("events")
	return strings.Count(out, "vip_announced") + strings.Count(out, "vip_withdrawn")
}
