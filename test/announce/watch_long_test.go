//go:build system && long

package announce

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/wire"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/seed"
	"github.com/ironvip/ironvip/test/wait"
)

const (
	sample = 10 * time.Millisecond
	// answerTime is how long after an answer a host still counts as one that answers.
	answerTime = 3 * sample
	// twoOwners bounds how long two hosts may answer for one VIP: heartbeat x missed and 100 ms.
	twoOwners = 400 * time.Millisecond
)

// watcher asks every 10 ms who has each VIP, as a client does, and notes who answers, by the time when
// the kernel received the answer.
type watcher struct {
	t        testing.TB
	mac      frame.MAC
	node     *netlab.Node
	index    int
	arp, nd  *wire.Socket // for questions
	stop     chan struct{}
	asking   sync.WaitGroup
	stops    []func() // of what receives answers
	mu       sync.Mutex
	heard    map[netip.Addr]map[frame.MAC]time.Time
	double   map[netip.Addr]time.Time // since when two answer
	longest  struct{ double, vacant time.Duration }
	worst    string
	answered int
}

func watch(t testing.TB, from *netlab.Node) *watcher {
	w := &watcher{t: t, node: from, stop: make(chan struct{}), heard: map[netip.Addr]map[frame.MAC]time.Time{}, double: map[netip.Addr]time.Time{}}
	link, err := from.Netlink.LinkByName("eth0")
	must.Succeed(t, err)
	w.index, w.mac = link.Attrs().Index, frame.MAC(link.Attrs().HardwareAddr)
	from.Do(func() {
		if w.arp, err = wire.Open(frame.TypeARP); err == nil {
			w.nd, err = wire.Open(frame.TypeIPv6)
		}
	})
	must.Succeed(t, err)
	w.stops = []func(){
		from.Frames(t, "eth0", frame.TypeARP, func(at time.Time, b []byte) {
			for _, c := range frame.ARPClaims(b) {
				w.note(at, c)
			}
		}),
		from.Frames(t, "eth0", frame.TypeIPv6, func(at time.Time, b []byte) { w.note(at, frame.NDPClaim(b)) }),
	}
	w.asking.Go(w.ask)
	t.Cleanup(w.close)
	return w
}

func (w *watcher) close() {
	select {
	case <-w.stop:
		return
	default:
	}
	close(w.stop)
	w.asking.Wait()
	w.arp.Close()
	w.nd.Close()
	for _, stop := range w.stops {
		stop()
	}
}

// note evaluates an answer. Answers for one VIP come in the order of their times.
func (w *watcher) note(at time.Time, c frame.Claim) {
	if c.Kind != frame.Holds || c.From == w.mac {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered++
	heard := w.heard[c.Addr]
	if heard == nil {
		heard = map[frame.MAC]time.Time{}
		w.heard[c.Addr] = heard
	}
	var last time.Time
	who := []string{c.From.String()}
	for mac, before := range heard {
		if before.After(last) {
			last = before
		}
		if mac != c.From && at.Sub(before) <= answerTime {
			who = append(who, mac.String())
		}
	}
	if !last.IsZero() {
		w.longest.vacant = max(w.longest.vacant, at.Sub(last))
	}
	heard[c.From] = at
	since, known := w.double[c.Addr]
	switch {
	case len(who) == 1:
		delete(w.double, c.Addr)
	case !known:
		w.double[c.Addr] = at
	case at.Sub(since) > w.longest.double:
		w.longest.double = at.Sub(since)
		w.worst = fmt.Sprintf("%s answered by %s", c.Addr, strings.Join(who, " and "))
	}
}

// ask sends questions.
func (w *watcher) ask() {
	tick := time.NewTicker(sample)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		for _, vip := range vips() {
			if vip.Is4() {
				_ = w.arp.Send(w.index, arpRequest(w.mac, w.node.Addr4, vip))
			} else {
				_ = w.nd.Send(w.index, frame.AppendVerify(nil, w.mac, w.node.Addr6, vip))
			}
		}
	}
}

// arpRequest returns a request as a client sends it.
func arpRequest(from frame.MAC, sender, target netip.Addr) []byte {
	b := append([]byte(nil), frame.Broadcast[:]...)
	b = append(b, from[:]...)
	b = append(b, byte(frame.TypeARP>>8), byte(frame.TypeARP&0xff))
	b = append(b, 0, 1, 8, 0, 6, 4, 0, 1)
	b = append(b, from[:]...)
	b = append(b, sender.AsSlice()...)
	b = append(b, make([]byte, 6)...)
	return append(b, target.AsSlice()...)
}

// Random faults of three hosts. No VIP is answered by two hosts for longer than heartbeat x missed
// and 100 ms, and each has one owner when all is quiet.
func TestNeverTwoOwners(t *testing.T) {
	l := newLab(t, 3, "")
	owners := l.settled()
	w := watch(t, l.client)
	r := rand.New(rand.NewPCG(seed.Of(t), 0))
	type state struct{ cut, paused, dead, drained bool }
	states := make([]state, len(l.hosts))
	var history []string
	for range 40 {
		i := r.IntN(len(l.hosts))
		h, s := l.hosts[i], &states[i]
		what := ""
		switch r.IntN(6) {
		case 0, 1:
			s.cut = !s.cut
			l.cutOff(h, s.cut)
			what = fmt.Sprint("cut off ", s.cut)
		case 2:
			if s.dead {
				continue
			}
			if s.paused = !s.paused; s.paused {
				h.pause(h.announcer)
			} else {
				h.resume(h.announcer)
			}
			what = fmt.Sprint("paused ", s.paused)
		case 3:
			if s.paused {
				continue
			}
			if s.dead = !s.dead; s.dead {
				h.announcer.Kill()
			} else {
				h.startAnnouncer()
			}
			what = fmt.Sprint("dead ", s.dead)
		case 4:
			s.drained = !s.drained
			if s.drained {
				h.must("node", "drain")
			} else {
				h.must("node", "undrain")
			}
			what = fmt.Sprint("drained ", s.drained)
		case 5:
			all := vips()
			vip, pin := all[r.IntN(len(all))].String(), fmt.Sprintf("--pin=%t", r.IntN(2) == 0)
			_, err := h.run("announce", "move", vip, h.Name, pin) // refused if the move would have no effect
			what = fmt.Sprint("gets ", vip, " ", pin, " ", err == nil)
		}
		history = append(history, h.Name+" "+what)
		time.Sleep(time.Duration(100+r.IntN(700)) * time.Millisecond)
	}
	for i, h := range l.hosts {
		if states[i].cut {
			l.cutOff(h, false)
		}
		if states[i].paused {
			h.resume(h.announcer)
		}
		if states[i].dead {
			h.startAnnouncer()
		}
		if states[i].drained {
			h.must("node", "undrain")
		}
	}
	// The later one of two moves ends the other one, so that each VIP has one at most in the end.
	wait.For(t, "the end of all moves", func() error {
		for _, h := range l.hosts {
			all, err := h.announcements()
			if err != nil {
				return err
			}
			for vip, n := range all {
				if n.Move != nil {
					_, _ = h.run("announce", "unpin", vip.String()) // it may have ended meanwhile
					return fmt.Errorf("%s: %s is moved to %s", h.Name, vip, n.Move.Node)
				}
			}
		}
		return nil
	})
	l.awaitThese(owners)
	w.close()
	t.Logf("two owners for at most %s (%s), nobody for at most %s, %d answers", w.longest.double, w.worst, w.longest.vacant, w.answered)
	if w.longest.double > twoOwners || w.answered < 1000 {
		t.Errorf("two owners for %s: %s; %d answers\n%s", w.longest.double, w.worst, w.answered, strings.Join(history, "\n"))
	}
}

// A partition that lasts longer than the kernel remembers the link addresses of peers. The kernel asks for
// them once a second, and both owners go on for as long after the partition.
func TestPartitionEnds(t *testing.T) {
	l := newLab(t, 2, "")
	a, b := l.hosts[0], l.hosts[1]
	owners := l.settled()
	l.cutOff(b, true)
	a.awaitAll()
	b.awaitAll()
	w := watch(t, l.client)
	// The next heartbeats make both kernels ask, at about the same time.
	forgetNeighbor(t, a.Node, b.Node)
	forgetNeighbor(t, b.Node, a.Node)
	for from, to := range map[*host]*host{a: b, b: a} {
		wait.For(t, "questions of "+from.Name, func() error {
			if state := neighbor(t, from.Node, to.Node); state != netlink.NUD_INCOMPLETE {
				return fmt.Errorf("state %#x", state)
			}
			return nil
		})
	}
	l.cutOff(b, false)
	l.awaitThese(owners)
	w.close()
	t.Logf("two owners for at most %s (%s)", w.longest.double, w.worst)
	expect.AtMost(t, w.longest.double, twoOwners+time.Second, "two owners: %s", w.worst)
}

// neighbor returns the state of a node's entry for another one, which heartbeats use; 0: there is none.
func neighbor(t testing.TB, at, of *netlab.Node) int {
	t.Helper()
	for _, n := range netlab.List(t, func() ([]netlink.Neigh, error) { return at.Netlink.NeighList(0, netlink.FAMILY_V4) }) {
		if addr, _ := netip.AddrFromSlice(n.IP); addr.Unmap() == of.Addr4 {
			return n.State
		}
	}
	return 0
}

// forgetNeighbor removes a node's entry for another one.
func forgetNeighbor(t testing.TB, at, of *netlab.Node) {
	t.Helper()
	link, err := at.Netlink.LinkByName("eth0")
	if err == nil {
		err = at.Netlink.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, Family: netlink.FAMILY_V4, IP: of.Addr4.AsSlice()})
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		t.Fatal(err)
	}
}

// The watcher measures how long two hosts answer for a VIP, by the times of their answers alone. A
// host that takes over at once, and one that answers again after a while, are no second owner.
func TestWatcherMeasuresTwoOwners(t *testing.T) {
	w := &watcher{heard: map[netip.Addr]map[frame.MAC]time.Time{}, double: map[netip.Addr]time.Time{}}
	start := time.Unix(1_000, 0)
	answers := func(host byte, from, to time.Duration) {
		for at := from; at <= to; at += sample {
			w.note(start.Add(at), frame.Claim{Kind: frame.Holds, Addr: vip4(0), From: frame.MAC{host}})
		}
	}
	answers(1, 0, time.Second)
	answers(2, 1010*time.Millisecond, 3*time.Second)
	answers(1, 4*time.Second, 5*time.Second)
	if w.longest.double > answerTime || w.longest.vacant != time.Second {
		t.Errorf("one owner after the other: two for %s, nobody for %s", w.longest.double, w.longest.vacant)
	}
	for at := 5 * time.Second; at <= 5500*time.Millisecond; at += sample {
		answers(2, at, at)
		answers(1, at, at)
	}
	expect.Equal(t, w.longest.double, 500*time.Millisecond, "two owners for %s, want 500ms", w.longest.double)
}
