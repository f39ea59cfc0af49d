package heartbeat

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/announce"
)

// peer is another host by name. With the name of this host, it is a duplicate of it.
type peer struct {
	name string
	addr netip.AddrPort // where its newest message came from

	epoch, seq uint64 // 0: none accepted yet
	received   time.Time
	alive      bool
	since      time.Time // of alive
	timeout    time.Duration
	last       message // the newest one, without its claims

	copy   copied
	acked  uint64 // the newest change of our claims that it has
	sent   uint64 // and the newest that is on its way
	resent uint64 // the one after which the claims of the last heartbeats began
	reply  bool   // it waits for an acknowledgment
	joined bool   // it has acknowledged all our claims once

	waiting greeting // a message of an epoch that isn't accepted yet
	rival   netip.AddrPort
	rivalAt time.Time // when another host used its name

	lost uint64       // heartbeats
	left []netip.Addr // the first VIPs that it announced when it died
}

// greeting is a message that is answered, so that its sender can prove that it isn't a replay.
type greeting struct {
	epoch, seq uint64
	from       netip.AddrPort
	answer     bool
	answered   time.Time
	at         time.Time
}

// host returns the peer for the decision.
func (p *peer) host() announce.Host {
	return announce.Host{Name: p.name, Alive: p.alive, Draining: p.last.flags&flagDraining != 0, Weight: max(int(p.last.weight), 1),
		OneWay: p.alive && p.last.flags&flagReceives == 0}
}

// synced reports whether both hosts know all claims of each other.
func (p *peer) synced() bool { return p.joined && p.copy.number == p.last.number }

// Receive processes a packet. The sink has been called when it returns.
func (e *Exchange) Receive(from netip.AddrPort, packet []byte, now time.Time) {
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	m, err := decode(packet, e.keys)
	switch {
	case err == errForged:
		e.count.Forged++
		return
	case err != nil:
		e.count.Malformed++
		return
	case m.epoch == e.epoch:
		return // our own message came back
	case m.to != 0 && m.to != e.id:
		e.count.Misdirected++
		return
	}
	p := e.peers[m.name]
	if p == nil {
		if len(e.peers) >= maxPeers {
			e.count.Refused++
			return
		}
		p = &peer{name: m.name, timeout: e.Timeout()}
		e.peers[m.name] = p
	}
	if !e.accept(p, m, from, now) {
		return
	}
	e.count.Received++
	e.bind(from, p)
	e.update(p, m, now)
}

// accept decides whether a message is genuine now, and not an old one.
func (e *Exchange) accept(p *peer, m *message, from netip.AddrPort, now time.Time) bool {
	if m.epoch == p.epoch {
		if m.seq <= p.seq {
			e.count.Replayed++
			return false
		}
		p.addr, p.seq = from, m.seq
		return true
	}
	if !e.isRecent(m) {
		if p.waiting.epoch != m.epoch || m.seq > p.waiting.seq {
			p.waiting.epoch, p.waiting.seq, p.waiting.from, p.waiting.at = m.epoch, m.seq, from, now
			p.waiting.answer = now.Sub(p.waiting.answered) >= e.o.Interval/2
		}
		return false
	}
	if p.alive && p.addr.Addr() != from.Addr() {
		e.count.Duplicates++
		p.rival, p.rivalAt = from, now
		return false
	}
	e.forget(p)
	p.epoch, p.seq, p.addr, p.waiting = m.epoch, m.seq, from, greeting{}
	p.acked, p.sent, p.joined, p.received = 0, 0, false, now
	return true
}

// isRecent reports whether a message answers one that this host has sent in the last few intervals.
func (e *Exchange) isRecent(m *message) bool {
	return m.echoEpoch == e.epoch && m.echoSeq > e.recent[(e.beats+1)%uint64(len(e.recent))] && m.echoSeq <= e.seq
}

// forget removes the claims of a peer.
func (e *Exchange) forget(p *peer) {
	for _, c := range slices.Collect(e.sink.Claims(p.name)) {
		e.sink.SetClaim(p.name, announce.Claim{Addr: c.Addr})
	}
	p.copy = copied{}
}

// set passes a claim of a peer to the sink.
func (e *Exchange) set(p *peer, c announce.Claim) {
	if p.name != e.o.Name {
		p.copy.count(e.sink.SetClaim(p.name, c), -1)
		p.copy.count(c, 1)
	}
}

// firstOwned returns the VIPs that a peer announces, in order, up to a number. It costs O(claims).
func (e *Exchange) firstOwned(p *peer, limit int) (out []netip.Addr) {
	for c := range e.sink.Claims(p.name) {
		if c.Owned {
			out = append(out, c.Addr)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Clone(out[:min(len(out), limit)])
}

// tellHost passes the state of a peer to the sink.
func (e *Exchange) tellHost(p *peer) {
	if p.name != e.o.Name {
		e.sink.SetHost(p.host())
	}
}

// update takes what a peer says from an accepted message.
func (e *Exchange) update(p *peer, m *message, now time.Time) {
	if p.alive && m.interval > 0 {
		p.lost += uint64(max(now.Sub(p.received)-m.interval/2, 0) / m.interval)
	}
	p.received = now
	p.timeout = max(e.Timeout(), m.interval*time.Duration(m.missed))
	if !p.alive {
		p.alive, p.since = true, now
	}
	claims := m.claims
	p.last = *m
	p.last.claims = nil
	e.tellHost(p)
	if m.echoEpoch == e.epoch && m.acked <= e.claims.number {
		if m.acked < p.acked {
			p.sent = m.acked // it has lost its copy
		}
		p.acked = m.acked
		p.sent = max(p.sent, p.acked)
		p.joined = p.joined || p.acked == e.claims.number
	}
	if m.base <= p.copy.number && m.upto > p.copy.number {
		for _, c := range claims {
			e.set(p, c)
		}
		p.copy.number = m.upto
	}
	if p.copy.number >= m.number && (p.copy.number > m.number || p.copy.digest != m.digest) {
		e.count.Mismatches++
		e.forget(p) // it sends everything again
	}
	p.reply = p.reply || m.flags&flagReply != 0
}

// expire marks peers dead that have been silent for too long.
func (e *Exchange) expire(now time.Time) {
	for _, p := range e.peers {
		if !p.alive || now.Before(p.received.Add(p.timeout)) {
			continue
		}
		p.alive, p.since = false, now
		p.lost += uint64(p.last.missed)
		p.left = e.firstOwned(p, announce.MaxVIPs)
		e.tellHost(p)
	}
}
