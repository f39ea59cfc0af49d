//go:build system

package announce

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/wait"
)

func families(t *testing.T, f func(t *testing.T, v6 bool)) {
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "ipv4", true: "ipv6"}[v6], func(t *testing.T) { f(t, v6) })
	}
}

// Two hosts with one list of peers in TOML and without a fleet share the VIPs. A drain moves them
// without a loss and survives a restart of both processes; its end moves them back.
func TestPairDrains(t *testing.T) {
	l := newLab(t, 2, patient)
	a, b := l.hosts[0], l.hosts[1]
	owners := l.settled()
	families(t, func(t *testing.T, v6 bool) {
		wait.Undisturbed(t, "two planned moves", func() error { return l.moveTwice(t, ownedBy(t, owners, a.Name, v6), owners) })
	})
	a.must("node", "drain", "--wait")
	for _, p := range []interface {
		Stop() error
		Start() error
	}{a.announcer, a.agent} {
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
	}
	wait.For(t, "the drain after a restart", func() error {
		all, err := a.announcements()
		if err == nil && (len(all) != 2*serviceCount || !strings.Contains(all[vip4(0)].Why, "lb1 is draining")) {
			err = fmt.Errorf("%s", text(all[vip4(0)]))
		}
		return err
	})
	wait.For(t, "the draining peer", func() error {
		if out := b.must("announce", "peers"); !strings.Contains(out, "alive, draining") {
			return errors.New(out)
		}
		return nil
	})
	a.must("node", "undrain")
	l.awaitOwners("the former owners", func(o map[netip.Addr]string) bool { return fmt.Sprint(o) == fmt.Sprint(owners) })
}

// moveTwice moves a VIP of the first host away and back, under load. It returns what else than that happened.
func (l *lab) moveTwice(t *testing.T, vip netip.Addr, owners map[netip.Addr]string) (err error) {
	a := l.hosts[0]
	moves := watchMoves(t, l.client, vip, a)
	load := startLoad(t, l.client, vip, 2*time.Millisecond)
	load.awaitAnswers(50)
	out := a.must("node", "drain", "--wait")
	if !strings.Contains(out, "announces nothing") {
		t.Error(out)
	}
	l.awaitOwners("all on lb2", func(o map[netip.Addr]string) bool { return !slices.Contains(mapValues(o), a.Name) })
	a.must("node", "undrain")
	l.awaitOwners("the former owners", func(o map[netip.Addr]string) bool { return fmt.Sprint(o) == fmt.Sprint(owners) })
	// The owners know of the move first, and more so on a busy machine. More moves only if a host takes longer than
	// claim.Defer to learn of one.
	wait.Until(t, "the client learns of two moves", func() bool { return len(moves()) >= 2 }, func() any { return moves() })
	load.awaitAnswers(50)
	got := load.end()
	t.Log(got)
	// The new owner does not know the connections that are open when the client learns of it, so it
	// resets them. Nothing else is lost.
	if got.lost > got.reset {
		err = fmt.Errorf("%s", got)
	}
	learned := moves()
	for _, r := range load.failed() {
		if !slices.ContainsFunc(learned, func(at time.Time) bool { return !at.Before(r.began) && !at.After(r.began.Add(r.took)) }) {
			err = errors.Join(err, fmt.Errorf("a request was lost from %s to %s, and the moves were at %v: %w", r.began, r.began.Add(r.took), learned, r.err))
		}
	}
	return err
}

// The owner fails in different ways. The other host takes over, in both families, and gives back when
// the owner has returned. How fast the decision is, a simulation in announce/announcer asserts, and
// BENCHMARKS.md has what clients see. A busy machine would delay that here.
func TestOwnerFails(t *testing.T) {
	for name, fault := range map[string]struct {
		fail, repair func(*lab, *host)
	}{
		"cut off":           {func(l *lab, h *host) { l.cutOff(h, true) }, func(l *lab, h *host) { l.cutOff(h, false) }},
		"no carrier":        {func(l *lab, h *host) { l.setPort(h, false) }, func(l *lab, h *host) { l.setPort(h, true) }},
		"killed":            {func(l *lab, h *host) { h.announcer.Kill(); h.agent.Kill() }, func(l *lab, h *host) { h.start() }},
		"stopped":           {func(l *lab, h *host) { h.pause(h.announcer, h.agent) }, func(l *lab, h *host) { h.resume(h.announcer, h.agent) }},
		"announcer stopped": {func(l *lab, h *host) { h.pause(h.announcer) }, func(l *lab, h *host) { h.resume(h.announcer) }},
		"agent stopped":     {func(l *lab, h *host) { h.pause(h.agent) }, func(l *lab, h *host) { h.resume(h.agent) }},
		"announcer killed":  {func(l *lab, h *host) { h.announcer.Kill() }, func(l *lab, h *host) { h.startAnnouncer() }},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			l := newLab(t, 2, "")
			a := l.hosts[0]
			owners := l.settled()
			loads := []*load{startLoad(t, l.client, ownedBy(t, owners, a.Name, false), 2*time.Millisecond), startLoad(t, l.client, ownedBy(t, owners, a.Name, true), 2*time.Millisecond)}
			for _, load := range loads {
				load.awaitAnswers(50)
			}
			fault.fail(l, a)
			l.hosts[1].awaitAll()
			for _, load := range loads {
				load.awaitAnswers(50)
				t.Logf("%s: %s", load.to, load.end())
			}
			fault.repair(l, a)
			l.awaitOwners("the former owners", func(o map[netip.Addr]string) bool { return fmt.Sprint(o) == fmt.Sprint(owners) })
		})
	}
}

// Without the agent, announcements stay for 2 s with the userspace proxy, which is the time of a
// restart, and are withdrawn then: nothing forwards without the agent.
func TestAgentIsGone(t *testing.T) {
	l := newLab(t, 2, patient)
	a, b := l.hosts[0], l.hosts[1]
	owners := l.settled()
	wait.Undisturbed(t, "a restart of an agent", func() error {
		before := b.moves()
		if err := errors.Join(a.agent.Stop(), a.agent.Start()); err != nil {
			return err
		}
		l.awaitOwners("the same owners", func(o map[netip.Addr]string) bool { return fmt.Sprint(o) == fmt.Sprint(owners) })
		if now := b.moves(); now != before {
			return fmt.Errorf("%d moves:\n%s", now-before, b.must("events"))
		}
		return nil
	})
	began := time.Now()
	a.agent.Kill()
	l.awaitOwners("all on lb2", func(o map[netip.Addr]string) bool { return !slices.Contains(mapValues(o), a.Name) })
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("VIPs move after %s without an agent", took)
	}
}

// A VIP without a usable backend on its owner moves at once, and is withdrawn without any host.
func TestIneligibleVIP(t *testing.T) {
	l := newLab(t, 2, "")
	a, b := l.hosts[0], l.hosts[1]
	owners := l.settled()
	vip := ownedBy(t, owners, a.Name, false)
	service := serviceOf(vip)
	drain := func(h *host, on bool) {
		state := map[bool]string{true: "maint", false: "ready"}[on]
		for _, id := range []string{"127.0.0.1:9000", "[::1]:9000"} {
			args := []string{"backend", state, service, id}
			if on {
				args = append(args, "--force")
			}
			h.must(args...)
		}
	}
	drain(a, true)
	wait.Until(t, "the VIP on lb2", func() bool { all, _ := b.announcements(); return all[vip].Here })
	drain(b, true)
	wait.Until(t, "the VIP nowhere", func() bool {
		all, _ := b.announcements()
		return !all[vip].Here && all[vip].Owner == "" && strings.Contains(all[vip].Why, "no usable backend")
	})
	if out := b.must("announce", "explain", vip.String()); !strings.Contains(out, "is not announced (l2)") || !strings.Contains(out, "no usable backend") {
		t.Error(out)
	}
	drain(a, false)
	drain(b, false)
	l.awaitOwners("the former owners", func(o map[netip.Addr]string) bool { return fmt.Sprint(o) == fmt.Sprint(owners) })
}
