package heartbeat

import (
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// recorder is a Sink with what it was given.
type recorder struct {
	hosts map[string]announce.Host
	known map[string]map[netip.Addr]announce.Claim
}

func (r *recorder) SetHost(h announce.Host) { r.hosts[h.Name] = h }

func (r *recorder) RemoveHost(name string) {
	delete(r.hosts, name)
	delete(r.known, name)
}

func (r *recorder) SetClaim(host string, c announce.Claim) announce.Claim {
	if _, ok := r.hosts[host]; !ok {
		panic("a claim of an unknown host")
	}
	if r.known[host] == nil {
		r.known[host] = map[netip.Addr]announce.Claim{}
	}
	former, ok := r.known[host][c.Addr]
	if !ok {
		former.Addr = c.Addr
	}
	if r.known[host][c.Addr] = c; c.IsEmpty() {
		delete(r.known[host], c.Addr)
	}
	return former
}

func (r *recorder) Claims(host string) iter.Seq[announce.Claim] { return maps.Values(r.known[host]) }

// net is a simulated network of hosts with an exchange each. Time passes in steps.
type network struct {
	t     must.T
	now   time.Time
	nodes map[netip.AddrPort]*node
	queue []delivery
	lives *rand.Rand // makes the numbers of the hosts' lives
	drop  func(from, to netip.AddrPort) bool
	tap   func(from, to netip.AddrPort, packet []byte)
}

type delivery struct {
	from, to netip.AddrPort
	packet   []byte
}

type node struct {
	*Exchange
	recorder
	addr netip.AddrPort
}

func newNetwork(t must.T) *network {
	return &network{t: t, now: time.Unix(1000, 0), lives: rand.New(rand.NewPCG(1, 0)), nodes: map[netip.AddrPort]*node{}, drop: func(_, _ netip.AddrPort) bool { return false }, tap: func(_, _ netip.AddrPort, _ []byte) {}}
}

func addrOf(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 7481)
}

// onLAN returns the address of a host on another LAN.
func onLAN(addr netip.AddrPort, lan byte) netip.AddrPort {
	a := addr.Addr().As4()
	a[1] = lan
	return netip.AddrPortFrom(netip.AddrFrom4(a), addr.Port())
}

func options(name string, peers ...int) Options {
	o := Options{Name: name, Keys: secret, Interval: 100 * time.Millisecond, Missed: 3, Weight: 1}
	for _, p := range peers {
		o.Peers = append(o.Peers, addrOf(p))
	}
	return o
}

func (w *network) start(i int, o Options) *node {
	n := &node{addr: addrOf(i), recorder: recorder{map[string]announce.Host{}, map[string]map[netip.Addr]announce.Claim{}}}
	n.Exchange = New(o, w.lives.Uint64()|1, &n.recorder, w.now)
	w.nodes[n.addr] = n
	return n
}

// pair starts two hosts and lets them meet.
func pair(t testing.TB) (w *network, a, b *node) {
	w = newNetwork(t)
	a, b = w.start(1, options("lb1", 2)), w.start(2, options("lb2", 1))
	w.pass(50 * time.Millisecond)
	return w, a, b
}

// settle delivers packets until there are no more.
func (w *network) settle() {
	for round := 0; ; round++ {
		for _, addr := range slices.SortedFunc(maps.Keys(w.nodes), netip.AddrPort.Compare) {
			n := w.nodes[addr]
			n.Advance(w.now)
			n.Send(w.now, func(to netip.AddrPort, packet []byte) {
				must.AtMost(w.t, len(packet), MaxSize, "bytes of a packet")
				from := onLAN(addr, to.Addr().As4()[1])
				w.tap(from, to, packet)
				if !w.drop(from, to) {
					w.queue = append(w.queue, delivery{from, to, slices.Clone(packet)})
				}
			})
		}
		if len(w.queue) == 0 {
			return
		}
		must.AtMost(w.t, round, 1000, "rounds of packets")
		queue := w.queue
		w.queue = nil
		for _, d := range queue {
			if n := w.nodes[onLAN(d.to, 0)]; n != nil {
				n.Receive(d.from, d.packet, w.now)
			}
		}
	}
}

func (w *network) pass(d time.Duration) {
	for end := w.now.Add(d); ; {
		w.settle()
		next := end
		for _, n := range w.nodes {
			if at := n.Next(); at.Before(next) {
				next = at
			}
		}
		if !next.After(w.now) {
			must.False(w.t, w.now.Before(end), "next is %v ago", w.now.Sub(next))
			return
		}
		w.now = next
	}
}

func vipAt(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}) }

func state(n *node, name string) announce.Peer {
	for _, p := range n.Peers(time.Unix(1e6, 0)) {
		if p.Name == name {
			return p
		}
	}
	return announce.Peer{}
}

// Two hosts know each other and their claims one round trip after their start.
func TestPairMeets(t *testing.T) {
	w := newNetwork(t)
	a := w.start(1, options("lb1", 2))
	a.Set(announce.Claim{Addr: vipAt(1), Services: 1, Owned: true})
	w.pass(250 * time.Millisecond)
	early := a.Informed(w.now)
	w.pass(50 * time.Millisecond)
	if early || !a.Informed(w.now) {
		t.Error("waits for a silent host for another time than 300ms")
	}
	b := w.start(2, options("lb2", 1))
	b.Set(announce.Claim{Addr: vipAt(2), Services: 1})
	w.settle()
	if h := b.hosts["lb1"]; !h.Alive || h.OneWay || h.Weight != 1 {
		t.Errorf("lb1 is %+v", h)
	}
	if h := a.hosts["lb2"]; !h.Alive || h.OneWay {
		t.Errorf("lb2 is %+v", h)
	}
	if !b.known["lb1"][vipAt(1)].Owned || a.known["lb2"][vipAt(2)].Services != 1 {
		t.Errorf("claims %v, %v", a.known, b.known)
	}
	if !a.Informed(w.now) || !b.Informed(w.now) {
		t.Error("not informed")
	}
}

// A silent host is dead after missed x heartbeat, counted from its last heartbeat, and not before.
func TestDeath(t *testing.T) {
	w, a, b := pair(t)
	for i := range 30 {
		b.Set(announce.Claim{Addr: netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), Services: 1, Owned: i > 0})
	}
	w.pass(time.Second)
	if p := state(a, "lb2"); len(p.VIPs) != 0 || p.Owned != 29 {
		t.Errorf("%+v", p)
	}
	delete(w.nodes, b.addr)
	died, last := time.Duration(0), a.peers["lb2"].received
	for died == 0 && w.now.Sub(last) < time.Second {
		if a.Advance(w.now); !a.hosts["lb2"].Alive {
			died = w.now.Sub(last)
		}
		w.now = w.now.Add(time.Millisecond)
	}
	expect.Equal(t, died, 300*time.Millisecond, "dead after")
	// The dead peer's announcements are remembered.
	if p := state(a, "lb2"); p.State != Dead || p.Lost != 3 || p.Owned != 29 || len(p.VIPs) != announce.MaxVIPs || p.VIPs[0] != netip.MustParseAddr("10.0.1.1") {
		t.Errorf("%+v", p)
	}
}

// The time in which this host was not running does not count as silence of others.
func TestExcuse(t *testing.T) {
	w, a, b := pair(t)
	delete(w.nodes, b.addr)
	w.now = w.now.Add(5 * time.Second)
	a.Excuse(5 * time.Second)
	if a.Advance(w.now); !a.hosts["lb2"].Alive {
		t.Error("lb2 is dead because lb1 was not running")
	}
	w.now = w.now.Add(300 * time.Millisecond)
	if a.Advance(w.now); a.hosts["lb2"].Alive {
		t.Error("lb2 lives on")
	}
}

// A host that sends and does not receive is shown as one-way by both, and counts as such in the decision.
func TestOneWay(t *testing.T) {
	w, a, b := pair(t)
	w.drop = func(_, to netip.AddrPort) bool { return to == b.addr }
	w.pass(time.Second)
	if h := a.hosts["lb2"]; !h.Alive || !h.OneWay {
		t.Errorf("lb2 is %+v", h)
	}
	if h := b.hosts["lb1"]; h.Alive {
		t.Errorf("lb1 is %+v", h)
	}
	if p := state(a, "lb2"); p.State != OneWay || !strings.Contains(p.Reason, "does not receive") {
		t.Errorf("%+v", p)
	}
	w.drop = func(_, _ netip.AddrPort) bool { return false }
	w.pass(time.Second)
	if a.hosts["lb2"].OneWay || !b.hosts["lb1"].Alive {
		t.Error("not repaired")
	}
}

// Hosts on two LANs know each other's claims while one path between them works in each direction, whichever that is.
func TestTwoLANs(t *testing.T) {
	for lan := range byte(2) {
		w := newNetwork(t)
		var hosts []*node
		for i := 1; i <= 2; i++ {
			o := options(fmt.Sprint("lb", i), 3-i)
			o.Peers = append(o.Peers, onLAN(o.Peers[0], 1))
			hosts = append(hosts, w.start(i, o))
		}
		a, b := hosts[0], hosts[1]
		w.pass(time.Second)
		w.drop = func(from, to netip.AddrPort) bool { return onLAN(from, 0) == a.addr && to == onLAN(b.addr, lan) }
		a.Set(announce.Claim{Addr: vipAt(1), Services: 1})
		w.pass(200 * time.Millisecond)
		expect.Equal(t, len(b.known["lb1"]), 1, "claims without the path on LAN %d", lan)
		for i := range 5000 {
			a.Set(announce.Claim{Addr: vipAt(i), Services: 2})
		}
		w.pass(time.Second)
		expect.Equal(t, len(b.known["lb1"]), 5000, "claims without the path on LAN %d", lan)
		w.drop = func(_, _ netip.AddrPort) bool { return false }
		w.pass(time.Second)
		before := a.count.Sent
		a.Set(announce.Claim{Addr: vipAt(1), Services: 3})
		w.settle()
		expect.Equal(t, a.count.Sent-before, uint64(1), "messages of a change while both paths work")
	}
}

// A host that was never received is not alive: its messages could be recordings.
func TestOneWayFromTheStart(t *testing.T) {
	w := newNetwork(t)
	a, b := w.start(1, options("lb1", 2)), w.start(2, options("lb2", 1))
	w.drop = func(_, to netip.AddrPort) bool { return to == b.addr }
	w.pass(time.Second)
	expect.Equal(t, len(a.hosts), 0, "hosts %v", a.hosts)
	expect.Equal(t, state(a, "lb2").State, OneWay, "state")
}

// Recordings of any age, sent to any host, change nothing, except that they are counted.
func TestReplays(t *testing.T) {
	w, a, b := pair(t)
	var recorded []delivery
	w.tap = func(from, to netip.AddrPort, packet []byte) {
		recorded = append(recorded, delivery{from, to, slices.Clone(packet)})
	}
	b.Set(announce.Claim{Addr: vipAt(1), Services: 1, Owned: true})
	w.pass(time.Second)
	b.Set(announce.Claim{Addr: vipAt(1)})
	w.pass(5 * time.Second)
	old := recorded

	replay := func(what string) {
		t.Helper()
		before := maps.Clone(a.known["lb2"])
		for _, d := range old {
			a.Receive(d.from, d.packet, w.now)
			a.Receive(addrOf(66), d.packet, w.now)
		}
		w.settle()
		if !maps.Equal(a.known["lb2"], before) || a.hosts["lb2"].Alive != (w.nodes[b.addr] != nil) {
			t.Errorf("%s: claims %v, host %+v", what, a.known["lb2"], a.hosts["lb2"])
		}
	}
	replay("while both live")
	expect.True(t, a.count.Replayed != 0, "%+v", a.count)
	for _, d := range old {
		if c := w.start(9, options("lb9")); d.from == b.addr && d.packet[28] != 0 {
			if c.Receive(d.from, d.packet, w.now); c.count.Misdirected != 1 {
				t.Fatal("a message to lb1 is accepted by lb9")
			}
		}
		delete(w.nodes, addrOf(9))
	}
	b = w.start(2, options("lb2", 1)) // restarted
	w.pass(5 * time.Second)
	replay("after lb2 has restarted")
	delete(w.nodes, b.addr)
	w.pass(time.Second)
	replay("while lb2 is dead")
	a = w.start(1, options("lb1", 2))
	w.pass(time.Second)
	for _, d := range old {
		a.Receive(d.from, d.packet, w.now)
	}
	expect.Equal(t, len(a.hosts), 0, "after both have restarted: %v", a.hosts)
	if a.Receive(addrOf(2), []byte("garbage"), w.now); a.count.Malformed != 1 {
		t.Errorf("%+v", a.count)
	}
	w.start(3, Options{Name: "lb3", Keys: [][]byte{[]byte("guess")}, Peers: []netip.AddrPort{addrOf(1)}, Interval: time.Second, Missed: 3, Weight: 1})
	if w.settle(); a.count.Forged != 1 || len(a.peers) > 1 {
		t.Errorf("%+v, %d peers", a.count, len(a.peers))
	}
}

// A restarted host announces nothing until it says so again.
func TestRestart(t *testing.T) {
	w, a, b := pair(t)
	b.Set(announce.Claim{Addr: vipAt(1), Services: 1, Owned: true})
	w.pass(time.Second)
	w.start(2, options("lb2", 1))
	w.settle()
	if len(a.known["lb2"]) != 0 || !a.hosts["lb2"].Alive {
		t.Errorf("claims %v, host %+v", a.known["lb2"], a.hosts["lb2"])
	}
}

// A host with the name of this one is found. The one that has run longer keeps its VIPs.
func TestDuplicateName(t *testing.T) {
	w := newNetwork(t)
	a := w.start(1, options("lb1", 2))
	w.pass(time.Second)
	b := w.start(2, options("lb1", 1))
	w.pass(time.Second)
	at, yield, ok := a.Duplicate(w.now)
	if !ok || yield || at != b.addr {
		t.Errorf("the older one: %v, %v, %v", at, yield, ok)
	}
	if at, yield, ok := b.Duplicate(w.now); !ok || !yield || at != a.addr {
		t.Errorf("the younger one: %v, %v, %v", at, yield, ok)
	}
	expect.Equal(t, len(a.hosts)+len(b.hosts), 0, "they take each other for another host")
	// It gets no claims, so it can't acknowledge them.
	for i := range 3 {
		a.Set(announce.Claim{Addr: vipAt(i), Services: 1, Owned: true})
	}
	sent := 0
	for _, at := range []time.Time{w.now, w.now, a.Beat(), a.Beat()} {
		a.Send(at, func(netip.AddrPort, []byte) { sent++ })
	}
	expect.AtMost(t, sent, 2, "messages with one heartbeat")
	delete(w.nodes, a.addr)
	w.pass(time.Second)
	if _, _, ok := b.Duplicate(w.now); ok {
		t.Error("the other one has gone")
	}
}

// Two other hosts with one name are reported, and the first one counts.
func TestDuplicatePeers(t *testing.T) {
	w := newNetwork(t)
	a := w.start(1, options("lb1", 2, 3))
	w.start(2, options("lb2", 1))
	w.pass(time.Second)
	w.start(3, options("lb2", 1))
	w.pass(time.Second)
	if p := a.Peers(w.now); len(p) == 0 || !slices.ContainsFunc(p, func(p announce.Peer) bool {
		return p.Address == addrOf(2).String() && strings.Contains(p.Reason, "another host uses its name: 10.0.0.3")
	}) {
		t.Errorf("%+v", p)
	}
	if a.count.Duplicates == 0 || !a.hosts["lb2"].Alive {
		t.Errorf("%+v", a.count)
	}
}

func TestDifferentConfiguration(t *testing.T) {
	w := newNetwork(t)
	other := options("lb2")
	other.Config, other.Interval = 5, 50*time.Millisecond
	a, b := w.start(1, options("lb1", 2)), w.start(2, other)
	w.pass(time.Second)
	p := state(a, "lb2")
	if !strings.Contains(p.Reason, "settings, pools or version differ") || !strings.Contains(p.Reason, "heartbeat 50ms x 3, this host 100ms x 3") {
		t.Errorf("%+v", p)
	}
	if p := state(b, "lb1"); !strings.Contains(p.Reason, "10.0.0.1 is not one of this host's peers") {
		t.Errorf("%+v", p)
	}
}

func TestDrainIsSentAtOnce(t *testing.T) {
	w, a, b := pair(t)
	w.settle()
	b.SetDraining(true, w.now)
	if w.settle(); !a.hosts["lb2"].Draining {
		t.Error("not known")
	}
}

// One change is one message to each peer and one answer, among 10,000 claims.
func TestOneChangeIsOneMessage(t *testing.T) {
	w, a, b := pair(t)
	for i := range 10_000 {
		a.Set(announce.Claim{Addr: vipAt(i), Services: 1})
	}
	w.settle()
	must.Equal(t, len(b.known["lb1"]), 10_000, "claims")
	expect.AtMost(t, a.count.Sent, uint64(10_000*6/(MaxSize-headerSize-macSize-3)+40), "messages, want at most")
	sent, answered := a.count.Sent, b.count.Sent
	a.Set(announce.Claim{Addr: vipAt(77), Services: 1, Owned: true})
	w.settle()
	if a.count.Sent-sent != 1 || b.count.Sent-answered != 1 || !b.known["lb1"][vipAt(77)].Owned {
		t.Errorf("%d and %d messages", a.count.Sent-sent, b.count.Sent-answered)
	}
}

// A copy that differs is found by its digest, and repaired.
func TestMismatch(t *testing.T) {
	w, a, b := pair(t)
	a.Set(announce.Claim{Addr: vipAt(1), Services: 1})
	w.settle()
	p := b.peers["lb1"]
	b.set(p, announce.Claim{Addr: vipAt(9), Services: 1})
	w.pass(200 * time.Millisecond)
	if len(b.known["lb1"]) != 1 || b.known["lb1"][vipAt(1)].Services != 1 || p.copy.all != 1 || b.count.Mismatches != 1 {
		t.Errorf("%v, %+v, %+v", b.known, p.copy, b.count)
	}
}

// Whatever is lost, all hosts have all claims of each other soon after the network works.
func TestCopiesConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newNetwork(t)
		seed := rapid.Uint64().Draw(t, "seed")
		r := rand.New(rand.NewPCG(seed, 1))
		loss := rapid.Float64Range(0, 0.7).Draw(t, "loss")
		w.drop = func(_, _ netip.AddrPort) bool { return r.Float64() < loss }
		want := map[int]map[netip.Addr]announce.Claim{1: {}, 2: {}, 3: {}}
		w.start(1, options("h1", 2, 3))
		w.start(2, options("h2", 1, 3))
		w.start(3, options("h3", 1))
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			i := rapid.IntRange(1, 3).Draw(t, "host")
			if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				w.start(i, w.nodes[addrOf(i)].o)
				want[i] = map[netip.Addr]announce.Claim{}
			}
			for range rapid.SampledFrom([]int{1, 3, 300}).Draw(t, "claims") {
				c := announce.Claim{Addr: vipAt(r.IntN(600)), Services: r.IntN(3), Owned: r.IntN(2) == 0}
				if !c.IsEmpty() {
					c.Policy = announce.Policy{Above: int16(r.IntN(3) - 1), Standby: r.IntN(2) == 0, Moved: uint32(r.IntN(2)) << 31, Pinned: r.IntN(2) == 0}
				}
				w.nodes[addrOf(i)].Set(c)
				if want[i][c.Addr] = c; c.IsEmpty() {
					delete(want[i], c.Addr)
				}
			}
			w.pass(time.Duration(rapid.IntRange(1, 400).Draw(t, "ms")) * time.Millisecond)
		}
		w.drop = func(_, _ netip.AddrPort) bool { return false }
		w.pass(time.Second)
		for i := range want {
			for j := range want {
				if n := w.nodes[addrOf(i)]; i != j && !maps.Equal(n.known[fmt.Sprint("h", j)], want[j]) {
					t.Fatalf("host %d has %d claims of host %d, want %d", i, len(n.known[fmt.Sprint("h", j)]), j, len(want[j]))
				}
			}
		}
	})
}
