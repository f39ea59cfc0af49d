package announce

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// decide computes the announcement of one VIP from everything known of it. It costs O(hosts that
// have the VIP).
func (d *Decider) decide(addr netip.Addr, e *entry, now time.Time) {
	d.endMove(e)
	v := d.view(e, now)
	here := false
	if e.here && e.mode == L2 {
		here = d.owns(addr, e, v, now)
		e.mine = here || e.mine && !d.self.Draining && v.owner() == ""
	} else {
		e.best, e.mine = time.Time{}, false
		here = e.here && e.mode != Off && d.routes(addr, v.services, now)
	}
	a := Announcement{Addr: addr, Here: here, Policy: e.effective(), Services: v.services, Route: e.route, Updated: e.last.Updated}
	if a.Route != e.last.Route {
		a.Updated = vip.InstantOf(now)
	}
	if e.here {
		a.Mode = e.mode
	}
	if a.Mode == L2 {
		if a.Owner = v.owner(); here {
			a.Owner = d.self.Name
		}
		a.Moved = max(e.policy.Moved, e.over)
		for i := range e.claims {
			a.Moved = max(a.Moved, e.claims[i].policy.Moved)
		}
	}
	if e.policy.Moved == e.over {
		a.Over = e.over
	}
	a.New = here && !e.known
	if a.New && e.last.Here {
		a.New = e.last.New
	}
	e.known = e.known || here || v.owner() != ""
	if a.Why = d.why(addr, e, v, here); a.Why != e.last.Why {
		a.Why = intern(a.Why)
	} else {
		a.Why = e.last.Why
	}
	if a.Mode == L2 {
		if a.Ranking = ranking(v.candidates); a.Ranking != e.last.Ranking {
			a.Ranking = intern(a.Ranking)
		} else {
			a.Ranking = e.last.Ranking
		}
	}
	a.Since = e.last.Since
	if a.Here != e.last.Here || a.Owner != e.last.Owner || a.Mode != e.last.Mode || a.Since.IsZero() {
		a.Since = now
	}
	e.last = a
}

// routes decides for BGP and routes: every eligible host announces, and a draining host a little
// longer, so that routers can move traffic first.
func (d *Decider) routes(addr netip.Addr, services int, now time.Time) bool {
	if services == 0 || !d.self.Draining {
		return services > 0
	}
	end := d.drained.Add(d.timing.Leave)
	if !now.Before(end) {
		return false
	}
	d.timers.Set(addr, end)
	return true
}

// view is the state of one VIP, from this host.
type view struct {
	services int        // of this host
	self     candidate  // valid if services > 0
	best     *candidate // the first of all hosts that could own it, this one included; nil: none
	rival    *candidate // the first of the others that own it and could; nil: none
	oneWay   bool       // one of the owners that could own it does not receive this host
	leaver   string     // another owner that can't own it any more: a draining one

	candidates []*candidate // all hosts that could own it
}

// owner returns the other host that owns the VIP.
func (v *view) owner() string {
	if v.rival != nil {
		return v.rival.host.Name
	}
	return v.leaver
}

func (d *Decider) view(e *entry, now time.Time) *view {
	v := &view{services: d.serves(e)}
	if v.services > 0 && !d.self.Draining {
		v.self = candidate{&d.self, e.effective(), v.services, e.score}
		v.best = &v.self
		v.candidates = append(v.candidates, &v.self)
	}
	for i := range e.claims {
		c := &e.claims[i]
		if !c.peer.Alive {
			continue
		}
		if c.peer.OneWay && c.peer.deaf.IsZero() {
			c.peer.deaf = now
		}
		if c.services == 0 || c.peer.Draining {
			if c.owned && (v.leaver == "" || c.peer.Name < v.leaver) {
				v.leaver = c.peer.Name
			}
			continue
		}
		other := &candidate{&c.peer.Host, c.policy, int(c.services), c.score}
		v.candidates = append(v.candidates, other)
		if v.best == nil || other.before(v.best) {
			v.best = other
		}
		if c.owned {
			v.oneWay = v.oneWay || c.peer.OneWay
			if v.rival == nil || other.before(v.rival) {
				v.rival = other
			}
		}
	}
	return v
}

// yieldsTo reports whether another host keeps a VIP that it can't serve either, as after a partition, and ranks before this one
// has not received this one for as long as a host is alive. At the end of a partition, none has received the other for a moment.
func (d *Decider) yieldsTo(addr netip.Addr, e *entry, now time.Time) bool {
	self := candidate{&d.self, e.effective(), 0, e.score}
	return slices.ContainsFunc(e.claims, func(c claim) bool {
		if !c.owned || c.services > 0 || !c.peer.Alive || c.peer.Draining {
			return false
		}
		other := candidate{&c.peer.Host, c.policy, 0, c.score}
		end := c.peer.deaf.Add(d.timing.Handover)
		if c.peer.OneWay && now.Before(end) {
			d.timers.Hasten(addr, end)
		}
		return other.before(&self) || c.peer.OneWay && !now.Before(end)
	})
}

// endMove ends the operator's move of a VIP to this host when this host can't own the VIP, unless it is a pin, and when there is
// a newer move to another host.
func (d *Decider) endMove(e *entry) {
	if e.policy.Moved == 0 || e.over == e.policy.Moved {
		return
	}
	if d.listening || d.self.Draining || d.serves(e) == 0 {
		if e.prompt = false; !e.policy.Pinned {
			e.over = e.policy.Moved
		}
	}
	for i := range e.claims {
		c := &e.claims[i]
		if newer := cmp.Compare(c.policy.Moved, e.policy.Moved); c.peer.Alive && (newer > 0 || newer == 0 && c.peer.Name < d.self.Name) {
			e.over = e.policy.Moved
		}
	}
}

// effective returns the policy of this host, without a move that is over.
func (e *entry) effective() Policy {
	p := e.policy
	if p.Moved == e.over {
		p.Moved, p.Pinned = 0, false
	}
	return p
}

// serves returns how many services this host could announce the VIP for.
func (d *Decider) serves(e *entry) int {
	if !e.here || d.withdrawn != "" || e.mode == L2 && e.offline {
		return 0
	}
	return e.services
}

// owns decides whether this host owns a VIP at layer 2.
//
// No host asks another one. Each host takes a VIP only if it is the best one that it knows of, and
// gives it up only for a better one that already announces it. So a planned move has two owners for
// as long as a heartbeat travels, and none has no owner. After a healed partition, all owners but
// the best give up. A host that was the last owner, and could not announce for a time, goes on keeping the VIP.
func (d *Decider) owns(addr netip.Addr, e *entry, v *view, now time.Time) bool {
	since := e.best
	e.best = time.Time{}
	switch {
	case d.listening:
		return false
	case e.owned(), e.mine && v.best == nil && v.owner() == "":
		return d.keeps(addr, e, v, now)
	case v.self.host == nil || v.best != &v.self || v.oneWay:
		return false
	case v.rival == nil:
		return true
	case since.IsZero():
		since = now
	}
	settled := since.Add(d.timing.Settle)
	if e.prompt && v.self.policy.Moved > 0 {
		// All hosts know the move by then, so that no other one takes the VIP when its owner gives it up.
		settled = since.Add(min(d.timing.Settle, d.timing.Handover))
	}
	if now.Before(settled) {
		e.best = since
		d.timers.Set(addr, settled)
		return false
	}
	return true
}

// keeps decides whether an owner remains one.
func (d *Decider) keeps(addr netip.Addr, e *entry, v *view, now time.Time) bool {
	switch {
	case v.services == 0:
		able := !d.self.Draining && !e.offline && d.withdrawn == ""
		return e.keep && able && v.rival == nil && !d.yieldsTo(addr, e, now)
	case d.self.Draining:
		end := d.drained.Add(d.timing.Handover)
		if v.best == nil || v.rival != nil || !now.Before(end) {
			return false
		}
		d.timers.Set(addr, end)
		return true
	case v.rival == nil:
		return true
	case v.oneWay:
		// The other owner believes that this host is dead, and would never give up.
		return false
	}
	return v.self.before(v.rival)
}
