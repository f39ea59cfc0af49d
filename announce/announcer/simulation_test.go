package announcer

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/heartbeat"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// The simulation runs the cores of several hosts on a simulated clock and network: a queue of
// events in the order of their times. It checks after each event which hosts answer for each VIP,
// with the dead-man switch of the kernel gate.

const (
	beat    = 100 * time.Millisecond
	missed  = 3
	timeout = beat * missed
	// twoOwners bounds how long two hosts may answer for a VIP while they can reach each other.
	twoOwners = timeout + 100*time.Millisecond
	settle    = 2 * time.Second
)

type simulation struct {
	t     *testing.T
	r     *rand.Rand
	now   time.Time
	queue events
	order int
	hosts []*simHost
	vips  []netip.Addr

	stamp  uint32                    // of the newest move
	newest map[netip.Addr]newestMove // of each VIP

	keep bool // owners keep VIPs that no host serves

	loss float64
	cut  map[[2]int]bool // from, to: nothing arrives

	double  map[netip.Addr]time.Time // since when a VIP has had two owners
	vacant  map[netip.Addr]time.Time // since when it has had none, with a host that could
	longest struct{ double, vacant time.Duration }
	trace   []string
}

type simEvent struct {
	at    time.Time
	order int
	do    func()
}

type events []simEvent

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	if !e[i].at.Equal(e[j].at) {
		return e[i].at.Before(e[j].at)
	}
	return e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(simEvent)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

type simHost struct {
	*core
	sim      *simulation
	index    int
	addr     netip.AddrPort
	running  bool // not killed
	paused   bool
	frozen   bool // paused with its kernel: packets are lost
	draining bool
	alias    string // its name, if it isn't that of its index
	life     int    // counts restarts
	steps    int
	plan     int // counts planned steps; older ones are void
	packets  []heartbeat.Packet
	mine     map[netip.Addr]bool // in the kernel gate
	refresh  time.Time           // of the gate
	eligible map[netip.Addr]int
	policy   announce.Policy                // for all VIPs
	moves    map[netip.Addr]announce.Policy // operator's moves to this host, as its agent keeps them: Moved and Pinned
}

func newSimulation(t *testing.T, seed uint64, hosts, vips int) *simulation {
	s := &simulation{t: t, r: rand.New(rand.NewPCG(seed, 7)), now: time.Unix(1000, 0), cut: map[[2]int]bool{}, newest: map[netip.Addr]newestMove{}, double: map[netip.Addr]time.Time{}, vacant: map[netip.Addr]time.Time{}}
	for i := range vips {
		s.vips = append(s.vips, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	for i := range hosts {
		h := &simHost{sim: s, index: i, addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 7481), mine: map[netip.Addr]bool{}, eligible: map[netip.Addr]int{}, moves: map[netip.Addr]announce.Policy{}}
		for _, v := range s.vips {
			h.eligible[v] = 1
		}
		s.hosts = append(s.hosts, h)
	}
	for _, h := range s.hosts {
		h.start()
	}
	return s
}

func (s *simulation) after(d time.Duration, do func()) {
	s.order++
	heap.Push(&s.queue, simEvent{s.now.Add(d), s.order, do})
}

func (s *simulation) logf(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf("%8.3f ", s.now.Sub(time.Unix(1000, 0)).Seconds())+fmt.Sprintf(format, args...))
}

func (h *simHost) name() string { return cmp.Or(h.alias, fmt.Sprint("lb", h.index+1)) }

func (h *simHost) start() {
	h.life++
	h.running, h.paused, h.packets = true, false, nil
	d := announce.NewDecider(h.name(), 1, announce.Timing{Settle: settle, Handover: timeout})
	var peers []netip.AddrPort
	for _, o := range h.sim.hosts {
		if o != h {
			peers = append(peers, o.addr)
		}
	}
	x := heartbeat.New(heartbeat.Options{Name: h.name(), Keys: [][]byte{[]byte("key")}, Peers: peers, Interval: beat, Missed: missed, Weight: 1}, h.sim.r.Uint64()|1, d, h.sim.now)
	h.core = &core{decider: d, exchange: x,
		acted: func(beat bool) {
			if beat {
				h.refresh = h.sim.now
			}
		},
		emit:   h.emit,
		paused: func(late time.Duration) { h.sim.logf("%s noticed a pause of %s", h.name(), late) },
		changed: func(a announce.Announcement, gone bool) {
			if h.mine[a.Addr] != (a.Here && !gone) {
				h.sim.logf("%s: %s here=%v %s", h.name(), a.Addr, a.Here, a.Why)
			}
			h.mine[a.Addr] = a.Here && !gone
			if m := h.moves[a.Addr].Moved; m != 0 && a.Over == m {
				h.sim.after(time.Duration(h.sim.r.IntN(300))*time.Millisecond, func() { h.forgetMove(a.Addr, m) })
			}
		},
	}
	clear(h.mine) // a new process closes the gate
	h.draining = false
	h.tell()
	h.run()
}

// tell passes what the agent says to the decider.
func (h *simHost) tell() {
	for _, v := range h.sim.vips {
		p := h.policy
		p.Moved, p.Pinned = h.moves[v].Moved, h.moves[v].Pinned
		h.decider.SetEligible(announce.Eligible{Addr: v, Mode: announce.L2, Services: h.eligible[v], Keep: h.sim.keep, Policy: p})
	}
}

// run runs a step now, and plans the next one.
func (h *simHost) run() {
	if !h.running || h.paused {
		return
	}
	packets := h.packets
	h.packets = nil
	h.steps++
	next := h.step(h.sim.now, packets)
	h.plan++
	plan, life := h.plan, h.life
	h.sim.after(max(next.Sub(h.sim.now), 0)+time.Duration(h.sim.r.IntN(3))*time.Millisecond, func() {
		if h.plan == plan && h.life == life {
			h.run()
		}
	})
}

func (h *simHost) emit(to netip.AddrPort, packet []byte) {
	s := h.sim
	for _, o := range s.hosts {
		if o.addr != to || s.cut[[2]int{h.index, o.index}] || s.r.Float64() < s.loss {
			continue
		}
		packet := slices.Clone(packet)
		s.after(time.Duration(100+s.r.IntN(3000))*time.Microsecond, func() {
			if s.cut[[2]int{h.index, o.index}] || !o.running || o.frozen || len(o.packets) >= 500 {
				return // a full socket buffer drops
			}
			o.packets = append(o.packets, heartbeat.Packet{From: h.addr, Data: packet})
			o.run()
		})
	}
}

// answers reports whether the host answers ARP for a VIP.
func (h *simHost) answers(v netip.Addr) bool {
	return h.mine[v] && h.sim.now.Sub(h.refresh) < timeout
}

// pass runs events for a time and checks the rules after each.
func (s *simulation) pass(d time.Duration) {
	for end := s.now.Add(d); ; {
		if len(s.queue) == 0 || s.queue[0].at.After(end) {
			s.now = end
			s.check()
			return
		}
		e := heap.Pop(&s.queue).(simEvent)
		s.now = e.at
		e.do()
		s.check()
	}
}

func (s *simulation) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf(format+"\n%s", append(args, strings.Join(s.trace[max(0, len(s.trace)-60):], "\n"))...)
}

func (s *simulation) check() {
	for _, v := range s.vips {
		var owners []int
		could := false
		for _, h := range s.hosts {
			if h.answers(v) {
				owners = append(owners, h.index)
			}
			could = could || h.running && !h.paused && h.eligible[v] > 0 && !h.draining
		}
		parted := false
		for _, a := range owners {
			for _, b := range owners {
				parted = parted || s.cut[[2]int{a, b}]
			}
		}
		s.since(s.double, &s.longest.double, v, len(owners) > 1 && !parted)
		s.since(s.vacant, &s.longest.vacant, v, len(owners) == 0 && could)
	}
}

func (s *simulation) since(of map[netip.Addr]time.Time, longest *time.Duration, v netip.Addr, is bool) {
	if !is {
		delete(of, v)
		return
	}
	if of[v].IsZero() {
		of[v] = s.now
	}
	*longest = max(*longest, s.now.Sub(of[v]))
	if &s.longest.double == longest && s.now.Sub(of[v]) > twoOwners {
		s.fail("%s has two owners for %s", v, s.now.Sub(of[v]))
	}
	if &s.longest.vacant == longest && s.now.Sub(of[v]) > vacancy {
		s.fail("%s has no owner for %s", v, s.now.Sub(of[v]))
	}
}

// vacancy bounds how long a VIP may have no owner although a host could own it: the death of the
// owner is noticed, and its successor is just starting and waits for others.
const vacancy = 3*timeout + 100*time.Millisecond

// owners returns the owner of each VIP; two for a VIP fail the test.
func (s *simulation) owners() map[netip.Addr]int {
	out := map[netip.Addr]int{}
	for _, v := range s.vips {
		for _, h := range s.hosts {
			if h.answers(v) {
				if _, two := out[v]; two {
					s.fail("%s has two owners", v)
				}
				out[v] = h.index
			}
		}
	}
	return out
}

// allOwned fails the test unless each VIP has an owner.
func (s *simulation) allOwned() {
	s.t.Helper()
	if n := len(s.owners()); n != len(s.vips) {
		s.fail("%d of %d VIPs have an owner", n, len(s.vips))
	}
}

func (h *simHost) kill() {
	h.sim.logf("kill %s", h.name())
	h.running = false
}

func (h *simHost) drain(on bool) {
	h.sim.logf("drain %s: %v", h.name(), on)
	h.draining = on
	h.decider.SetDraining(on, h.sim.now)
	h.exchange.SetDraining(on, h.sim.now)
	h.run()
}

func (h *simHost) stop() {
	h.sim.logf("stop %s", h.name())
	h.paused = true
}

func (h *simHost) resume() {
	h.sim.logf("continue %s", h.name())
	h.paused, h.frozen = false, false
	h.tell() // what the agent has sent meanwhile
	h.run()
}

func (h *simHost) setEligible(v netip.Addr, services int) {
	h.sim.logf("%s: %s has %d services", h.name(), v, services)
	h.eligible[v] = services
	h.told()
}

func (h *simHost) setPolicy(p announce.Policy) {
	h.sim.logf("%s: %+v", h.name(), p)
	h.policy = p
	h.told()
}

// told lets the decider know what the agent of a running host says now.
func (h *simHost) told() {
	if h.running && !h.paused {
		h.tell()
		h.run()
	}
}

// move moves a VIP to a host. In a fleet, which one store tells all hosts, the agents of the others forget the move before.
func (s *simulation) move(h *simHost, v netip.Addr, pin, fleet bool) {
	s.stamp++
	s.logf("move %s to %s, pin %v: %d", v, h.name(), pin, s.stamp)
	for _, o := range s.hosts {
		if o == h {
			h.moves[v] = announce.Policy{Moved: s.stamp, Pinned: pin}
		} else if fleet {
			delete(o.moves, v)
		}
		o.told()
	}
	s.newest[v] = newestMove{h, s.stamp, pin}
}

type newestMove struct {
	host  *simHost
	stamp uint32
	pin   bool
}

// forgetMove ends a move to a host.
func (h *simHost) forgetMove(v netip.Addr, stamp uint32) {
	if h.moves[v].Moved == stamp {
		h.sim.logf("%s: the move %d of %s is over", h.name(), stamp, v)
		delete(h.moves, v)
		h.told()
	}
}

// movesHold fails the test unless each VIP is on the host of its move, and a newest move that is a pin is one of them.
func (s *simulation) movesHold() {
	owners := s.owners()
	for _, v := range s.vips {
		for _, h := range s.hosts {
			m := h.moves[v]
			if n := s.newest[v]; m.Moved != 0 && (owners[v] != h.index || m.Moved != n.stamp && n.pin) {
				s.fail("%s is on host %d, and moved to %s by %+v; the newest is %d", v, owners[v], h.name(), m, s.newest[v].stamp)
			}
		}
		if n := s.newest[v]; n.pin && n.host.moves[v].Moved == 0 {
			s.fail("%s: the pin to %s is gone", v, n.host.name())
		}
	}
}

func TestOwnersUnderRandomFaults(t *testing.T) { ownersUnderRandomFaults(t, 0, 6) }

// ownersUnderRandomFaults causes random faults of every kind at every time, with n seeds from first.
// No VIP has two owners for longer than the bound while these can reach each other, or none while a
// host could own it. Once all is quiet, each VIP has one owner.
func ownersUnderRandomFaults(t *testing.T, first, n uint64) {
	var longest struct{ double, vacant time.Duration }
	for seed := first; seed < first+n; seed++ {
		s := newSimulation(t, seed, 2+int(seed%4), 12)
		s.keep = seed%3 != 0
		s.loss = []float64{0, 0.01, 0.05}[seed%3]
		policies := []announce.Policy{{}, {Above: 100}, {Above: -50}, {Above: 100, Standby: true}}
		s.pass(3 * time.Second)
		for range 60 {
			h := s.hosts[s.r.IntN(len(s.hosts))]
			switch s.r.IntN(11) {
			case 9, 10:
				s.move(h, s.vips[s.r.IntN(len(s.vips))], s.r.IntN(2) == 0, seed%2 == 0)
			case 8:
				h.setPolicy(policies[s.r.IntN(len(policies))])
			case 0:
				h.kill()
			case 1, 2:
				if !h.running {
					s.logf("start %s", h.name())
					h.start()
				}
			case 3:
				if h.running && !h.paused {
					h.stop()
				} else if h.paused && h.running {
					h.resume()
				}
			case 4:
				if h.running && !h.paused {
					h.drain(!h.draining)
				}
			case 5:
				h.setEligible(s.vips[s.r.IntN(len(s.vips))], s.r.IntN(3))
			case 6:
				if o := s.hosts[s.r.IntN(len(s.hosts))]; o != h {
					s.logf("cut %s from %s", h.name(), o.name())
					s.cut[[2]int{h.index, o.index}], s.cut[[2]int{o.index, h.index}] = true, true
				}
			case 7:
				s.logf("all links work")
				clear(s.cut)
			}
			s.pass(time.Duration(s.r.IntN(1500)) * time.Millisecond)
		}
		clear(s.cut)
		s.loss = 0
		s.logf("quiet")
		for _, h := range s.hosts {
			switch {
			case !h.running:
				h.start()
			case h.paused:
				h.resume()
			}
			if h.draining { // also a host that was paused
				h.drain(false)
			}
			for _, v := range s.vips {
				h.setEligible(v, 1)
			}
		}
		s.pass(settle + 2*time.Second)
		s.allOwned()
		s.movesHold()
		if s.keep {
			s.keepersMeet(5)
		}
		longest.double = max(longest.double, s.longest.double)
		longest.vacant = max(longest.vacant, s.longest.vacant)
	}
	t.Logf("longest time with two owners %s, with none %s", longest.double, longest.vacant)
}

// keepersMeet fails the test unless each VIP has one owner after both sides of a partition had one and then no host served it,
// and after a pause of a host meanwhile.
func (s *simulation) keepersMeet(rounds int) {
	s.t.Helper()
	serve := func(services int) {
		for _, h := range s.hosts {
			for _, v := range s.vips {
				h.setEligible(v, services)
			}
		}
	}
	for range rounds {
		for a := range s.hosts {
			for b := range s.hosts {
				s.cut[[2]int{a, b}] = a%2 != b%2
			}
		}
		s.pass(timeout + beat)
		serve(0)
		s.pass(timeout + beat)
		s.logf("nobody serves, and all links work")
		clear(s.cut)
		s.pass(timeout + beat)
		s.allOwned()
		h := s.hosts[s.r.IntN(len(s.hosts))]
		h.stop()
		s.pass(timeout + beat)
		h.resume()
		s.pass(vacancy)
		s.allOwned()
		serve(1)
		s.pass(settle + time.Second)
		s.allOwned()
	}
}

// Planned moves have no time without an owner.
func TestDrainLeavesNoGap(t *testing.T) {
	s := newSimulation(t, 1, 3, 50)
	s.pass(3 * time.Second)
	s.longest.vacant = 0
	for _, h := range s.hosts {
		h.drain(true)
		s.pass(time.Second)
		for v, owner := range s.owners() {
			if owner == h.index {
				t.Errorf("%s still has %s", h.name(), v)
			}
		}
		h.drain(false)
		s.pass(settle + time.Second)
	}
	expect.AtMost(t, s.longest.vacant, 0, "without an owner")
}

// Hosts own in the order of their priorities, a standby host only if nobody else can, after each of three failures and
// three returns.
func TestOrderOfPreference(t *testing.T) {
	s := newSimulation(t, 9, 4, 8)
	for i, p := range []announce.Policy{{Above: 100}, {Above: 50}, {}, {Above: 150, Standby: true}} {
		s.hosts[i].setPolicy(p)
	}
	kill, start := (*simHost).kill, (*simHost).start
	for _, step := range []struct {
		what  string
		do    func(*simHost)
		host  int
		owner int
	}{
		{"all live", func(*simHost) {}, 0, 0}, {"the first fails", kill, 0, 1}, {"the second fails", kill, 1, 2}, {"the third fails", kill, 2, 3},
		{"the second returns", start, 1, 1}, {"the third returns", start, 2, 1}, {"the first returns", start, 0, 0}, {"the second fails again", kill, 1, 0},
	} {
		s.logf("%s", step.what)
		step.do(s.hosts[step.host])
		s.pass(settle + time.Second)
		s.allOwned()
		for v, owner := range s.owners() {
			if owner != step.owner {
				s.fail("%s: %s is on host %d, want %d", step.what, v, owner, step.owner)
			}
		}
	}
	s.hosts[2].setPolicy(announce.Policy{Above: 101}) // a planned move
	s.longest.vacant = 0
	s.pass(settle + time.Second)
	if shares := s.shares(); shares[2] != len(s.vips) || s.longest.vacant > 0 {
		s.fail("a higher priority: shares %v, %s without an owner", shares, s.longest.vacant)
	}
}

// moved is how long a move takes at most.
const moved = timeout + 20*time.Millisecond

// A VIP that an operator moves is on that host soon and without a gap, until the host fails; a pinned one returns with its
// host. The later one of two moves wins, whether one store has them or each host its own.
func TestMoves(t *testing.T) {
	for _, fleet := range []bool{true, false} {
		s := newSimulation(t, 11, 3, 6)
		s.pass(3 * time.Second)
		v := s.vips[0]
		home := s.owners()[v]
		x, y := s.hosts[(home+1)%3], s.hosts[(home+2)%3]
		for _, step := range []struct {
			what  string
			do    func()
			after time.Duration
			owner *simHost
		}{
			{"a move", func() { s.move(x, v, false, fleet) }, moved, x},
			{"time passes", func() {}, 2 * settle, x},
			{"its host fails", x.kill, timeout + beat, s.hosts[home]},
			{"its host returns", x.start, 2 * settle, s.hosts[home]},
			{"another move", func() { s.move(y, v, false, fleet) }, moved, y},
			{"a drain", func() { y.drain(true) }, beat, s.hosts[home]},
			{"its end", func() { y.drain(false) }, 2 * settle, s.hosts[home]},
			{"a move to a host that is not eligible", func() { x.setEligible(v, 0); s.move(x, v, false, fleet); x.setEligible(v, 1) }, 2 * settle, s.hosts[home]},
			{"a pin", func() { s.move(x, v, true, fleet) }, moved, x},
			{"its host is killed", x.kill, timeout + beat, s.hosts[home]},
			{"its host is back", x.start, settle / 2, s.hosts[home]},
			{"its host has settled", func() {}, settle, x},
			{"a later move", func() { s.move(y, v, false, fleet) }, moved, y},
			{"the later host fails", y.kill, timeout + beat, s.hosts[home]},
			{"a pin of the owner", func() { s.move(s.hosts[home], v, true, fleet); s.pass(beat); s.move(x, v, true, fleet) }, moved, x},
			{"its end by an operator", func() { delete(s.newest, v); x.forgetMove(v, s.stamp) }, settle / 2, x},
			{"after settle", func() {}, settle, s.hosts[home]},
		} {
			s.logf("%s", step.what)
			s.longest.vacant = 0
			step.do()
			s.pass(step.after)
			if owner := s.owners()[v]; owner != step.owner.index {
				s.fail("fleet %v: %s: the VIP is on host %d, want %s", fleet, step.what, owner, step.owner.name())
			}
			if s.longest.vacant > 0 && !strings.Contains(step.what, "fail") && !strings.Contains(step.what, "kill") {
				s.fail("fleet %v: %s: %s without an owner", fleet, step.what, s.longest.vacant)
			}
		}
	}
}

// With Keep, a VIP that no host serves stays on its last owner, and on one of two after a partition, until a host serves it.
// A host that drains or fails gives it up, and nobody else takes it.
func TestLastOwnerKeeps(t *testing.T) {
	s := newSimulation(t, 12, 3, 6)
	s.keep = true
	s.pass(3 * time.Second)
	v := s.vips[0]
	serve := func(services int) {
		for _, h := range s.hosts {
			h.setEligible(v, services)
		}
	}
	owner := func(what string) *simHost {
		t.Helper()
		s.logf("%s", what)
		s.pass(settle + time.Second)
		i, owned := s.owners()[v]
		if !owned {
			s.fail("%s: no owner", what)
		}
		return s.hosts[i]
	}
	home := owner("all serve it")
	serve(0)
	must.True(t, owner("nobody serves it") == home, "the VIP has moved")
	next := s.hosts[(home.index+1)%3]
	s.longest.vacant = 0
	next.setEligible(v, 1)
	must.True(t, owner("another one serves it") == next && s.longest.vacant == 0, "the VIP is not with the host that serves it, or had a gap")
	serve(0)
	must.True(t, owner("nobody again") == next, "the VIP has moved")
	for _, h := range s.hosts {
		s.cut[[2]int{h.index, next.index}], s.cut[[2]int{next.index, h.index}] = true, true
	}
	home.setEligible(v, 1)
	s.pass(settle + time.Second)
	home.setEligible(v, 0)
	s.pass(time.Second)
	must.True(t, home.answers(v) && next.answers(v), "both sides have the VIP during a partition")
	clear(s.cut)
	last := owner("after a partition")
	last.drain(true)
	s.pass(settle)
	must.Equal(t, len(s.owners()), len(s.vips)-1, "VIPs with an owner after a drain")
	last.drain(false)
	serve(1)
	must.True(t, owner("all serve it") == home, "the VIP is not where it was")
}

// The owner of a VIP is cut off from clients and hosts: the next one owns it within 310 ms of its
// last heartbeat.
func TestTakeoverTime(t *testing.T) {
	for seed := range uint64(5) {
		s := newSimulation(t, seed, 3, 12)
		s.pass(3*time.Second + time.Duration(seed)*7*time.Millisecond)
		before := s.owners()
		s.hosts[0].kill()
		s.pass(timeout + 15*time.Millisecond)
		for v, owner := range s.owners() {
			if owner == 0 || before[v] != 0 && before[v] != owner {
				t.Errorf("%s moved from %d to %d", v, before[v], owner)
			}
		}
		s.allOwned()
	}
}

// A host that comes back takes nothing until it has settled, and then its share without a gap.
func TestReturningHostSettles(t *testing.T) {
	s := newSimulation(t, 3, 2, 40)
	s.pass(3 * time.Second)
	home := s.owners()
	s.hosts[0].kill()
	s.pass(time.Second)
	s.hosts[0].start()
	s.longest.vacant = 0
	s.pass(settle - 100*time.Millisecond)
	for v, owner := range s.owners() {
		expect.True(t, owner != 0, "%s was taken before settle", v)
	}
	s.pass(time.Second)
	for v, owner := range s.owners() {
		expect.Equal(t, owner, home[v], "%s is on", v)
	}
	expect.AtMost(t, s.longest.vacant, 0, "without an owner")
}

// After a partition, the ranking decides within two heartbeats.
func TestHealedPartition(t *testing.T) {
	s := newSimulation(t, 4, 4, 40)
	s.pass(3 * time.Second)
	for a := range 4 {
		for b := range 4 {
			s.cut[[2]int{a, b}] = a%2 != b%2
		}
	}
	s.pass(2 * time.Second)
	clear(s.cut)
	s.pass(2 * beat)
	s.allOwned()
}

// A host that sends and does not receive gets the VIPs that it takes, so that each has one owner.
func TestOneWayLink(t *testing.T) {
	s := newSimulation(t, 5, 2, 20)
	s.pass(3 * time.Second)
	s.cut[[2]int{0, 1}] = true
	s.pass(twoOwners + beat)
	// check does not count owners that are cut off from each other, so count here.
	for range 100 {
		s.owners()
		s.pass(50 * time.Millisecond)
	}
	clear(s.cut)
	s.pass(settle + time.Second)
	s.allOwned()
}

// A stopped owner answers for at most 300 ms, takes nothing back when it continues, and does not
// consider the others dead.
func TestPausedOwner(t *testing.T) {
	for _, pause := range []time.Duration{150 * time.Millisecond, 350 * time.Millisecond, time.Second, time.Minute} {
		for _, frozen := range []bool{false, true} {
			s := newSimulation(t, 6, 2, 20)
			s.pass(3 * time.Second)
			before := maps.Clone(s.hosts[0].mine)
			s.hosts[0].stop()
			s.hosts[0].frozen = frozen
			s.pass(pause)
			s.hosts[0].resume()
			for v, mine := range s.hosts[0].mine {
				if mine != (before[v] && pause < timeout) {
					s.fail("a pause of %s (frozen %v): announcing %s is %v at its end, %v before", pause, frozen, v, mine, before[v])
				}
			}
			s.pass(settle + time.Second)
			s.allOwned()
			if s.longest.double > 10*time.Millisecond {
				s.fail("a pause of %s (frozen %v): two owners for %s", pause, frozen, s.longest.double)
			}
		}
	}
}

// Two hosts have one name. The one that has run longer has its share of the VIPs, the other one has
// none, whichever of them others receive first. When the older one has gone, the other one takes over.
func TestTwoHostsWithOneName(t *testing.T) {
	for seed := range uint64(4) {
		s := newSimulation(t, seed, 3, 30)
		s.pass(3 * time.Second)
		s.hosts[2].kill()
		s.pass(time.Second)
		s.hosts[2].alias = "lb1"
		s.hosts[2].start()
		// The copy finds out, takes nothing, and is at rest meanwhile.
		s.pass(time.Second)
		s.hosts[2].steps = 0
		for range 100 {
			s.pass(100 * time.Millisecond)
			for _, v := range s.vips {
				if s.hosts[2].answers(v) {
					s.fail("the copy owns %s", v)
				}
			}
		}
		if n := s.hosts[2].steps; n > 1000 { // 10 heartbeats a second of three hosts, some of which are answered
			s.fail("%d steps in 10 s", n)
		}
		if shares := s.shares(); shares[0] == 0 || shares[1] == 0 || shares[0]+shares[1] != len(s.vips) {
			s.fail("shares %v", shares)
		}
		s.hosts[0].kill()
		s.pass(settle + 3*time.Second)
		if shares := s.shares(); shares[2] == 0 || shares[1]+shares[2] != len(s.vips) {
			s.fail("shares without the older host: %v", shares)
		}
		if _, yield, ok := s.hosts[2].exchange.Duplicate(s.now); ok || yield {
			s.fail("the other host is still reported")
		}
	}
}

// shares returns how many VIPs each host owns.
func (s *simulation) shares() (out [4]int) {
	for _, owner := range s.owners() {
		out[owner]++
	}
	return out
}

// The health of a VIP's backends flaps on its best host. The VIP leaves the host at once each time, but
// comes back only after settle: it moves once, and other VIPs don't.
func TestFlappingHealthIsDamped(t *testing.T) {
	s := newSimulation(t, 8, 2, 20)
	s.pass(3 * time.Second)
	home := s.owners()
	flaps := s.vips[slices.IndexFunc(s.vips, func(v netip.Addr) bool { return home[v] == 0 })]
	moves, last := 0, home
	note := func(d time.Duration) {
		s.pass(d)
		now := s.owners()
		for v, owner := range now {
			if v != flaps && owner != home[v] {
				s.fail("%s moved", v)
			}
		}
		if owner, has := now[flaps]; has && owner != last[flaps] {
			moves++
			last = now
		}
	}
	for range 20 {
		s.hosts[0].setEligible(flaps, 0)
		note(settle / 4)
		if last[flaps] != 1 {
			s.fail("it stays on a host without a usable backend")
		}
		s.hosts[0].setEligible(flaps, 1)
		note(settle / 2)
	}
	expect.Equal(t, moves, 1, "20 flaps move the VIP %d times", moves)
	for range 10 {
		note(settle / 5)
	}
	if moves != 2 || last[flaps] != 0 {
		t.Errorf("after it is steady, the VIP is on host %d, with %d moves", last[flaps], moves)
	}
}
