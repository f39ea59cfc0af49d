package heartbeat

import (
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/announce"
)

const (
	// maxPeers bounds the hosts that are remembered. More than ManyPeers are reported: each host
	// sends to each other one.
	maxPeers  = 256
	ManyPeers = 32

	// echoBeats is how many heartbeats old a message may be that proves a new epoch.
	echoBeats = 20

	// burst bounds the messages to one peer that wait for its acknowledgment.
	burst = 32

	// forgetLearned is after how long a dead peer that isn't configured is forgotten.
	forgetLearned = time.Minute
)

// Options are the settings of an Exchange. All but Config and Peers are required.
type Options struct {
	Name     string // of this host: at most 253 bytes
	Keys     [][]byte
	Peers    []netip.AddrPort // where to send; others are learned from their messages
	Interval time.Duration
	Missed   int // 1 to 255
	Weight   int // 1 to 65535
	// Config is a digest of the settings that should be equal on all hosts.
	Config uint64
}

// Sink has what other hosts say. *announce.Decider implements it.
type Sink interface {
	SetHost(announce.Host)
	RemoveHost(name string) // with its claims
	// SetClaim changes a claim of a host that was set before, and returns what it was: empty if there was
	// none. An empty claim removes it.
	SetClaim(host string, c announce.Claim) (former announce.Claim)
	// Claims yields the claims of a host. They must not change meanwhile.
	Claims(host string) iter.Seq[announce.Claim]
}

// Counters count messages since the start.
type Counters struct {
	Sent, Received uint64
	Malformed      uint64
	Forged         uint64 // without a key of this host
	Replayed       uint64
	Misdirected    uint64 // to another host
	Duplicates     uint64 // from a second host with the name of another one
	Refused        uint64 // from more hosts than are remembered
	Mismatches     uint64 // copies of claims that differed
}

// Exchange is this host's side of the heartbeats. It is not safe for concurrent use.
type Exchange struct {
	o     Options
	sink  Sink
	keys  keys
	id    uint64 // nameID of this host
	epoch uint64
	count Counters

	started  time.Time
	seq      uint64
	beat     time.Time         // of the next heartbeat
	beats    uint64            // sent so far
	recent   [echoBeats]uint64 // seq at the latest heartbeats, as a ring
	draining bool
	asked    time.Time // of the last Listen
	askedSeq uint64

	claims claims
	dests  []*dest
	peers  map[string]*peer
	buffer []byte
}

// dest is an address to send to.
type dest struct {
	addr    netip.AddrPort
	peer    *peer // nil: unknown yet
	learned bool
}

// New returns an exchange that sends its first heartbeats at once. Epoch is random and not 0.
func New(o Options, epoch uint64, sink Sink, now time.Time) *Exchange {
	e := &Exchange{epoch: epoch, sink: sink, started: now, beat: now, claims: claims{at: map[netip.Addr]int{}}, peers: map[string]*peer{}, seq: 1}
	e.Configure(o)
	e.Listen(now)
	return e
}

// Configure changes the settings, except for the name.
func (e *Exchange) Configure(o Options) {
	if e.o.Name == "" {
		e.id = nameID(o.Name)
	} else {
		o.Name = e.o.Name
	}
	e.o = o
	e.keys = newKeys(o.Keys)
	former := e.dests
	e.dests = nil
	for _, addr := range o.Peers {
		d := &dest{addr: addr}
		if i := slices.IndexFunc(former, func(d *dest) bool { return d.addr == addr }); i >= 0 {
			d.peer = former[i].peer
		}
		if !slices.ContainsFunc(e.dests, func(d *dest) bool { return d.addr == addr }) {
			e.dests = append(e.dests, d)
		}
	}
	for _, d := range former {
		if d.peer != nil && e.dest(d.addr) == nil {
			d.learned = true
			e.dests = append(e.dests, d)
		}
	}
}

// Set changes what this host says of a VIP. It is sent with the next Send.
func (e *Exchange) Set(c announce.Claim) { e.claims.set(c) }

// SetDraining changes whether this host drains, and lets Send say so at once.
func (e *Exchange) SetDraining(draining bool, now time.Time) {
	if e.draining != draining {
		e.draining, e.beat = draining, now
	}
}

// Close removes all hosts from the sink.
func (e *Exchange) Close() {
	for name := range e.peers {
		e.sink.RemoveHost(name)
	}
}

// Beat returns when the next heartbeat is due.
func (e *Exchange) Beat() time.Time { return e.beat }

// Interval returns the time between two heartbeats.
func (e *Exchange) Interval() time.Duration { return e.o.Interval }

// Timeout returns how long a host may be silent before others consider it dead.
func (e *Exchange) Timeout() time.Duration { return e.o.Interval * time.Duration(e.o.Missed) }

func (e *Exchange) dest(addr netip.AddrPort) *dest {
	for _, d := range e.dests {
		if d.addr == addr {
			return d
		}
	}
	return nil
}

// bind remembers which peer is at an address. An unknown address is sent to, too.
func (e *Exchange) bind(from netip.AddrPort, p *peer) {
	d := e.dest(from)
	if d == nil {
		d = &dest{addr: from, learned: true}
		e.dests = append(e.dests, d)
	}
	d.peer = p
}

// Excuse extends the time of all peers: this host did not run for that long, so it is not their
// silence.
func (e *Exchange) Excuse(paused time.Duration) {
	for _, p := range e.peers {
		p.received = p.received.Add(paused)
	}
}

// Advance marks peers dead whose time is over. Call it when Next says so, after Receive of every
// packet that has arrived.
func (e *Exchange) Advance(now time.Time) {
	e.expire(now)
	for name, p := range e.peers {
		if p.alive || now.Sub(p.since) < forgetLearned || slices.ContainsFunc(e.dests, func(d *dest) bool { return d.peer == p && !d.learned }) {
			continue
		}
		if p.epoch == 0 && now.Sub(p.waiting.at) < forgetLearned {
			continue
		}
		e.dests = slices.DeleteFunc(e.dests, func(d *dest) bool { return d.peer == p })
		delete(e.peers, name)
		e.sink.RemoveHost(name)
	}
}

// Next returns when Advance or Send has something to do even without a packet or change.
func (e *Exchange) Next() time.Time {
	next := e.beat
	for _, p := range e.peers {
		if end := p.received.Add(p.timeout); p.alive && end.Before(next) {
			next = end
		}
	}
	return next
}

// Send passes the packets that are due to emit: heartbeats, changes, and answers. It must be called
// after the decision about what was received, so that an acknowledgment covers its consequences.
// The buffer is reused.
func (e *Exchange) Send(now time.Time, emit func(to netip.AddrPort, packet []byte)) {
	due := !now.Before(e.beat)
	if due {
		if e.beat = e.beat.Add(e.o.Interval); !e.beat.After(now) {
			e.beat = now.Add(e.o.Interval)
		}
		e.beats++
		e.recent[e.beats%echoBeats] = e.seq
		acked := e.claims.number
		for _, p := range e.peers {
			// Claims without an acknowledgment are sent again. A dead peer may receive this host
			// although its acknowledgments don't arrive, so it gets the claims one message at a time.
			if p.alive || p.sent == e.claims.number {
				p.sent = p.acked
			}
			p.resent = p.sent
			if p.alive {
				acked = min(acked, p.acked)
			}
		}
		e.claims.tidy(acked)
	}
	for _, d := range e.dests {
		e.sendTo(d, due, now, emit)
	}
	for _, p := range e.peers {
		if g := &p.waiting; g.answer {
			g.answer, g.answered = false, now
			m := e.message(now)
			m.to, m.echoEpoch, m.echoSeq = nameID(p.name), g.epoch, g.seq
			m.flags |= flagReceives | flagReply
			e.emit(m, g.from, emit)
		}
	}
}

// sendTo sends a heartbeat if it is due, all changes that the peer lacks, and an acknowledgment if
// the peer waits for one.
func (e *Exchange) sendTo(d *dest, due bool, now time.Time, emit func(netip.AddrPort, []byte)) {
	p := d.peer
	if p == nil || !p.alive && p.waiting.epoch != 0 {
		if due {
			e.emit(e.message(now), d.addr, emit)
		}
		return
	}
	if d.addr != p.addr && !due {
		return // another address of the peer gets its messages with the heartbeats
	}
	// Claims that wait for an acknowledgment go to each address of the peer with the heartbeats, because one path may lose
	// what another one delivers. Another host with the name of this one gets no claims.
	informs := p.name != e.o.Name
	if due {
		p.sent = p.resent
	}
	for n := 0; n < burst && (due || p.reply || informs && p.alive && p.sent < e.claims.number); n++ {
		m := e.message(now)
		m.to, m.echoEpoch, m.echoSeq, m.acked = nameID(p.name), p.epoch, p.seq, p.copy.number
		if p.alive {
			m.flags |= flagReceives
		}
		if informs {
			e.fill(m, p)
			if m.upto > m.base && (p.sent == e.claims.number || n == burst-1) {
				m.flags |= flagReply
			}
		}
		e.emit(m, d.addr, emit)
		due, p.reply = false, false
	}
}

// fill adds the next changes that were not sent to the peer.
func (e *Exchange) fill(m *message, p *peer) {
	m.base, m.upto = p.sent, p.sent
	left := room(e.o.Name)
	for n := range e.claims.after(p.sent) {
		if left -= claimSize(n.Claim); left < 0 {
			p.sent = m.upto
			return
		}
		m.claims = append(m.claims, n.Claim)
		m.upto = n.number
	}
	m.upto = e.claims.number
	p.sent = m.upto
}

// message returns a message without what depends on its receiver.
func (e *Exchange) message(now time.Time) *message {
	m := &message{
		name: e.o.Name, missed: uint8(e.o.Missed), weight: uint16(e.o.Weight), interval: e.o.Interval,
		epoch: e.epoch, uptime: now.Sub(e.started), config: e.o.Config,
		number: e.claims.number, digest: e.claims.digest,
	}
	if e.draining {
		m.flags |= flagDraining
	}
	return m
}

func (e *Exchange) emit(m *message, to netip.AddrPort, emit func(netip.AddrPort, []byte)) {
	if len(e.keys) == 0 {
		return
	}
	e.seq++
	m.seq = e.seq
	e.count.Sent++
	e.buffer = m.encode(e.buffer[:0], e.keys)
	emit(to, e.buffer)
}

// Listen starts to find out what the other hosts announce. See Informed.
func (e *Exchange) Listen(now time.Time) { e.asked, e.askedSeq, e.beat = now, e.seq, now }

// Informed reports whether this host knows what the others announce: all peers that live have
// answered since Listen, and know all claims of this host as it knows theirs. Without answers, it is
// true after some time.
func (e *Exchange) Informed(now time.Time) bool {
	passed := now.Sub(e.asked)
	if passed >= 2*e.Timeout() {
		return true
	}
	for _, d := range e.dests {
		switch {
		case d.peer != nil && d.peer.alive:
			if d.peer.name != e.o.Name && !(d.peer.synced() && d.peer.last.echoSeq > e.askedSeq) {
				return false
			}
		case passed < e.Timeout():
			return false
		}
	}
	return true
}

// InformedBy returns when Informed will be true without answers.
func (e *Exchange) InformedBy(now time.Time) time.Time {
	if at := e.asked.Add(e.Timeout()); now.Before(at) {
		return at
	}
	return e.asked.Add(2 * e.Timeout())
}

// Duplicate returns the address of another host with the name of this one. Yield says that this
// host must not announce: the other one has run longer.
func (e *Exchange) Duplicate(now time.Time) (at netip.AddrPort, yield, ok bool) {
	p := e.peers[e.o.Name]
	if p == nil || !p.alive {
		return at, false, false
	}
	mine := now.Sub(e.started) - now.Sub(p.received)
	difference := p.last.uptime - mine
	yield = difference > 0
	if difference.Abs() < 2*time.Millisecond { // started together
		yield = p.epoch > e.epoch
	}
	return p.addr, yield, true
}
