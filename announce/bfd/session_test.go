package bfd

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

const ms = time.Millisecond

var sample = Settings{Key: Key{Peer: netip.MustParseAddr("10.0.0.1")}, Interval: 50 * ms, Multiplier: 3}

// The state machine of RFC 5880, 6.2 and 6.8.6.
func TestStates(t *testing.T) {
	const expired = State(9)
	for _, c := range []struct {
		from, event, to State
		diag            Diag
		failed          bool
		reason          string
	}{
		{Down, Down, Init, 0, false, "has not confirmed"},
		{Down, Init, Up, 0, false, ""},
		{Down, Up, Down, 0, false, "no packet"},
		{Down, AdminDown, Down, 0, false, "has shut its session down"},
		{Down, expired, Down, 0, false, "no packet from 10.0.0.1 for 300ms"},
		{Init, Down, Init, 0, false, ""},
		{Init, Init, Up, 0, false, ""},
		{Init, Up, Up, 0, false, ""},
		{Init, AdminDown, Down, DiagNeighbor, false, "has shut its session down"},
		{Init, expired, Down, DiagExpired, false, "no packet from 10.0.0.1 for 300ms"},
		{Up, Down, Down, DiagNeighbor, true, "10.0.0.1 reports: control detection time expired"},
		{Up, Init, Up, 0, false, ""},
		{Up, Up, Up, 0, false, ""},
		{Up, AdminDown, Down, DiagNeighbor, false, "has shut its session down"},
		{Up, expired, Down, DiagExpired, true, "no packet from 10.0.0.1 for 300ms"},
	} {
		s := newSession(sample, 7, time.Time{})
		s.state, s.multiplier, s.minTX = c.from, 3, 100*ms
		changed := false
		if c.event == expired {
			changed = s.expire(time.Time{})
		} else {
			_, changed = s.receive(time.Time{}, packet{state: c.event, diag: DiagExpired, multiplier: 3, mine: 9, yours: 7, minTX: 100 * ms, minRX: 50 * ms})
		}
		if s.state != c.to || s.diag != c.diag || s.failed != c.failed || !strings.Contains(s.reason, c.reason) || changed != (c.from != c.to) {
			t.Errorf("%v in %v: %v, diagnostic %v, failed %t, changed %t, reason %q; want %+v", c.event, c.from, s.state, s.diag, s.failed, changed, s.reason, c)
		}
	}
}

// A peer that signals Down has a failed path only if it says so. One that begins its session anew decides
// by itself about its other protocols.
func TestPeerSignalsDown(t *testing.T) {
	for diag, failed := range map[Diag]bool{DiagNone: false, DiagNeighbor: false, DiagExpired: true, 4: true, 5: true} {
		for yours, failed := range map[uint32]bool{7: failed, 0: false} { // 0: anybody could send this
			s := newSession(sample, 7, time.Time{})
			s.state = Up
			s.receive(time.Time{}, packet{state: Down, diag: diag, multiplier: 3, mine: 9, yours: yours, minTX: 100 * ms, minRX: 50 * ms})
			if s.state != Down || s.failed != failed || (s.downs > 0) != failed {
				t.Errorf("%v to discriminator %d: %v, failed %t, want %t", diag, yours, s.state, s.failed, failed)
			}
		}
	}
}

// Intervals follow the slower side, with jitter (RFC 5880, 6.8.2, 6.8.4 and 6.8.7).
func TestIntervals(t *testing.T) {
	for _, c := range []struct {
		name         string
		state        State
		own          uint8
		minTX, minRX time.Duration
		lo, hi       time.Duration // of the interval; 0: no packets
		detect       time.Duration
	}{
		{"up", Up, 3, 50 * ms, 50 * ms, 37500 * time.Microsecond, 50 * ms, 150 * ms},
		{"the peer wants fewer", Up, 3, 50 * ms, 400 * ms, 300 * ms, 400 * ms, 150 * ms},
		{"the peer sends fewer", Up, 3, 200 * ms, 10 * ms, 37500 * time.Microsecond, 50 * ms, 600 * ms},
		{"each packet counts", Up, 1, 50 * ms, 50 * ms, 37500 * time.Microsecond, 45 * ms, 150 * ms},
		{"slow until up", Init, 3, time.Second, 50 * ms, 750 * ms, time.Second, 3 * time.Second},
		{"the peer wants none", Up, 3, 50 * ms, 0, 0, 0, 150 * ms},
	} {
		s := newSession(sample, 7, time.Time{})
		s.state, s.remote, s.Multiplier, s.multiplier, s.minTX, s.minRX = c.state, c.state, c.own, 3, c.minTX, c.minRX
		least, most := time.Hour, time.Duration(0)
		for range 2000 {
			d, ok := s.interval()
			expect.Equal(t, ok, (c.hi > 0), "%s: periodic packets", c.name)
			least, most = min(least, d), max(most, d)
		}
		if spread := (c.hi - c.lo) * 9 / 10; least < c.lo || most > c.hi || most-least < spread {
			t.Errorf("%s: %v to %v, want %v to %v", c.name, least, most, c.lo, c.hi)
		}
		expect.Equal(t, s.detect(), c.detect, "%s: detection time", c.name)
	}
}

// A change of the interval takes effect in the safe direction first, and fully with the Final bit
// (RFC 5880, 6.8.3).
func TestPollSequence(t *testing.T) {
	for _, c := range []struct {
		next                     time.Duration
		sendBefore, detectBefore time.Duration
		sendAfter, detectAfter   time.Duration
		theirInterval            time.Duration
	}{
		{200 * ms, 50 * ms, 600 * ms, 200 * ms, 600 * ms, 50 * ms}, // slower
		{10 * ms, 10 * ms, 150 * ms, 10 * ms, 30 * ms, 10 * ms},    // faster
	} {
		s := newSession(sample, 7, time.Time{})
		up := packet{state: Up, multiplier: 3, mine: 9, yours: 7, minTX: c.theirInterval, minRX: 1}
		s.receive(time.Time{}, packet{state: Init, multiplier: 3, mine: 9, yours: 7, minTX: time.Second, minRX: 1})
		if p := s.packet(false); s.state != Up || !p.poll || p.minTX != 50*ms {
			t.Fatalf("%v, packet %+v: want a poll sequence when the session comes up", s.state, p)
		}
		final := up
		final.final = true
		s.receive(time.Time{}, final)
		must.False(t, s.packet(false).poll, "the poll sequence goes on after the Final bit")
		next := sample
		next.Interval = c.next
		s.change(next)
		if p := s.packet(false); !p.poll || p.minTX != c.next || s.sendAt != c.sendBefore || s.detect() != c.detectBefore {
			t.Errorf("to %v: packet %+v, interval %v, detection %v; want %+v", c.next, p, s.sendAt, s.detect(), c)
		}
		expect.False(t, s.packet(true).poll, "a packet has Poll and Final")
		s.receive(time.Time{}, final)
		if s.sendAt != c.sendAfter || s.detect() != c.detectAfter || s.poll || s.state != Up {
			t.Errorf("to %v: interval %v, detection %v, %v after the poll sequence; want %+v", c.next, s.sendAt, s.detect(), s.state, c)
		}
	}
}
