//go:build system

package announce

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
)

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
		if err := h.announcer.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	nft := func(rules string) {
		t.Helper()
		var out []byte
		var err error
		a.Do(func() { out, err = exec.Command("nft", rules).CombinedOutput() })
		if err != nil {
			t.Fatalf("nft %s: %v: %s", rules, err, out)
		}
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
		if out := h.must("announce", "peers"); !strings.Contains(out, want) {
			t.Errorf("%s: peers\n%s", h.Name, out)
		}
		if out, _ := h.run("status"); !strings.Contains(out, "conflict") || !strings.Contains(out, want) {
			t.Errorf("%s: status\n%s", h.Name, out)
		}
	}
	nft("delete table inet fault")
	l.awaitOwners("the former owners", func(o map[netip.Addr]string) bool { return fmt.Sprint(o) == fmt.Sprint(owners) })
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
