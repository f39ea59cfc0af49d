//go:build system

package announce

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/wire"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

func families(t *testing.T, f func(t *testing.T, v6 bool)) {
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "ipv4", true: "ipv6"}[v6], func(t *testing.T) { f(t, v6) })
	}
}

// Two hosts with one list of peers in TOML and without a fleet share the VIPs. A drain moves them
// without a loss and survives a restart of both processes; its end moves them back.
// Slow: a host that starts waits 1 s before it takes VIPs, four times.
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
		must.Succeed(t, p.Stop())
		must.Succeed(t, p.Start())
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
	l.awaitThese(owners)
}

// moveTwice moves a VIP of the first host away and back, under load. It returns what else than that happened.
func (l *lab) moveTwice(t *testing.T, vip netip.Addr, owners map[netip.Addr]string) (err error) {
	a := l.hosts[0]
	moves := watchMoves(t, l.client, vip, a)
	load := startLoad(t, l.client, vip, 2*time.Millisecond)
	load.awaitAnswers(50)
	out := a.must("node", "drain", "--wait")
	expect.Contains(t, out, "announces nothing")
	l.awaitNone(a)
	a.must("node", "undrain")
	l.awaitThese(owners)
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

func macOf(n *netlab.Node) frame.MAC {
	mac, _ := net.ParseMAC(n.MAC("eth0"))
	return frame.MAC(mac)
}

// watchMoves notes when the kernel of a node receives an announcement of a VIP that is not from the
// station of the one before, at first its owner. The returned function returns the times so far.
func watchMoves(t testing.TB, at *netlab.Node, vip netip.Addr, owner *host) (moves func() []time.Time) {
	var mu sync.Mutex
	var times []time.Time
	last := macOf(owner.Node)
	own := macOf(at)
	note := func(when time.Time, c frame.Claim) {
		mu.Lock()
		defer mu.Unlock()
		if c.Kind != frame.Holds || c.Addr != vip || c.From == own || c.From == last {
			return
		}
		times = append(times, when)
		last = c.From
	}
	at.Frames(t, "eth0", frame.TypeARP, func(when time.Time, b []byte) {
		for _, c := range frame.ARPClaims(b) {
			note(when, c)
		}
	})
	at.Frames(t, "eth0", frame.TypeIPv6, func(when time.Time, b []byte) { note(when, frame.NDPClaim(b)) })
	return func() []time.Time {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(times)
	}
}

// The announcer of the owner is killed. The other host takes over, in both families, and gives back when
// the owner has returned. How fast the decision is, a simulation in announce/announcer asserts, and
// docs/performance.md has what clients see. A busy machine would delay that here.
// Slow: hosts that start or return settle for a second.
func TestAnnouncerIsKilled(t *testing.T) {
	ownerFails(t, func(_ *lab, h *host) { h.announcer.Kill() }, func(_ *lab, h *host) { h.startAnnouncer() })
}

// ownerFails lets one of two hosts fail and return, while a client asks for a VIP of each family.
func ownerFails(t *testing.T, fail, repair func(*lab, *host)) {
	t.Parallel()
	l := newLab(t, 2, "")
	a := l.hosts[0]
	owners := l.settled()
	loads := []*load{startLoad(t, l.client, ownedBy(t, owners, a.Name, false), 10*time.Millisecond), startLoad(t, l.client, ownedBy(t, owners, a.Name, true), 10*time.Millisecond)}
	for _, load := range loads {
		load.awaitAnswers(20)
	}
	fail(l, a)
	l.hosts[1].awaitAll()
	for _, load := range loads {
		load.awaitAnswers(20)
		t.Logf("%s: %s", load.to, load.end())
	}
	repair(l, a)
	l.awaitThese(owners)
}

// Without the agent, announcements stay for 2 s with the userspace proxy, which is the time of a
// restart, and are withdrawn then: nothing forwards without the agent.
// Slow: these 2 s.
func TestAgentIsGone(t *testing.T) {
	l := newLab(t, 2, patient)
	a, b := l.hosts[0], l.hosts[1]
	owners := l.settled()
	wait.Undisturbed(t, "a restart of an agent", func() error {
		before := b.moves()
		if err := errors.Join(a.agent.Stop(), a.agent.Start()); err != nil {
			return err
		}
		l.awaitThese(owners)
		if now := b.moves(); now != before {
			return fmt.Errorf("%d moves:\n%s", now-before, b.must("events"))
		}
		return nil
	})
	began := time.Now()
	a.agent.Kill()
	l.awaitNone(a)
	expect.AtLeast(t, time.Since(began), 1500*time.Millisecond, "VIPs move without an agent")
}

// A VIP without a usable backend on its owner moves at once, and is withdrawn without any host.
func TestIneligibleVIP(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2, patient)
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
	l.awaitThese(owners)
}

// Another station has a VIP of each family. The owner reports it with the station's MAC, in every view, and
// announces again when the station is gone.
// Slow: a conflict lasts 2 s at least.
func TestAnotherStationHasAVIP(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2, patient)
	a := l.hosts[0]
	owners := l.settled()
	vips := []netip.Addr{ownedBy(t, owners, a.Name, false), ownedBy(t, owners, a.Name, true)}
	other := l.Join("other")
	for _, vip := range vips {
		other.AddAddr("eth0", netip.PrefixFrom(vip, vip.BitLen()))
	}
	wait.For(t, "the conflicts", func() (err error) {
		for _, vip := range vips {
			err = errors.Join(err, claim(other, vip))
			out, e := a.run("announce", "explain", vip.String())
			if e == nil && (!strings.Contains(out, "conflict") || !strings.Contains(out, other.MAC("eth0"))) {
				e = errors.New(out)
			}
			err = errors.Join(err, e)
		}
		return err
	})
	if out, _ := a.run("status"); !strings.Contains(out, "conflict") {
		t.Error(out)
	}
	expect.Contains(t, a.must("events"), "vip_conflict")
	link := must.Get(other.Netlink.LinkByName("eth0"))(t)
	must.Succeed(t, other.Netlink.LinkDel(link))
	wait.For(t, "the end of the conflicts", func() error {
		all, err := a.announcements()
		for _, vip := range vips {
			if err == nil && all[vip].State != "announced" {
				err = fmt.Errorf("%s: %s: %+v", vip, all[vip].State, all[vip].Places)
			}
		}
		return err
	})
}

// claim announces an address from a node, as a station does that configures it.
func claim(n *netlab.Node, addr netip.Addr) error {
	link, err := n.Netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	protocol := map[bool]uint16{true: frame.TypeARP, false: frame.TypeIPv6}[addr.Is4()]
	n.Do(func() {
		var s *wire.Socket
		if s, err = wire.Open(protocol); err == nil {
			err = errors.Join(s.Send(link.Attrs().Index, frame.AppendAnnounce(nil, macOf(n), addr)), s.Close())
		}
	})
	return err
}

// The host with the highest priority owns all VIPs, and one on standby owns them only if it is alone, after failures and
// returns. Each host explains the same order.
// Slow: hosts that start or return settle for a second, four times.
func TestPriorities(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 3)
	a, b, c := l.hosts[0], l.hosts[1], l.hosts[2]
	for h, lines := range map[*host]string{a: "priority = 200\n", b: "", c: "priority = 255\nstandby = true\n"} {
		h.configure(services(serviceCount, l.backends), l.config(h, "l2", l.peers()+patient+lines))
		h.start()
	}
	on := func(h *host) {
		t.Helper()
		l.awaitOwners("all VIPs on "+h.Name, func(owners map[netip.Addr]string) bool {
			for _, vip := range vips() {
				if owners[vip] != h.Name {
					return false
				}
			}
			return true
		})
	}
	on(a)
	for _, h := range l.hosts {
		wait.For(t, "the order in the words of "+h.Name, func() error {
			out := h.must("announce", "explain", vip4(0).String())
			if !strings.Contains(out, "1. lb1 (priority 200, 1 service)\n2. lb2 (priority 100, 1 service): lower priority\n3. lb3 (standby, priority 255, 1 service): standby\n") {
				return errors.New(out)
			}
			return nil
		})
	}
	a.must("node", "drain", "--wait")
	on(b)
	b.must("node", "drain", "--wait")
	on(c)
	b.must("node", "undrain")
	on(b)
	a.must("node", "undrain")
	on(a)
}

// A VIP is moved to the other host of a pair and back, under load: no new connection is lost. A move ends with
// the announcer of its host. A pin survives restarts of both processes, and the VIP returns. The later one of two moves wins on
// both hosts, which explain it.
// Slow: hosts that start wait 1 s before they take VIPs, twice, and a VIP returns after 1 s.
func TestMoves(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2, patient)
	a, b := l.hosts[0], l.hosts[1]
	owners := l.settled()
	v4, v6 := ownedBy(t, owners, a.Name, false), ownedBy(t, owners, a.Name, true)
	with := func(h *host, vips ...netip.Addr) map[netip.Addr]string {
		out := maps.Clone(owners)
		for _, vip := range vips {
			out[vip] = h.Name
		}
		return out
	}
	if out, err := a.run("announce", "move", v4.String(), b.Name); err == nil || !strings.Contains(out, "run this command on the host that is to have the VIP") {
		t.Errorf("a move to another host without a fleet: %v\n%s", err, out)
	}
	wait.Undisturbed(t, "two planned moves", func() error {
		moves := watchMoves(t, l.client, v4, a)
		load := startLoad(t, l.client, v4, 2*time.Millisecond)
		load.awaitAnswers(50)
		expect.Contains(t, b.must("announce", "move", v4.String(), b.Name, "--wait"), b.Name+" announces "+v4.String())
		l.awaitThese(with(b, v4))
		a.must("announce", "move", v4.String(), a.Name, "--pin", "--wait")
		l.awaitThese(owners)
		wait.Until(t, "the client learns of two moves", func() bool { return len(moves()) >= 2 }, func() any { return moves() })
		load.awaitAnswers(50)
		got := load.end()
		t.Log(got)
		if got.lost > got.reset {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
	a.must("announce", "unpin", v4.String())
	b.must("announce", "move", v4.String(), b.Name, "--wait")
	b.must("announce", "move", v6.String(), b.Name, "--pin", "--wait")
	for h, want := range map[*host]string{a: "lb2: moved here by an operator, until it fails, drains or is not eligible", b: "It is moved to lb2 by "} {
		wait.For(t, "the words of "+h.Name, func() error {
			if out := h.must("announce", "explain", v4.String()); !strings.Contains(out, want) || !strings.Contains(out, "1. lb2 (moved, priority 100, 1 service)\n2. lb1 (priority 100, 1 service): not chosen by an operator\n") {
				return errors.New(out)
			}
			return nil
		})
		expect.Contains(t, h.must("announce", "list"), "lb2: pinned here by an operator")
	}
	must.Succeed(t, b.agent.Stop())
	must.Succeed(t, b.agent.Start())
	l.awaitThese(with(b, v4, v6))
	must.Succeed(t, errors.Join(b.agent.Stop(), b.announcer.Stop())) // the agent does not learn that the move is over
	a.awaitAll()
	b.start()
	l.awaitThese(with(b, v6))
	wait.For(t, "the end of the move", func() error {
		if out := b.must("events"); !strings.Contains(out, "the move of "+v4.String()+" to lb2 has ended") {
			return errors.New(out)
		}
		return nil
	})
	a.must("announce", "move", v6.String(), a.Name, "--wait")
	l.awaitThese(owners)
	wait.For(t, "the end of the pin", func() error {
		if out := b.must("announce", "explain", v6.String()); strings.Contains(out, "pinned") {
			return errors.New(out)
		}
		return nil
	})
	a.must("announce", "unpin", v6.String())
	l.awaitThese(owners)
}
