//go:build system && long

package announce

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
)

// The owner fails in other ways than by its end: see TestAnnouncerIsKilled and TestLostPeer.
func TestOwnerFails(t *testing.T) {
	for name, fault := range map[string]struct {
		fail, repair func(*lab, *host)
	}{
		"no carrier":        {func(l *lab, h *host) { l.setPort(h, false) }, func(l *lab, h *host) { l.setPort(h, true) }},
		"cut off":           {func(l *lab, h *host) { l.cutOff(h, true) }, func(l *lab, h *host) { l.cutOff(h, false) }},
		"stopped":           {func(l *lab, h *host) { h.pause(h.announcer, h.agent) }, func(l *lab, h *host) { h.resume(h.announcer, h.agent) }},
		"announcer stopped": {func(l *lab, h *host) { h.pause(h.announcer) }, func(l *lab, h *host) { h.resume(h.announcer) }},
		"agent stopped":     {func(l *lab, h *host) { h.pause(h.agent) }, func(l *lab, h *host) { h.resume(h.agent) }},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) { ownerFails(t, fault.fail, fault.repair) })
	}
}

// An agent that is stopped for less than 5 s, and so keeps its connection, changes no announcement, and
// neither does its continuation.
func TestAgentIsStopped(t *testing.T) {
	l := newLab(t, 2, patient)
	a, b := l.hosts[0], l.hosts[1]
	owners := l.settled()
	wait.Undisturbed(t, "an agent that is stopped", func() error {
		before := b.moves()
		a.pause(a.agent)
		time.Sleep(3 * time.Second) // longer than VIPs of the proxy stay without an agent
		during := b.moves() - before
		a.resume(a.agent)
		l.awaitThese(owners)
		if after := b.moves() - before; during > 0 || after > 0 {
			return fmt.Errorf("%d moves while the agent is stopped, %d with those afterwards", during, after)
		}
		return nil
	})
}

// Heartbeats of lb2 don't arrive at lb1, from the start on: lb1 receives nothing, and lb2 can't know
// that what it receives is not a recording. Both take the VIPs, and find each other by ARP and
// neighbor discovery: one answers for each VIP, the other one has a conflict. When the heartbeats
// arrive, the ranking decides.
func TestOneWayFromTheStart(t *testing.T) {
	need.Program(t, "nft")
	l := newLab(t, 2, "")
	a, b := l.hosts[0], l.hosts[1]
	owners := l.settled()
	for _, h := range l.hosts {
		must.Succeed(t, h.announcer.Stop())
	}
	nft := func(rules string) {
		t.Helper()
		var out []byte
		var err error
		a.Do(func() { out, err = exec.Command("nft", rules).CombinedOutput() })
		must.Succeed(t, err, "nft %s: %s", rules, out)
	}
	nft("table inet fault { chain in { type filter hook input priority 0; udp dport 7481 drop; }; }")
	w := watch(t, l.client)
	for _, h := range l.hosts {
		h.startAnnouncer()
	}
	wait.For(t, "a conflict on one host for each VIP", func() error {
		ours, err := a.announcements()
		if err != nil {
			return err
		}
		theirs, err := b.announcements()
		for _, vip := range vips() {
			if err == nil && (ours[vip].State == "conflict") == (theirs[vip].State == "conflict") {
				err = fmt.Errorf("%s is %s on lb1 and %s on lb2", vip, ours[vip].State, theirs[vip].State)
			}
		}
		return err
	})
	wait.For(t, "one answer for each VIP", func() (err error) {
		for vip, n := range w.answering() {
			if n != 1 {
				err = fmt.Errorf("%d hosts answer for %s", n, vip)
			}
		}
		return err
	})
	for h, want := range map[*host]string{a: "unknown", b: "one-way"} {
		expect.Contains(t, h.must("announce", "peers"), want, "%s: peers", h.Name)
		if out, _ := h.run("status"); !strings.Contains(out, "conflict") || !strings.Contains(out, want) {
			t.Errorf("%s: status\n%s", h.Name, out)
		}
	}
	nft("delete table inet fault")
	l.awaitThese(owners)
}

// answering returns how many hosts have just answered for each VIP.
func (w *watcher) answering() map[netip.Addr]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[netip.Addr]int{}
	for _, vip := range vips() {
		out[vip] = 0
		for _, at := range w.heard[vip] {
			if time.Since(at) < 10*answerTime {
				out[vip]++
			}
		}
	}
	return out
}

// smallFrame is longer than ARP over Ethernet and shorter than a heartbeat, in bytes.
const smallFrame = 60

// The queue of an interface has no room for heartbeats (ENOBUFS). The other host takes the VIPs over, and
// this host says why. When the queue has room again, the VIPs return.
func TestQueueHasNoRoom(t *testing.T) {
	tc := need.Program(t, "tc")
	l := newLab(t, 2, "")
	a := l.hosts[0]
	owners := l.settled()
	queue := func(args ...string) {
		t.Helper()
		var out []byte
		var err error
		a.Do(func() { out, err = exec.Command(tc, append([]string{"qdisc"}, args...)...).CombinedOutput() })
		must.Succeed(t, err, "tc %v: %s", args, out)
	}
	queue("add", "dev", "eth0", "root", "bfifo", "limit", strconv.Itoa(smallFrame))
	l.hosts[1].awaitAll()
	wait.For(t, "the reason in the status", func() error {
		if out, _ := a.run("status"); !strings.Contains(out, "ENOBUFS") {
			return errors.New(out)
		}
		return nil
	})
	queue("del", "dev", "eth0", "root")
	l.awaitThese(owners)
	wait.For(t, "the end of the problem", func() error {
		if out, _ := a.run("status"); strings.Contains(out, "ENOBUFS") {
			return errors.New(out)
		}
		return nil
	})
}
