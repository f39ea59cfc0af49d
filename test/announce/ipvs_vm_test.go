//go:build vm

package announce

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

// slow makes a host dead only after 30 s without a heartbeat. These tests don't let a host die, and all
// processes of the emulated machine may stop together for seconds, when its own host is busy.
const slow = "heartbeat = \"500ms\"\nmissed = 60\n"

// patience is how long a request waits for its answer: commands and processes that start keep the only,
// emulated processor busy, and it may stop for seconds. A request that is refused or reset is lost at once.
const patience = 30 * time.Second

// With IPVS, the kernel forwards without the agent: if it is stopped, killed or restarted, or hangs, no
// announcement changes and no request is lost. A drain moves the VIPs.
func TestAgentRestartsWithIPVS(t *testing.T) {
	l := newLab(t, 2, slow)
	a := l.hosts[0]
	owners := l.settled()
	before := l.decisions()
	vips := []netip.Addr{ownedBy(t, owners, a.Name, false), ownedBy(t, owners, a.Name, true)}
	begin := func() (loads []*load) {
		for _, vip := range vips {
			loads = append(loads, startPatientLoad(t, l.client, vip, 50*time.Millisecond, patience))
		}
		return loads
	}
	end := func(loads []*load) {
		t.Helper()
		for _, load := range loads {
			load.awaitAnswers(10)
			got := load.end()
			t.Logf("%s: %s", load.to, got)
			if got.lost > 0 {
				t.Errorf("%s: %s", load.to, got)
			}
		}
	}
	loads := begin()
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
	a.pause(a.agent)
	time.Sleep(8 * time.Second) // longer than keepalives may be missing, too
	a.resume(a.agent)
	l.awaitOwners("the same owners", func(o map[netip.Addr]string) bool { return fmt.Sprint(o) == fmt.Sprint(owners) })
	end(loads)
	for at, d := range l.decisions() {
		if d.owner != before[at].owner || d.since != before[at].since {
			t.Errorf("%s: the announcement of %s has changed: %+v, before %+v", at.host, at.vip, d, before[at])
		}
	}
	a.must("node", "drain", "--wait")
	l.awaitOwners("all on lb2", func(o map[netip.Addr]string) bool { return !slices.Contains(mapValues(o), a.Name) })
	end(begin())
}

// newDirectLab is newLab with direct routing and mh, to two backends that have the VIPs themselves.
func newDirectLab(t testing.TB) *lab {
	t.Helper()
	l := prepareLab(t, 2)
	var backends []string
	for _, name := range []string{"rs1", "rs2"} {
		n := l.Join(name)
		n.Sysctl("ipv4/conf/all/arp_ignore", "1") // real servers have the VIPs and must not answer for them
		n.Sysctl("ipv4/conf/all/arp_announce", "2")
		for _, vip := range vips() {
			n.AddAddr("lo", netip.PrefixFrom(vip, vip.BitLen()))
			n.Serve("tcp", netip.AddrPortFrom(vip, servicePort))
		}
		backends = append(backends, fmt.Sprintf("{ address = %q }, { address = %q }", n.Addr4, n.Addr6))
	}
	var direct strings.Builder
	for i := range serviceCount {
		fmt.Fprintf(&direct, "[[service]]\nname = \"s%d\"\nvips = [%q, %q]\nports = [{ port = %d }]\nforward = \"dr\"\nscheduler = \"mh\"\nscheduler_flags = [\"port\"]\nbackends = [%s]\nhealth = { type = \"none\" }\n",
			i, vip4(i), vip6(i), servicePort, strings.Join(backends, ", "))
	}
	for _, h := range l.hosts {
		h.configure(direct.String(), l.config(h, "l2", l.peers()+slow))
		h.start()
	}
	return l
}

// BenchmarkFailoverIPVS is BenchmarkFailover with the IPVS dataplane: what happens to the agent loses
// nothing, and with direct routing and mh, a planned move does not either.
func BenchmarkFailoverIPVS(b *testing.B) {
	nat := func(b *testing.B) *lab { return newLab(b, 2, slow) }
	direct := func(b *testing.B) *lab { return newDirectLab(b) }
	pause := 3 * time.Second // longer than the userspace proxy is given
	measureAll(b, []event{
		{"dr-mh/drain", atLayer2(direct, drainNode, undrainNode)},
		{"dr-mh/announcer-restart", atLayer2(direct, restartAnnouncer, nil)},
		{"nat/drain", atLayer2(nat, drainNode, undrainNode)},
		{"nat/agent-stop", atLayer2(nat, func(l *lab, a *host) { stopAgent(l, a); time.Sleep(pause) }, startAgent)},
		{"nat/agent-killed", atLayer2(nat, func(_ *lab, a *host) { a.agent.Kill(); time.Sleep(pause) }, startAgent)},
		{"nat/agent-restart", atLayer2(nat, func(l *lab, a *host) { stopAgent(l, a); startAgent(l, a); a.awaitAnswer() }, nil)},
	})
}

// awaitAnswer waits until the agent answers.
func (h *host) awaitAnswer() {
	h.t.Helper()
	wait.For(h.t, "an answer of "+h.Name, func() error { _, err := h.announcements(); return err })
}

// Direct routing with mh: a VIP moves in the middle of connections, and both hosts have chosen the same
// backend for each. So nothing is lost, not even the requests in flight.
func TestConnectionsSurviveAMove(t *testing.T) {
	l := newDirectLab(t)
	a := l.hosts[0]
	owners := l.settled()
	type open struct {
		*netlab.Conn
		to      netip.Addr
		backend string
	}
	var all []open
	var loads []*load
	seen := map[string]bool{}
	for _, v6 := range []bool{false, true} {
		vip := ownedBy(t, owners, a.Name, v6)
		for range 6 {
			c, err := l.client.Dial("tcp", netip.AddrPortFrom(vip, servicePort))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := c.Ask()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, open{c, vip, answer.Name})
			seen[answer.Name] = true
		}
		loads = append(loads, startPatientLoad(t, l.client, vip, 50*time.Millisecond, patience))
	}
	if len(seen) != 2 {
		t.Errorf("all connections are with %v", seen)
	}
	for _, load := range loads {
		load.awaitAnswers(10)
	}
	a.must("node", "drain", "--wait")
	l.awaitOwners("all on lb2", func(o map[netip.Addr]string) bool { return !slices.Contains(mapValues(o), a.Name) })
	for _, c := range all {
		if answer, err := c.Ask(); err != nil || answer.Name != c.backend {
			t.Errorf("an open connection to %s was with %s, after the move: %s, %v", c.to, c.backend, answer.Name, err)
		}
	}
	for _, load := range loads {
		load.awaitAnswers(10)
		got := load.end()
		t.Logf("%s: %s", load.to, got)
		if got.lost > 0 {
			t.Errorf("%s: %s", load.to, got)
		}
	}
}
