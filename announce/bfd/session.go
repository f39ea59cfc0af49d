package bfd

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// slowInterval is the least transmission interval of a session that is not up (RFC 5880, 6.8.3).
const slowInterval = time.Second

// session is the state machine of one session. It does no I/O and has no clock: the caller passes
// the time, sends what it returns, and calls expire at the deadline.
type session struct {
	Settings
	mine   uint32 // our discriminator
	state  State
	diag   Diag
	since  time.Time
	reason string // why it is not up
	failed bool
	downs  uint64

	// The peer's latest values; theirs is 0 while no packet of the peer is known.
	theirs       uint32
	remote       State
	multiplier   uint8
	minTX, minRX time.Duration
	demand       bool

	// poll means that a change of our parameters awaits the peer's Final bit. Until then, the lower
	// of the old and new transmission interval and the longer of the old and new detection time
	// apply (RFC 5880, 6.8.3).
	poll           bool
	sendAt, hearAt time.Duration // our transmission and reception intervals in effect
	suspect        bool          // the detection time has passed once, see Speaker.expire
}

func newSession(c Settings, discriminator uint32, now time.Time) *session {
	return &session{Settings: c, mine: discriminator, state: Down, since: now,
		remote: Down, minRX: 1, // the RFC's initial value: anything but 0, which forbids packets
		sendAt: c.Interval, hearAt: c.Interval, reason: fmt.Sprintf("no packet from %s yet", c.Peer)}
}

// change sets new parameters.
func (s *session) change(c Settings) {
	if c.Interval != s.Interval || c.Multiplier != s.Multiplier {
		if s.state == Up {
			s.poll = true
			s.sendAt, s.hearAt = min(s.sendAt, c.Interval), max(s.hearAt, c.Interval)
		} else {
			s.sendAt, s.hearAt = c.Interval, c.Interval
		}
	}
	s.Settings = c
}

// receive processes a packet that parse accepted and that belongs to this session (RFC 5880,
// 6.8.6). A packet is to be sent at once if reply (with the Final bit) or changed is set.
func (s *session) receive(now time.Time, p packet) (reply, changed bool) {
	s.theirs, s.remote, s.multiplier, s.demand = p.mine, p.state, p.multiplier, p.demand
	s.minTX, s.minRX, s.suspect = p.minTX, p.minRX, false
	if p.final && s.poll {
		s.poll = false
		s.sendAt, s.hearAt = s.Interval, s.Interval
	}
	before := s.state
	switch {
	case p.state == AdminDown: // not a failure: BFD was shut down on purpose (RFC 5882, 3.2)
		s.failed, s.reason = false, fmt.Sprintf("%s has shut its session down", s.Peer)
		if s.state != Down {
			s.down(now, DiagNeighbor, s.reason, false)
		}
	case s.state == Down && p.state == Down:
		s.set(now, Init, fmt.Sprintf("%s sends packets, but has not confirmed ours", s.Peer))
	case s.state == Down && p.state == Init, s.state == Init && p.state != Down:
		s.set(now, Up, "")
		s.diag, s.failed = DiagNone, false
		// The transmission interval falls from a second to the configured one.
		s.poll, s.sendAt, s.hearAt = true, s.Interval, s.Interval
	case s.state == Up && p.state == Down:
		s.down(now, DiagNeighbor, fmt.Sprintf("%s reports: %s", s.Peer, p.diag), p.yours != 0 && !beginsAnew(p.diag))
	}
	return p.poll, s.state != before
}

// beginsAnew reports whether a peer that signals Down with a diagnostic has begun its session anew, and
// lost no packet. FRR 8.4 does that when its BGP session is established. If the peer has a reason to end
// the BGP session, it does that itself. A sender without our discriminator has begun anew, or is not the peer.
func beginsAnew(d Diag) bool { return d == DiagNone || d == DiagNeighbor }

// expire processes the end of the detection time (RFC 5880, 6.8.4) and reports whether the state
// changed.
func (s *session) expire(now time.Time) bool {
	detect := s.detect()
	s.theirs, s.suspect = 0, false
	if s.state != Init && s.state != Up {
		s.reason = fmt.Sprintf("no packet from %s for %s", s.Peer, detect)
		return false
	}
	s.down(now, DiagExpired, fmt.Sprintf("no packet from %s for %s", s.Peer, detect), s.state == Up)
	return true
}

func (s *session) down(now time.Time, d Diag, reason string, failed bool) {
	s.set(now, Down, reason)
	s.diag, s.poll, s.sendAt, s.hearAt = d, false, s.Interval, s.Interval
	if failed {
		s.failed = true
		s.downs++
	}
}

func (s *session) set(now time.Time, state State, reason string) {
	s.state, s.since, s.reason = state, now, reason
}

// detect returns the detection time: the peer's multiplier times the agreed interval (RFC 5880,
// 6.8.4). It is 0 while the peer has sent no packet.
func (s *session) detect() time.Duration {
	return time.Duration(s.multiplier) * max(s.hearAt, s.minTX)
}

// interval returns the time to the next packet, with jitter: 75 to 100 % of the agreed interval, 75
// to 90 % if the loss of one packet ends the session (RFC 5880, 6.8.7). It returns false if no
// periodic packets may be sent.
func (s *session) interval() (time.Duration, bool) {
	if s.minRX == 0 || s.demand && s.state == Up && s.remote == Up && !s.poll {
		return 0, false
	}
	own := s.sendAt
	if s.state != Up {
		own = max(own, slowInterval)
	}
	agreed := max(own, s.minRX)
	most := agreed / 4
	if s.Multiplier == 1 {
		most = agreed * 15 / 100
	}
	least := agreed * 3 / 4
	return least + rand.N(most+1), true
}

// packet returns the packet to send now.
func (s *session) packet(final bool) packet {
	p := packet{state: s.state, diag: s.diag, final: final, poll: s.poll && !final, multiplier: s.Multiplier,
		mine: s.mine, yours: s.theirs, minTX: s.Interval, minRX: s.Interval}
	if s.state != Up {
		p.minTX = max(p.minTX, slowInterval)
	}
	return p
}

func (s *session) status() Status {
	st := Status{Key: s.Key, State: s.state, Since: s.since, Failed: s.failed, Reason: s.reason, Downs: s.downs}
	if s.state == Up {
		st.Detect = s.detect()
	}
	return st
}
