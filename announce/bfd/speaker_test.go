package bfd

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
)

// fabric connects speakers in memory. A host is identified by its address.
type fabric struct {
	mu    sync.Mutex
	hosts map[netip.Addr]chan datagram
	cut   bool // drops every packet
	ttl   int
	count map[netip.Addr]int // packets by sender
	mode  map[netip.Addr]error
}

type datagram struct {
	from origin
	data []byte
}

// nic is a host's access to the fabric.
type nic struct {
	*fabric
	addr netip.Addr
}

func newFabric() *fabric {
	return &fabric{hosts: map[netip.Addr]chan datagram{}, ttl: 255, count: map[netip.Addr]int{}, mode: map[netip.Addr]error{}}
}

type inbox struct {
	nic
	ch   chan datagram
	done chan struct{}
	once sync.Once
}

func (n nic) listen(socketKind) (receiver, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.mode[n.addr]; err != nil {
		return nil, err
	}
	ch := make(chan datagram, 100)
	n.hosts[n.addr] = ch
	return &inbox{nic: n, ch: ch, done: make(chan struct{})}, nil
}

func (i *inbox) receive(b []byte) (int, origin, error) {
	select {
	case d := <-i.ch:
		if d.data == nil {
			panic("a fault")
		}
		return copy(b, d.data), d.from, nil
	case <-i.done:
		return 0, origin{}, net.ErrClosed
	}
}

func (i *inbox) Close() error { i.once.Do(func() { close(i.done) }); return nil }

type outbox struct {
	nic
	to netip.Addr
}

func (n nic) dial(c Settings, _ uint16) (sender, error) { return outbox{n, c.Peer}, nil }

func (o outbox) port() uint16 { return firstSource }

func (o outbox) send(b []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count[o.addr]++
	if ch := o.hosts[o.to]; ch != nil && !o.cut {
		select {
		case ch <- datagram{origin{o.addr, o.ttl}, append([]byte(nil), b...)}:
		default:
		}
	}
	return nil
}

func (outbox) Close() error { return nil }

func (f *fabric) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

var left, right = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")

// pair runs two speakers with a session between them. The channels receive their reports.
func pair(t *testing.T, f *fabric, a, b Settings) (l, r *Speaker, lch, rch chan Status, stopRight func()) {
	t.Helper()
	start := func(addr netip.Addr, c Settings) (*Speaker, chan Status, func()) {
		ch := make(chan Status, 100)
		s := newSpeaker(Config{Report: func(st Status) { ch <- st }}, nic{f, addr})
		s.Set(c)
		stop := scope.Go(t, s.Run)
		return s, ch, stop
	}
	a.Peer, b.Peer = right, left
	l, lch, _ = start(left, a)
	r, rch, stopRight = start(right, b)
	return l, r, lch, rch, stopRight
}

func awaitState(t *testing.T, ch chan Status, want State) Status {
	t.Helper()
	for {
		select {
		case st := <-ch:
			if st.State == want {
				return st
			}
		case <-time.After(time.Minute):
			t.Fatalf("no session became %v", want)
		}
	}
}

func TestSpeakers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFabric()
		l, _, lch, rch, stopRight := pair(t, f, Settings{Interval: 50 * ms, Multiplier: 3}, Settings{Interval: 100 * ms, Multiplier: 5})
		awaitState(t, lch, Up)
		awaitState(t, rch, Up)

		time.Sleep(10 * time.Second) // fake: a stable session, whose packets can be counted
		f.set(func() { clear(f.count) })
		time.Sleep(10 * time.Second)
		f.set(func() {
			for _, addr := range []netip.Addr{left, right} {
				// 100 ms is the agreed interval of both directions, with 75 to 100 % of it.
				expect.Between(t, f.count[addr], 100, 134, "%s sent packets in 10 s", addr)
			}
		})
		expect.AtMost(t, len(lch)+len(rch), 0, "a stable session changed its state")
		st := l.Sessions()[0]
		if st.State != Up || st.Detect != 500*ms || st.Reason != "" {
			t.Errorf("status %+v", st)
		}

		f.set(func() { f.cut = true })
		began := time.Now()
		st = awaitState(t, lch, Down)
		if took := time.Since(began); took < 400*ms || took > 510*ms || !st.Failed || st.Downs != 1 || st.Reason != "no packet from 10.0.0.2 for 500ms" {
			t.Errorf("after %v: %+v", took, st)
		}
		awaitState(t, rch, Down)
		f.set(func() { clear(f.count) })
		time.Sleep(10 * time.Second)
		f.set(func() {
			expect.Between(t, f.count[left], 9, 15, "packets in 10 s while down")
			f.cut = false
		})
		if st = awaitState(t, lch, Up); st.Failed {
			t.Errorf("status %+v after the session came back", st)
		}
		awaitState(t, rch, Up)

		stopRight()
		st = awaitState(t, lch, Down)
		if st.Failed || st.Reason != "10.0.0.2 has shut its session down" {
			t.Errorf("status %+v after the peer's graceful stop", st)
		}
	})
}

// New intervals keep the session up, and agree with a poll sequence.
func TestChangeOfIntervals(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, r, lch, rch, _ := pair(t, newFabric(), Settings{Interval: 50 * ms, Multiplier: 3}, Settings{Interval: 50 * ms, Multiplier: 3})
		awaitState(t, lch, Up)
		awaitState(t, rch, Up)
		for _, interval := range []time.Duration{400 * ms, 20 * ms} {
			l.Set(Settings{Key: Key{Peer: right}, Interval: interval, Multiplier: 3})
			want := 3 * max(interval, 50*ms)
			wait.Until(t, "both sides agree", func() bool {
				return l.Sessions()[0].Detect == want && r.Sessions()[0].Detect == want
			}, func() any { return l.Sessions() }, func() any { return r.Sessions() })
		}
		expect.AtMost(t, len(lch)+len(rch), 0, "a change of the interval changed the state")
	})
}

func TestReasonsOfASessionThatNeverComesUp(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(f *fabric)
		want  string
	}{
		{"silence", func(f *fabric) { f.cut = true }, "no packet from 10.0.0.2 yet"},
		{"TTL", func(f *fabric) { f.ttl = 254 }, "TTL 254, want 255: the peer is not directly connected"},
		{"port in use", func(f *fabric) { f.mode[left] = errors.New("listen on UDP port 3784: in use") }, "listen on UDP port 3784: in use"},
	} {
		bubble.Run(t, c.name, func(t *testing.T) {
			f := newFabric()
			c.spoil(f)
			l, _, lch, _, _ := pair(t, f, Settings{Interval: 50 * ms, Multiplier: 3}, Settings{Interval: 50 * ms, Multiplier: 3})
			time.Sleep(30 * time.Second)
			if st := l.Sessions()[0]; st.State != Down || st.Failed || !strings.Contains(st.Reason, c.want) {
				t.Errorf("status %+v, want the reason %q", st, c.want)
			}
			f.set(func() { f.cut, f.ttl = false, 255; clear(f.mode) })
			awaitState(t, lch, Up)
		})
	}
}

// A fault in a receiver costs no more than its socket.
func TestFaultOfAReceiver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFabric()
		l, _, lch, _, _ := pair(t, f, Settings{Interval: 50 * ms, Multiplier: 3}, Settings{Interval: 50 * ms, Multiplier: 3})
		awaitState(t, lch, Up)
		f.set(func() { f.hosts[left] <- datagram{} })
		time.Sleep(10 * time.Second)
		expect.Equal(t, l.Sessions()[0].State, Up, "state")
	})
}

// A process that was stalled finds its timers expired and its packets unread. It reads the packets
// before it takes the peer as lost.
func TestStalledProcess(t *testing.T) {
	f := newFabric()
	s := newSpeaker(Config{}, nic{f, left})
	c := sample
	c.Peer = right
	s.Set(c)
	now := time.Now()
	e := s.sessions[c.Key]
	packet := func(state State) []byte {
		return packet{state: state, multiplier: 3, mine: 9, yours: e.mine, minTX: 50 * ms, minRX: 50 * ms}.append(nil)
	}
	s.receive(now, socketKind{}, origin{right, 255}, packet(Init))
	for _, step := range []struct {
		after  time.Duration
		unread bool // a packet is read after the timers
		want   State
	}{
		{100 * ms, false, Up},
		{5 * time.Second, true, Up},
		{suspicion, false, Up},
		{149 * ms, false, Up}, // 149 + 3 ms since the packet: suspect
		{suspicion - 1, false, Up},
		{1, false, Down},
	} {
		now = now.Add(step.after)
		s.tick(now)
		if step.unread {
			s.receive(now, socketKind{}, origin{right, 255}, packet(Up))
		}
		must.Equal(t, e.state, step.want, "after %+v", step)
	}
}

// Packets that have passed more routers than allowed change nothing.
func TestPacketsFromFartherAway(t *testing.T) {
	f := newFabric()
	s := newSpeaker(Config{}, nic{f, left})
	c := sample
	c.Peer, c.Multihop, c.LeastTTL = right, true, 254
	s.Set(c)
	e := s.sessions[Key{Peer: right}]
	init := packet{state: Init, multiplier: 3, mine: 9, yours: e.mine, minTX: 50 * ms, minRX: 50 * ms}.append(nil)
	for ttl, want := range map[int]State{0: Down, 253: Down, 254: Up} {
		e.state = Down
		s.receive(time.Now(), socketKind{multihop: true}, origin{right, ttl}, init)
		if e.state != want || (e.discard != "") != (want == Down) {
			t.Errorf("TTL %d: %v, %q", ttl, e.state, e.discard)
		}
	}
}

// A session of the earlier process goes on if the peer still waits for it.
func TestInherited(t *testing.T) {
	for after, want := range map[time.Duration]State{10 * time.Second: Up, 10*time.Second + 1: Down} {
		bubble.Test(t, func(t *testing.T) {
			s := newSpeaker(Config{Until: time.Now().Add(10 * time.Second), Inherited: []Kept{{Key: Key{Peer: right}, Mine: 7, Theirs: 9, Multiplier: 3, MinTX: 50 * ms, MinRX: 50 * ms}}}, nic{newFabric(), left})
			scope.Go(t, s.Run)
			time.Sleep(after)
			s.Set(Settings{Key: Key{Peer: left}, Interval: 50 * ms, Multiplier: 3}) // a peer that the earlier process did not have
			s.Set(Settings{Key: Key{Peer: right}, Interval: 50 * ms, Multiplier: 3})
			expect.Equal(t, s.Sessions()[1].State, want, "state after %s", after)
			expect.Len(t, s.Inherited, 0, "sessions that nobody goes on with")
		})
	}
}
