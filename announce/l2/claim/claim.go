package claim

import (
	"iter"
	"maps"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/delayqueue"
)

// State is the state of an address.
type State uint8

// The states.
const (
	Waiting   State = iota // no interface can send
	Probing                // asking whether another station has the address
	Announced              // the gate is open, and announcements are sent
	Conflict               // another station has the address; the gate is closed
)

// Steps of a run of announcements. Each is relative to the one before: 0, 0.1, 0.5, 1.5, 3.5 s.
var steps = [...]time.Duration{0, 100 * time.Millisecond, 400 * time.Millisecond, time.Second, 2 * time.Second}

const (
	firstVerified = 3 // the steps from here on come with a question: a former owner is silent by then
	// Period is the time between announcements after the steps. Up to a sixth is taken off, so that
	// addresses of one moment spread.
	Period = time.Minute
	// grid aligns periodic announcements, so that few wake-ups send many.
	grid = 100 * time.Millisecond

	// Of RFC 5227, section 1.1.
	probeWait      = time.Second
	probeCount     = 3
	probeMin       = time.Second
	probeMax       = 2 * time.Second
	announceWait   = 2 * time.Second
	DefendInterval = 10 * time.Second
	// Of RFC 4861, section 10: one solicitation, and one second for the answer.
	probeCount6   = 1
	announceWait6 = time.Second

	// Defer is the pause before a defense. A planned move begins with the announcement of the new owner,
	// and this host learns from a heartbeat just before or after it that the address has moved. A defense
	// at once would direct clients back for a moment. The pause has room for one lost heartbeat of the
	// usual interval.
	Defer = 200 * time.Millisecond
	// Grace is the time after the first claim in which further claims belong to the same incident. A host
	// that has just lost the address may still claim it.
	Grace = time.Second
	// Retry is the pause after a frame that could not be sent.
	Retry = 20 * time.Millisecond
	// maxRetries bounds the attempts to send one announcement. The next step follows anyway.
	maxRetries = 10

	// checks are the questions in a conflict, without an answer to any of which the address is free.
	checks     = 3
	checkPause = 500 * time.Millisecond
)

// Pauses between checks whether the other station has given up.
const (
	RetryLo = 2 * time.Second
	RetryHi = time.Minute
)

// Rival is the other station of a conflict.
type Rival struct {
	MAC  frame.MAC
	Link int // index of the interface on which it was seen
}

// Output carries out what a Machine decides. The methods must not call the Machine.
type Output interface {
	Open(netip.Addr)
	Shut(netip.Addr)
	// Send sends a frame on all usable interfaces. It returns false if a frame was not sent for now,
	// for example because of a full queue.
	Send(netip.Addr, Frame) bool
	// Report is called at each change of state, and of the rival in a conflict.
	Report(netip.Addr, State, Rival)
}

// Frame is a kind of frame.
type Frame uint8

// The kinds of frames.
const (
	Announce Frame = iota
	Probe          // a question for a new address
	Verify         // a question whether another station has the address, too
)

// Machine is the set of addresses that this host is to own. Use New. It is not safe for concurrent
// use.
type Machine struct {
	out    Output
	epoch  time.Time // of the grid
	usable bool
	addrs  map[netip.Addr]*address
	queue  delayqueue.Queue[netip.Addr]
}

// address is the state of one address.
type address struct {
	state   State
	probe   bool  // it is new: probe before the first announcement
	step    uint8 // next step in this state
	retries uint8
	since   time.Time // of the state
	dispute *dispute  // nil: no other station has claimed it
}

// dispute is what is known of other stations that claim an address. Few addresses have one.
type dispute struct {
	defended time.Time // the claim that was defended against last
	rival    Rival
	pause    backoff.Backoff
}

// disputed returns the dispute of an address, or adds one.
func (x *address) disputed() *dispute {
	if x.dispute == nil {
		x.dispute = &dispute{pause: backoff.Backoff{Lo: RetryLo, Hi: RetryHi}}
	}
	return x.dispute
}

// rival returns the other station of a conflict.
func (x *address) rival() Rival {
	if x.dispute == nil {
		return Rival{}
	}
	return x.dispute.rival
}

// New returns a Machine without addresses that can't send yet.
func New(out Output) *Machine { return &Machine{out: out, addrs: map[netip.Addr]*address{}} }

// Has reports whether the host is to own a.
func (m *Machine) Has(a netip.Addr) bool { return m.addrs[a] != nil }

// Addrs yields the addresses. None may be added or removed meanwhile.
func (m *Machine) Addrs() iter.Seq[netip.Addr] { return maps.Keys(m.addrs) }

// Contested reports whether another station has an address, or may have it because the probes of the address have not ended.
func (m *Machine) Contested(a netip.Addr) bool {
	x := m.addrs[a]
	return x != nil && (x.state == Conflict || x.probe)
}

// Own adds an address. It does nothing if the address is there.
func (m *Machine) Own(now time.Time, a netip.Addr, probe bool) {
	if m.addrs[a] != nil {
		return
	}
	x := &address{probe: probe}
	m.addrs[a] = x
	m.start(now, a, x)
}

// Release removes an address. It does nothing if the address is not there.
func (m *Machine) Release(a netip.Addr) {
	if m.addrs[a] == nil {
		return
	}
	m.out.Shut(a)
	delete(m.addrs, a)
	m.queue.Drop(a)
}

// Clear forgets all addresses without calls of the Output.
func (m *Machine) Clear() {
	clear(m.addrs)
	m.queue = delayqueue.Queue[netip.Addr]{}
}

// SetUsable states whether frames can be sent. Addresses that were announced remain open, because
// the interfaces that can't send are closed as such.
func (m *Machine) SetUsable(now time.Time, usable bool) {
	if m.usable == usable {
		return
	}
	m.usable = usable
	for a, x := range m.addrs {
		switch {
		case x.state == Conflict && usable:
			x.step, x.retries = 0, 0
			m.queue.Set(a, now)
		case usable:
			m.start(now, a, x)
		default:
			m.queue.Drop(a)
			if x.state != Conflict {
				m.enter(now, a, x, Waiting)
			}
		}
	}
}

// Reannounce begins a new run of announcements of all announced addresses.
func (m *Machine) Reannounce(now time.Time) {
	for a, x := range m.addrs {
		if x.state == Announced {
			x.step, x.retries = 0, 0
			m.queue.Set(a, now)
		}
	}
}

// Observe takes in that another station says something about an address.
func (m *Machine) Observe(now time.Time, a netip.Addr, kind frame.Kind, from Rival) {
	x := m.addrs[a]
	if x == nil {
		return
	}
	switch x.state {
	case Probing:
		if kind == frame.Holds || kind == frame.Probe { // two stations may probe at the same time
			m.contest(now, a, x, from)
		}
	case Announced:
		if kind == frame.Holds {
			m.defend(now, a, x, from)
		}
	case Conflict:
		if kind == frame.Holds {
			m.contest(now, a, x, from)
		}
	}
}

// First returns when Run must be called next.
func (m *Machine) First() (at time.Time, ok bool) {
	_, at, ok = m.queue.First()
	return at, ok
}

// Run does what is due, for at most limit addresses, the earliest first.
func (m *Machine) Run(now time.Time, limit int) {
	for a := range m.queue.Due(now) {
		if limit--; limit < 0 {
			return
		}
		x := m.addrs[a]
		switch x.state {
		case Probing:
			m.stepProbe(now, a, x)
		case Announced:
			m.stepAnnounce(now, a, x)
		case Conflict:
			m.stepCheck(now, a, x)
		default:
			m.queue.Drop(a)
		}
	}
}

// start begins with an address that isn't sent yet.
func (m *Machine) start(now time.Time, a netip.Addr, x *address) {
	x.step, x.retries = 0, 0
	if x.dispute != nil {
		x.dispute.defended = time.Time{}
	}
	switch {
	case !m.usable:
		m.enter(now, a, x, Waiting)
	case x.probe:
		m.enter(now, a, x, Probing)
		m.queue.Set(a, now.Add(rand.N(probeWait)))
	default:
		m.announce(now, a, x)
	}
}

func (m *Machine) announce(now time.Time, a netip.Addr, x *address) {
	x.probe, x.step, x.retries = false, 0, 0
	m.out.Open(a)
	m.enter(now, a, x, Announced)
	m.queue.Set(a, now)
}

func (m *Machine) enter(now time.Time, a netip.Addr, x *address, s State) {
	if x.state == s && !x.since.IsZero() {
		return
	}
	x.state, x.since = s, now
	if s != Conflict && x.dispute != nil {
		x.dispute.rival = Rival{}
	}
	m.out.Report(a, s, x.rival())
}

func (m *Machine) stepProbe(now time.Time, a netip.Addr, x *address) {
	count, wait := uint8(probeCount), announceWait
	if a.Is6() {
		count, wait = probeCount6, announceWait6
	}
	if x.step == count {
		m.announce(now, a, x)
		return
	}
	if !m.send(now, a, x, Probe) {
		return
	}
	if x.step++; x.step < count {
		wait = probeMin + rand.N(probeMax-probeMin)
	}
	m.queue.Set(a, now.Add(wait))
}

func (m *Machine) stepAnnounce(now time.Time, a netip.Addr, x *address) {
	if !m.send(now, a, x, Announce) {
		return
	}
	if x.step >= firstVerified {
		m.out.Send(a, Verify) // a lost one is repeated at the next step
	}
	if x.step++; int(x.step) < len(steps) {
		m.queue.Set(a, now.Add(steps[x.step]))
		return
	}
	x.step = uint8(len(steps))
	m.queue.Set(a, m.align(now.Add(Period-rand.N(Period/6))))
}

// align returns the last point of the grid before t.
func (m *Machine) align(t time.Time) time.Time {
	if m.epoch.IsZero() {
		m.epoch = t
	}
	return t.Add(-(t.Sub(m.epoch) % grid))
}

// send sends a frame. It returns false if the frame is to be sent again later.
func (m *Machine) send(now time.Time, a netip.Addr, x *address, f Frame) bool {
	if m.out.Send(a, f) || x.retries >= maxRetries {
		x.retries = 0
		return true
	}
	x.retries++
	m.queue.Set(a, now.Add(Retry))
	return false
}

// defend answers the first claim of another station with an announcement, and gives up if the claims
// continue. A second after the announcement comes the question whose answer counts.
func (m *Machine) defend(now time.Time, a netip.Addr, x *address, from Rival) {
	d := x.disputed()
	switch since := now.Sub(d.defended); {
	case d.defended.IsZero() || since > DefendInterval:
		d.defended, x.step, x.retries = now, firstVerified-1, 0
		m.queue.Set(a, now.Add(Defer))
	case since > Grace:
		m.out.Shut(a)
		if now.Sub(x.since) > RetryHi {
			d.pause.Reset()
		}
		m.contest(now, a, x, from)
	}
}

// contest enters or prolongs a conflict.
func (m *Machine) contest(now time.Time, a netip.Addr, x *address, from Rival) {
	d := x.disputed()
	first, changed := x.state != Conflict, d.rival != from
	d.rival, x.probe = from, false // the checks take the place of probing
	if !first && changed {
		m.out.Report(a, Conflict, from)
	}
	m.enter(now, a, x, Conflict)
	if first || x.step > 0 { // otherwise the next check is still to come
		x.step, x.retries = 0, 0
		m.queue.Set(a, now.Add(d.pause.Next()))
	}
	if !m.usable {
		m.queue.Drop(a)
	}
}

// stepCheck asks whether the other station still has the address.
func (m *Machine) stepCheck(now time.Time, a netip.Addr, x *address) {
	if x.step == checks {
		m.start(now, a, x)
		return
	}
	if !m.send(now, a, x, Verify) {
		return
	}
	x.step++
	m.queue.Set(a, now.Add(checkPause))
}
