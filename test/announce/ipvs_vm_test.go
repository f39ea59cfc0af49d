//go:build vm

package announce

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// slow are times for an emulated processor, on which three processes start at once.
const slow = "heartbeat = \"500ms\"\nmissed = 6\n"

// With IPVS, the kernel forwards without the agent: stopping, killing and restarting it changes no
// announcement and loses no request. A drain moves the VIPs.
func TestAgentRestartsWithIPVS(t *testing.T) {
	l := newLab(t, 2, slow)
	a := l.hosts[0]
	owners := l.awaitOwners("a share for each host", l.shared)
	loads := []*load{startLoad(t, l.client, ownedBy(t, owners, a.Name, false), 50*time.Millisecond), startLoad(t, l.client, ownedBy(t, owners, a.Name, true), 50*time.Millisecond)}
	for _, end := range []func(){func() {
		if err := a.agent.Stop(); err != nil {
			t.Fatal(err)
		}
	}, a.agent.Kill} {
		end()
		time.Sleep(5 * time.Second) // longer than the userspace proxy is given
		if err := a.agent.Start(); err != nil {
			t.Fatal(err)
		}
		l.awaitOwners("the same owners", func(o map[netip.Addr]string) bool { return fmt.Sprint(o) == fmt.Sprint(owners) })
	}
	for _, load := range loads {
		got := load.end()
		t.Logf("%s: %s", load.to, got)
		if got.lost > 0 || got.requests < 20 {
			t.Errorf("%s: %s", load.to, got)
		}
	}
	a.must("node", "drain", "--wait")
	l.awaitOwners("all on lb2", func(o map[netip.Addr]string) bool { return !slices.Contains(mapValues(o), a.Name) })
	load := startLoad(t, l.client, ownedBy(t, owners, a.Name, false), 50*time.Millisecond)
	time.Sleep(2 * time.Second)
	if got := load.end(); got.lost > 0 || got.requests < 10 {
		t.Errorf("after a drain: %s", got)
	}
}
