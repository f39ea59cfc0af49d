//go:build system

package announce

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
		config += fmt.Sprintf("protocol bgp %s { local as 65000; neighbor %s as 65010; graceful restart on; error wait time 1, 2; connect retry time 1;\nipv4 { import all; export none; add paths off; };\nipv6 { import all; export none; extended next hop; };\n%s\n}\n", h.Name, h.Addr4, lines)
	}
	return config
}

// Two hosts announce every VIP to a router. A drain takes the routes of one away, after its routes
// were marked. A restart and a crash of an announcer delete no route.
func TestRouter(t *testing.T) {
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
	if out := a.must("announce", "list"); strings.Count(out, "announced") != len(vips()) || !strings.Contains(out, "lb1: eligible") {
		t.Error(out)
	}
	if out := a.must("announce", "peers"); !strings.Contains(out, "established") {
		t.Error(out)
	}

	a.must("node", "drain")
	wait.Until(t, "the community GRACEFUL_SHUTDOWN", func() bool { return bird.Count("where (65535, 0) ~ bgp_community") == len(vips()) })
	a.must("node", "drain", "--wait")
	routes(len(vips()))
	a.must("node", "undrain")
	routes(all)

	fewest := all
	watch := func(until time.Duration) {
		for end := time.Now().Add(until); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			fewest = min(fewest, bird.Count())
		}
	}
	for _, end := range []func(){func() {
		if err := a.announcer.Stop(); err != nil {
			t.Fatal(err)
		}
	}, a.announcer.Kill} {
		end()
		watch(300 * time.Millisecond)
		a.startAnnouncer()
		wait.Until(t, "a session after a restart", func() bool { out, _ := a.run("announce", "peers"); return strings.Contains(out, "established") })
		watch(500 * time.Millisecond)
	}
	if fewest != all {
		t.Errorf("a restart of an announcer leaves %d of %d routes", fewest, all)
	}
	routes(all)
	if err := a.agent.Stop(); err != nil {
		t.Fatal(err)
	}
	routes(len(vips())) // the userspace proxy forwards nothing without its agent
}

// When the host shuts down, which the announcer asks systemd, routers are asked to use other paths, and
// the routes are withdrawn: without that, they would keep them for the time of a restart.
func TestHostShutsDown(t *testing.T) {
	l := prepareLab(t, 2)
	a := l.hosts[0]
	node := l.Join("router")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte("#!/bin/sh\n[ \"$*\" = is-system-running ] && echo stopping\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	a.announcer = process.New("/bin/sh", filepath.Join(a.dir, "announcer.log"), a.Node, "-c", `PATH="$0:$PATH" exec "$@"`,
		dir, binary(t), "announcer", "--socket", filepath.Join(a.dir, "control.sock"))
	l.start("bgp", bgpPeer(node.Addr4, 65000, ""))
	bird := routers.StartBird(t, node, birdConfig(l, ""))
	wait.Until(t, "all routes", func() bool { return bird.Count() == len(l.hosts)*len(vips()) })
	ended := make(chan error, 1)
	go func() { ended <- a.announcer.Stop() }()
	wait.Until(t, "the community GRACEFUL_SHUTDOWN", func() bool { return bird.Count("where (65535, 0) ~ bgp_community") == len(vips()) })
	wait.Until(t, "the routes of the other host only", func() bool { return bird.Count() == len(vips()) })
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
