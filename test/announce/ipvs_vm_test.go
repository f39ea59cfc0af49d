//go:build vm

package announce

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

// slow makes a host dead only after 50 s without a heartbeat. These tests don't let a host die, and all
// processes of the emulated machine may stop together for seconds, when its own host is busy.
const slow = "heartbeat = \"500ms\"\nmissed = 100\n"

// With IPVS, the kernel forwards without the agent: if it is stopped, killed or restarted, no announcement
// changes and no request is lost. A drain moves the VIPs.
// Slow: the emulated machine, and 3 s without an agent.
func TestAgentRestartsWithIPVS(t *testing.T) {
	l := newLab(t, 2, slow)
	a := l.hosts[0]
	owners := l.settled()
	l.unnoticed(owners, func() {
		a.stop(a.agent)
		startAgent(l, a)
		l.awaitThese(owners)
		a.agent.Kill()
		time.Sleep(3 * time.Second) // longer than the userspace proxy is given
		startAgent(l, a)
		l.awaitThese(owners)
	})
	a.must("node", "drain", "--wait")
	l.awaitNone(a)
	nothingLost(t, l.loads(owners))
}

// loads asks for a VIP of each family of the first host.
func (l *lab) loads(owners map[netip.Addr]string) (all []*load) {
	for _, v6 := range []bool{false, true} {
		all = append(all, startPatientLoad(l.t, l.client, ownedBy(l.t, owners, l.hosts[0].Name, v6), 200*time.Millisecond, wait.Reply))
	}
	return all
}

func nothingLost(t testing.TB, loads []*load) {
	t.Helper()
	for _, load := range loads {
		load.awaitAnswers(3)
		got := load.end()
		t.Logf("%s: %s", load.to, got)
		expect.AtMost(t, got.lost, 0, "%s: %s: lost", load.to, got)
	}
}

// unnoticed does something to the agent of the first host that changes no announcement and loses no request.
func (l *lab) unnoticed(owners map[netip.Addr]string, do func()) {
	l.t.Helper()
	before, loads := l.decisions(), l.loads(owners)
	do()
	nothingLost(l.t, loads)
	for at, d := range l.decisions() {
		if d.owner != before[at].owner || d.since != before[at].since {
			l.t.Errorf("%s: the announcement of %s has changed: %+v, before %+v", at.host, at.vip, d, before[at])
		}
	}
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
// Slow: the emulated machine.
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
	seen := map[string]bool{}
	for _, v6 := range []bool{false, true} {
		vip := ownedBy(t, owners, a.Name, v6)
		for range 6 {
			c := must.Get(l.client.Dial("tcp", netip.AddrPortFrom(vip, servicePort)))(t)
			answer := must.Get(c.Ask())(t)
			all = append(all, open{c, vip, answer.Name})
			seen[answer.Name] = true
		}
	}
	expect.Equal(t, len(seen), 2, "all connections are with %v", seen)
	loads := l.loads(owners)
	for _, load := range loads {
		load.awaitAnswers(3)
	}
	a.must("node", "drain", "--wait")
	l.awaitNone(a)
	for _, c := range all {
		expect.Equal(t, must.Get(c.Ask())(t).Name, c.backend, "an open connection to %s, after the move", c.to)
	}
	nothingLost(t, loads)
}
