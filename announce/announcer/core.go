package announcer

import (
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/heartbeat"
)

// core connects the heartbeats with the decision. It has no goroutine, socket or clock: its owner
// calls step when packets have arrived, when it has changed an input, and when step has said.
type core struct {
	decider  *announce.Decider
	exchange *heartbeat.Exchange // nil without peers

	due   time.Time     // when step was to be called at the latest
	every time.Duration // between two heartbeats, also without peers
	pulse time.Time     // of the next one
	// acted is called after the decisions of a step and before others learn them. Beat is set if a
	// heartbeat is due, with which the kernel gate stays open.
	acted func(beat bool)
	emit  func(to netip.AddrPort, packet []byte)
	// changed receives the announcements that differ.
	changed func(a announce.Announcement, gone bool)
	// paused is called when this host has not run for so long that others consider it dead.
	paused func(late time.Duration)
}

// listen makes the host find out what others announce, before it announces anything itself.
func (c *core) listen(now time.Time) {
	c.decider.Listen()
	if c.exchange != nil {
		c.exchange.Listen(now)
	}
}

// step processes packets and the passage of time. It returns when it is to be called again.
func (c *core) step(now time.Time, packets []heartbeat.Packet) time.Time {
	if x := c.exchange; x != nil {
		c.notePause(now)
		for _, p := range packets {
			x.Receive(p.From, p.Data, now)
		}
		x.Advance(now)
	}
	if c.yields(now) {
		c.decider.Listen()
	} else if c.decider.Listening() && (c.exchange == nil || c.exchange.Informed(now)) {
		c.decider.Ready()
	}
	c.decider.Decide(now, func(a announce.Announcement, gone bool) {
		if c.exchange != nil {
			claim := announce.Claim{Addr: a.Addr, Services: a.Services, Owned: a.Here && a.Mode == announce.L2, Policy: a.Policy}
			if gone {
				claim = announce.Claim{Addr: a.Addr}
			}
			c.exchange.Set(claim)
		}
		c.changed(a, gone)
	})
	// The gate must not stay open for longer than others wait for the heartbeat of this host, so it
	// is refreshed with the heartbeat, and before it.
	beat := !now.Before(c.pulse)
	if c.exchange != nil {
		beat = !now.Before(c.exchange.Beat())
	}
	c.acted(beat)
	if c.exchange != nil {
		c.exchange.Send(now, c.emit)
	} else if beat {
		c.pulse = now.Add(c.every)
	}
	c.due = c.next(now)
	return c.due
}

// yields reports whether another host has the name of this one and must be left alone.
func (c *core) yields(now time.Time) bool {
	if c.exchange == nil {
		return false
	}
	_, yield, _ := c.exchange.Duplicate(now)
	return yield
}

// notePause detects that this process was stopped, or had no processor. The silence of others in
// that time means nothing. If it was as long as a dead host's, the others have taken over.
func (c *core) notePause(now time.Time) {
	late := now.Sub(c.due)
	if c.due.IsZero() || late <= pauseSlack {
		return
	}
	c.exchange.Excuse(late)
	if silent := now.Sub(c.exchange.Beat()) + c.exchange.Interval(); silent >= c.exchange.Timeout() {
		c.paused(late)
		c.listen(now)
	}
}

// pauseSlack is how late a step may be on a busy host without further consequences.
const pauseSlack = 20 * time.Millisecond

func (c *core) next(now time.Time) time.Time {
	next := now.Add(time.Hour)
	earlier := func(at time.Time) {
		if at.Before(next) {
			next = at
		}
	}
	if at, ok := c.decider.Next(); ok {
		earlier(at)
	}
	if c.exchange != nil {
		earlier(c.exchange.Next())
		if c.decider.Listening() {
			// It is over if the host yields to another one of its name, which the heartbeats tell.
			if at := c.exchange.InformedBy(now); at.After(now) {
				earlier(at)
			}
		}
	} else {
		earlier(c.pulse)
	}
	return next
}
