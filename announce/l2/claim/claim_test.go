package claim

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/heapsize"
)

var (
	vip4  = netip.MustParseAddr("10.0.0.200")
	vip6  = netip.MustParseAddr("fd00::200")
	rival = Rival{MAC: frame.MAC{2, 0, 0, 0, 0, 9}, Link: 7}
	other = Rival{MAC: frame.MAC{2, 0, 0, 0, 0, 8}, Link: 7}
)

// world drives a Machine through time and records what it does. It fails the test if a closed address
// is announced.
type world struct {
	*testing.T
	m     *Machine
	start time.Time
	now   time.Time
	open  map[netip.Addr]bool
	sent  []event
	state map[netip.Addr]State
	rival map[netip.Addr]Rival
	log   []string // reports
	busy  int      // number of frames to refuse
}

type event struct {
	at   time.Duration // since the start
	addr netip.Addr
	kind Frame
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, start: time.Now(), open: map[netip.Addr]bool{}, state: map[netip.Addr]State{}, rival: map[netip.Addr]Rival{}}
	w.now = w.start
	w.m = New(w)
	w.m.SetUsable(w.now, true)
	return w
}

func (w *world) Open(a netip.Addr) { w.open[a] = true }
func (w *world) Shut(a netip.Addr) { delete(w.open, a) }

func (w *world) Send(a netip.Addr, f Frame) bool {
	w.Helper()
	if f == Announce && !w.open[a] {
		w.Errorf("%v is announced although the gate is closed", a)
	}
	if w.busy > 0 {
		w.busy--
		return false
	}
	w.sent = append(w.sent, event{w.now.Sub(w.start), a, f})
	return true
}

func (w *world) Report(a netip.Addr, s State, r Rival) {
	w.state[a], w.rival[a] = s, r
	w.log = append(w.log, fmt.Sprint(s))
}

// until runs the machine up to a time since the start.
func (w *world) until(d time.Duration) {
	end := w.start.Add(d)
	for {
		at, ok := w.m.First()
		if !ok || at.After(end) {
			break
		}
		if at.After(w.now) {
			w.now = at
		}
		w.m.Run(w.now, 10)
	}
	w.now = end
}

// times returns when frames of a kind were sent, in milliseconds.
func (w *world) times(a netip.Addr, f Frame) (all []int) {
	for _, e := range w.sent {
		if e.addr == a && e.kind == f {
			all = append(all, int(e.at.Milliseconds()))
		}
	}
	return all
}

func (w *world) is(a netip.Addr, s State, open bool) {
	w.Helper()
	if w.state[a] != s || w.open[a] != open {
		w.Errorf("at %v: %v is in state %d and open: %v; want %d and %v", w.now.Sub(w.start), a, w.state[a], w.open[a], s, open)
	}
}

func TestAnnouncementsRepeat(t *testing.T) {
	w := newWorld(t)
	w.m.Own(w.now, vip4, false)
	w.until(10 * time.Second)
	w.is(vip4, Announced, true)
	expect.SameList(t, w.times(vip4, Announce), []int{0, 100, 500, 1500, 3500}, "announced")
	expect.SameList(t, w.times(vip4, Verify), []int{1500, 3500}, "verified")
	w.until(time.Hour)
	n := len(w.times(vip4, Announce)) - 5
	if n < 60 || n > 72 { // once in 50 to 60 s
		t.Errorf("%d more announcements in an hour", n)
	}
	expect.Equal(t, len(w.times(vip4, Verify))-2, n, "periodic announcements came with a question")
	w.m.Reannounce(w.now)
	w.sent = nil
	w.until(time.Hour + 3*time.Second)
	expect.Equal(t, len(w.times(vip4, Announce)), 4, "announcements in 3 s after Reannounce")
	w.m.Release(vip4)
	w.sent = nil
	w.until(2 * time.Hour)
	if len(w.sent) > 0 || w.open[vip4] || len(w.m.addrs) != 0 {
		t.Errorf("after the release: %v sent, open: %v", w.sent, w.open)
	}
}

func TestNewAddressesAreProbed(t *testing.T) {
	for _, tc := range []struct {
		addr     netip.Addr
		probes   int
		min, max time.Duration // until the announcement
	}{
		{vip4, 3, 4 * time.Second, 7 * time.Second},
		{vip6, 1, time.Second, 2 * time.Second},
	} {
		w := newWorld(t)
		w.m.Own(w.now, tc.addr, true)
		w.is(tc.addr, Probing, false)
		w.until(tc.max)
		w.is(tc.addr, Announced, true)
		expect.Equal(t, len(w.times(tc.addr, Probe)), tc.probes, "%v: probes", tc.addr)
		expect.Between(t, time.Duration(w.times(tc.addr, Announce)[0])*time.Millisecond, tc.min, tc.max, "%v: announced", tc.addr)
	}
}

// Another holder, or another station that probes at the same time, ends the probing.
func TestProbeFindsAnotherStation(t *testing.T) {
	for _, kind := range []frame.Kind{frame.Holds, frame.Probe} {
		w := newWorld(t)
		w.m.Own(w.now, vip4, true)
		w.until(time.Second)
		w.m.Observe(w.now, vip4, frame.Question, rival) // says nothing
		w.is(vip4, Probing, false)
		w.m.Observe(w.now, vip4, kind, rival)
		w.is(vip4, Conflict, false)
		expect.Equal(t, w.rival[vip4], rival, "reported")
		w.until(10 * time.Second) // the other station doesn't answer the checks
		w.is(vip4, Announced, true)
	}
}

// The first claim is answered with an announcement, unless the address is released soon: a planned move
// begins with such a claim. Claims in the next second belong to it. A later one, within ten seconds, is a
// conflict.
func TestDefendOnce(t *testing.T) {
	w := newWorld(t)
	w.m.Own(w.now, vip4, false)
	w.until(20 * time.Second)
	w.sent = nil
	w.m.Observe(w.now, vip4, frame.Holds, rival)
	w.is(vip4, Announced, true)
	w.until(20*time.Second + Grace)
	w.m.Observe(w.now, vip4, frame.Holds, rival)
	w.is(vip4, Announced, true)
	expect.SameList(t, w.times(vip4, Announce), []int{20_200}, "announced")
	w.until(20*time.Second + Defer + Grace)
	if got, want := w.times(vip4, Verify), []int{21_200}; !slices.Equal(got, want) { // the question
		t.Errorf("verified at %v, want %v", got, want)
	}
	w.m.Observe(w.now, vip4, frame.Holds, rival)
	w.is(vip4, Conflict, false)
	expect.Equal(t, w.rival[vip4], rival, "reported")
	w.m.Observe(w.now, vip4, frame.Holds, other)
	expect.Equal(t, w.rival[vip4], other, "reported %v, want the newest, %v", w.rival[vip4], other)
}

// An address that moves to the station that claims it is not announced again.
func TestMoveIsNotDefended(t *testing.T) {
	w := newWorld(t)
	w.m.Own(w.now, vip4, false)
	w.until(50 * time.Millisecond) // the next announcement would be due soon, too
	w.sent = nil
	w.m.Observe(w.now, vip4, frame.Holds, rival)
	w.until(50*time.Millisecond + Defer - time.Millisecond)
	w.m.Release(vip4)
	w.until(time.Minute)
	expect.Empty(t, w.sent, "sent")
}

func TestSingleClaimsAreDefended(t *testing.T) {
	w := newWorld(t)
	w.m.Own(w.now, vip4, false)
	for i := range 5 {
		w.until(time.Duration(i+1) * (DefendInterval + time.Second))
		w.m.Observe(w.now, vip4, frame.Holds, rival)
		w.is(vip4, Announced, true)
	}
}

// While the other station answers, the pauses between the checks grow. When it no longer does, the
// address is announced.
func TestConflictEnds(t *testing.T) {
	w := newWorld(t)
	w.m.Own(w.now, vip4, true)
	w.until(time.Second)
	w.m.Observe(w.now, vip4, frame.Holds, rival)
	w.is(vip4, Conflict, false)
	questions := 0
	var rounds []time.Duration
	for d := time.Second; d < 10*time.Minute; d += 10 * time.Millisecond {
		w.until(d)
		if n := len(w.times(vip4, Verify)); n > questions {
			questions = n
			rounds = append(rounds, d)
			w.m.Observe(w.now, vip4, frame.Holds, rival) // it answers
		}
	}
	w.is(vip4, Conflict, false)
	for i, r := range rounds[1:] {
		if pause := r - rounds[i]; pause > RetryHi || pause < RetryLo/2 {
			t.Errorf("pause %v between checks", pause)
		}
	}
	if n := len(rounds); n < 10 || n > 25 { // 2, 4, 8 ... 60 s with jitter
		t.Errorf("%d checks in ten minutes", n)
	}
	expect.AtMost(t, len(w.times(vip4, Announce)), 0, "announcements during the conflict")
	w.until(10*time.Minute + RetryHi + checks*checkPause)
	w.is(vip4, Announced, true)
	expect.Equal(t, w.rival[vip4], (Rival{}), "the report has a rival")
}

func TestNoUsableInterface(t *testing.T) {
	w := newWorld(t)
	w.m.SetUsable(w.now, false)
	w.m.Own(w.now, vip4, false)
	w.m.Own(w.now, vip6, true)
	w.until(time.Minute)
	w.is(vip4, Waiting, false)
	w.is(vip6, Waiting, false)
	expect.Empty(t, w.sent, "sent")
	w.m.SetUsable(w.now, true)
	w.is(vip4, Announced, true)
	w.is(vip6, Probing, false)
	w.until(2 * time.Minute)
	w.is(vip6, Announced, true)
	w.m.SetUsable(w.now, false)
	w.sent = nil
	w.is(vip4, Waiting, true)
	w.until(3 * time.Minute)
	w.m.SetUsable(w.now, true)
	w.until(3*time.Minute + 200*time.Millisecond)
	got := w.times(vip4, Announce)
	expect.Len(t, got, 2, "announced at %v, want at once and after 0.1 s", got)
	w.is(vip6, Announced, true) // no longer new
}

// A conflict outlives the loss of the interfaces.
func TestConflictWithoutInterface(t *testing.T) {
	w := newWorld(t)
	w.m.Own(w.now, vip4, true)
	w.m.Observe(w.now, vip4, frame.Holds, rival)
	w.m.SetUsable(w.now, false)
	w.until(time.Hour)
	w.is(vip4, Conflict, false)
	w.m.SetUsable(w.now, true)
	w.until(time.Hour + time.Millisecond)
	w.m.Observe(w.now, vip4, frame.Holds, rival) // the answer to the check
	w.until(time.Hour + time.Second)
	w.is(vip4, Conflict, false)
	w.until(2 * time.Hour)
	w.is(vip4, Announced, true)
}

// A frame that could not be sent is repeated, but not forever.
func TestBusyInterface(t *testing.T) {
	w := newWorld(t)
	w.busy = 3
	w.m.Own(w.now, vip4, false)
	w.until(100 * time.Millisecond)
	expect.SameList(t, w.times(vip4, Announce), []int{60}, "announced")
	w.busy = 1000
	w.until(10 * time.Second)
	expect.AtMost(t, 1000-w.busy, 4*(maxRetries+2), "attempts for 4 announcements")
	w.busy, w.sent = 0, nil
	w.until(2 * time.Minute)
	expect.True(t, len(w.times(vip4, Announce)) != 0, "no announcements after the interface was busy")
}

// The first announcements of all addresses come before the second one of any.
func TestManyAddresses(t *testing.T) {
	w := newWorld(t)
	const n = 10_000
	for i, a := 0, netip.MustParseAddr("10.1.0.0"); i < n; i, a = i+1, a.Next() {
		w.m.Own(w.now, a, false)
	}
	runs := 0
	for ; len(w.sent) < n; runs++ {
		w.m.Run(w.now, 100)
	}
	seen := map[netip.Addr]bool{}
	for _, e := range w.sent {
		seen[e.addr] = true
	}
	if len(seen) != n || runs != n/100 {
		t.Errorf("%d addresses in %d runs, want %d in %d", len(seen), runs, n, n/100)
	}
	w.until(10 * time.Second)
	wakes := map[time.Duration]bool{}
	w.sent = nil
	w.until(70 * time.Second)
	for _, e := range w.sent {
		wakes[e.at] = true
	}
	if len(wakes) > 110 { // ten seconds of a grid of 0.1 s
		t.Errorf("the periodic announcements need %d wake-ups a minute", len(wakes))
	}
	w.m.Clear()
	if _, ok := w.m.First(); ok || len(w.m.addrs) > 0 {
		t.Error("something is left after Clear")
	}
}

func TestUnknownAddresses(t *testing.T) {
	w := newWorld(t)
	w.m.Observe(w.now, vip4, frame.Holds, rival)
	w.m.Release(vip4)
	w.m.Own(w.now, vip4, false)
	w.m.Own(w.now, vip4, true) // it is there
	w.is(vip4, Announced, true)
	expect.Equal(t, len(w.log), 1, "reports")
}

// silent is an Output that does nothing.
type silent struct{}

func (silent) Open(netip.Addr)                 {}
func (silent) Shut(netip.Addr)                 {}
func (silent) Send(netip.Addr, Frame) bool     { return true }
func (silent) Report(netip.Addr, State, Rival) {}

// The memory of one announced address without a dispute, and of one with.
func TestMemoryPerAddress(t *testing.T) {
	const addresses = 10_000
	for _, c := range []struct {
		disputed bool
		most     int // bytes
	}{{false, 270}, {true, 350}} {
		size := heapsize.Of(func() any {
			m, now := New(silent{}), time.Unix(1, 0)
			m.SetUsable(now, true)
			for i := range addresses {
				a := netip.AddrFrom4([4]byte{10, 90, byte(i >> 8), byte(i)})
				m.Own(now, a, false)
				if c.disputed {
					m.Observe(now, a, frame.Holds, Rival{Link: 1})
				}
			}
			return m
		}) / addresses
		if size > c.most || size < c.most/2 {
			t.Errorf("disputed %t: %d bytes for each address, want at most %d", c.disputed, size, c.most)
		}
	}
}
