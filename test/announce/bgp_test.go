//go:build system

package announce

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// bgpPeer returns the table of a router in ironvip.toml, with more lines.
func bgpPeer(at netip.Addr, asn int, lines string) string {
	return fmt.Sprintf("[[announce.bgp]]\npeer = %q\nasn = %d\nlocal_asn = 65010\n%s\n", at, asn, lines)
}

// birdConfig returns the configuration of a router of BIRD with all hosts as neighbors, which have more
// lines.
func birdConfig(l *lab, lines string) string {
	config := "router id 10.78.0.250;\nprotocol bfd { }\nprotocol kernel k4 { merge paths on; ipv4 { export all; }; }\nprotocol kernel k6 { merge paths on; ipv6 { export all; }; }\n"
	for _, h := range l.hosts {
		config += fmt.Sprintf("protocol bgp %s { local as 65000; neighbor %s as 65010; graceful restart on; error wait time 1, 2; connect delay time 1; connect retry time 1;\nipv4 { import all; export none; add paths off; };\nipv6 { import all; export none; extended next hop; };\n%s\n}\n", h.Name, h.Addr4, lines)
	}
	return config
}

// Two hosts announce every VIP to a router. A drain takes the routes of one away, after its routes
// were marked. A restart and a crash of an announcer delete no route.
// Slow: BIRD connects again a second after the end of each session.
func TestRouter(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 2)
	a := l.hosts[0]
	node := l.Join("router")
	l.start("bgp", bgpPeer(node.Addr4, 65000, `communities = ["65010:100"]`))
	bird := routers.StartBird(t, node, birdConfig(l, ""))
	routes := func(want int) {
		t.Helper()
		wait.Until(t, fmt.Sprintf("%d routes", want), func() bool { return bird.Count() == want }, func() any { return bird.Ask("show", "route") + a.must("announce", "peers") })
	}
	all := len(l.hosts) * len(vips())
	routes(all)
	wait.Until(t, "the agent knows that all VIPs are announced", func() bool {
		out := a.must("announce", "list")
		return strings.Count(out, "announced") == len(vips()) && strings.Contains(out, "lb1: eligible")
	}, func() any { return a.must("announce", "list") })
	expect.Contains(t, a.must("announce", "peers"), "established")

	a.must("node", "drain")
	wait.Until(t, "the community GRACEFUL_SHUTDOWN", func() bool { return bird.Count("where (65535, 0) ~ bgp_community") == len(vips()) })
	a.must("node", "drain", "--wait")
	routes(len(vips()))
	a.must("node", "undrain")
	routes(all)

	awaitWays(t, node, len(l.hosts))
	events := routers.WatchRoutes(t, node)
	for _, end := range []func(){func() { a.stop(a.announcer) }, a.announcer.Kill} {
		end()
		session := func() string { return bird.Ask("show", "protocols", "all", a.Name) }
		wait.Until(t, "BIRD waits for the restart", func() bool { return strings.Contains(session(), "graceful restart active") }, func() any { return session() })
		a.startAnnouncer()
		wait.Until(t, "the end of the restart", func() bool {
			return strings.Contains(session(), "Established") && !strings.Contains(session(), "graceful restart active")
		}, func() any { return session() })
	}
	routes(all)
	expect.AtMost(t, events.Added.Load()+events.Deleted.Load(), 0, "changes of routes in the router's kernel by restarts of an announcer")
	a.stop(a.agent)
	routes(len(vips())) // the userspace proxy forwards nothing without its agent
}

// When the host shuts down, which the announcer asks systemd, routers are asked to use other paths, and
// the routes are withdrawn: without that, they would keep them for the time of a restart.
// Slow: the host settles for a second, and leaves its routes time to be replaced.
func TestHostShutsDown(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 2)
	a := l.hosts[0]
	node := l.Join("router")
	dir := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "systemctl"), []byte("#!/bin/sh\n[ \"$*\" = is-system-running ] && echo stopping\nexit 1\n"), 0o755))
	a.announcer = process.New("/bin/sh", filepath.Join(a.dir, "announcer.log"), a.Node, "-c", `PATH="$0:$PATH" exec "$@"`,
		dir, need.Binary(t), "announcer", "--socket", filepath.Join(a.dir, "control.sock"))
	l.start("bgp", bgpPeer(node.Addr4, 65000, ""))
	bird := routers.StartBird(t, node, birdConfig(l, ""))
	wait.Until(t, "all routes", func() bool { return bird.Count() == len(l.hosts)*len(vips()) })
	ended := make(chan error, 1)
	go func() { ended <- a.announcer.Stop() }()
	wait.Until(t, "the community GRACEFUL_SHUTDOWN", func() bool { return bird.Count("where (65535, 0) ~ bgp_community") == len(vips()) })
	wait.Until(t, "the routes of the other host only", func() bool { return bird.Count() == len(vips()) })
	expect.Succeed(t, <-ended)
}

// The recommended configuration of BIRD, from the documentation, removes the routes of a host that has died, and a restart
// of an announcer after a drain leaves every VIP a route at all times.
// Slow: BIRD connects again a second after the end of each session.
func TestRecommendedRouter(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 2)
	a := l.hosts[0]
	node := l.Join("router")
	l.start("bgp", bgpPeer(node.Addr4, 65000, `bfd = "10x100ms"`)) // a busy machine is no failure
	routers.StartBird(t, node, recommended(t, l))
	peers := func(n int, what string, ok func(v1.AnnouncePeer) bool) {
		t.Helper()
		for _, h := range l.hosts {
			h.awaitPeers(n, what, ok)
		}
	}
	established := func(p v1.AnnouncePeer) bool { return p.Up }
	peers(2, "an established session and path", established)
	awaitWays(t, node, 2)
	for _, command := range [][]string{{"explain", vip4(0).String()}, {"peers", "-o", "wide"}} {
		wait.Until(t, "what is negotiated in "+command[0], func() bool {
			return strings.Contains(a.must(append([]string{"announce"}, command...)...), "graceful restart: the router keeps the routes for up to 2m0s while the announcer restarts; its own")
		})
	}

	events := routers.WatchRoutes(t, node)
	a.must("node", "drain", "--wait")
	awaitWays(t, node, 1)
	a.stop(a.announcer)
	a.startAnnouncer()
	a.must("node", "undrain")
	awaitWays(t, node, 2)
	peers(2, "an established session and path again", established)
	expect.AtMost(t, events.Deleted.Load(), 0, "VIPs without a route meanwhile")

	a.stop(a.announcer) // without a drain, its routes are away at once
	awaitWays(t, node, 1)
	a.startAnnouncer()
	awaitWays(t, node, 2)

	l.cutOff(a, true)
	awaitWays(t, node, 1) // not after the hold time of 90 s
	l.cutOff(a, false)
	awaitWays(t, node, 2)
}

// recommended returns the configuration of BIRD in docs/announce.md, for the hosts and the interface of a lab.
func recommended(t *testing.T, l *lab) string {
	t.Helper()
	text := string(must.Get(os.ReadFile("../../docs/announce.md"))(t))
	_, text, _ = strings.Cut(text, "\n    protocol bfd {")
	text, _, _ = strings.Cut("    protocol bfd {"+text, "\n\n")
	head, rest, _ := strings.Cut(text, "    protocol bgp lb1 {")
	peer, tail, found := strings.Cut(rest, "    }\n")
	if !found {
		t.Fatalf("docs/announce.md has no configuration of BIRD:\n%s", text)
	}
	config := head
	for _, h := range l.hosts {
		config += "protocol bgp " + h.Name + " {" + strings.ReplaceAll(peer, "10.0.0.1 ", h.Addr4.String()+" ") + "}\n"
	}
	return config + tail + "\n"
}
