package rest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/vip"
)

// Bounds on the ttl of a backend.
const (
	MinTTL = time.Second
	MaxTTL = 24 * time.Hour
)

// retryDue is how long a lapse or a removal waits that the store refused.
const retryDue = 10 * time.Second

// life is a backend that must send heartbeats. Mu guards it.
type life struct {
	service vip.ServiceKey
	backend backendID
	ttl     time.Duration
	lapse   time.Duration // from drained to removed: the longer of ttl and drain timeout
	due     time.Time     // when it drains, or once drained, is removed
	drained bool          // of a fleet's: as the registry has it

	keeper string // the node that counts its heartbeats; "" without a fleet
	silent bool   // overdue, and its lapse is on the way to the registry
}

// beat starts the life's ttl anew and reports whether it had been drained.
func (l *life) beat(now time.Time) (revived bool) {
	revived, l.drained = l.drained, false
	l.due = now.Add(l.ttl)
	return revived
}

// restart gives the life its full time again: a ttl, or once drained, the lapse.
func (l *life) restart(now time.Time) {
	l.silent = false
	if l.due = now.Add(l.ttl); l.drained {
		l.due = now.Add(l.lapse)
	}
}

// adopt puts e in the place of old, nil for none, and carries lives over: a
// backend that stays keeps its due time. The caller holds mu, or is New.
func (s *Source) adopt(old, e *entry) {
	if e == nil {
		for _, l := range old.lives {
			s.forget(l)
		}
		delete(s.entries, old.row.Key)
		return
	}
	now := time.Now()
	e.lives = map[backendID]*life{}
	for id, reg := range e.registered {
		if reg.ttl == 0 {
			continue
		}
		var l *life
		if old != nil {
			l = old.lives[id]
			delete(old.lives, id)
		}
		before := life{}
		if l == nil {
			l = &life{service: e.row.Key, backend: id}
		} else {
			before = *l
			s.unkeep(l)
		}
		l.lapse = max(reg.ttl, e.row.DrainTimeout)
		if l.ttl != reg.ttl { // also when it is new
			l.ttl = reg.ttl
			l.beat(now)
		}
		if s.Fleet != nil {
			l.keeper, l.drained = reg.keeper, reg.lapsed
			if before.ttl == 0 || before.keeper != l.keeper || before.drained != l.drained {
				l.restart(now)
			}
			if before.ttl != 0 && before.drained != l.drained {
				s.tellLapse(l)
			}
		}
		e.lives[id] = l
		s.keep(l)
	}
	if old != nil {
		for _, l := range old.lives {
			s.forget(l)
		}
	}
	s.entries[e.row.Key] = e
	s.nudge()
}

// tellLapse makes an event of a lapse that was marked, or taken back, whoever
// did it.
func (s *Source) tellLapse(l *life) {
	e := event.Event{Kind: "backend_alive", Service: l.service.String(), Object: l.backend.String(), Message: "a heartbeat came again: takes connections"}
	if l.drained {
		e.Kind, e.Message = "backend_expired", fmt.Sprintf("no heartbeat within %s: drained, removed in %s", l.ttl, l.lapse)
	}
	if l.keeper != "" {
		e.Message += fmt.Sprintf(" (node %q)", l.keeper)
	}
	s.Events.Add(e)
}

// keep counts the life, if that is for this host to do. The caller holds mu.
func (s *Source) keep(l *life) {
	if s.Fleet != nil && l.keeper != s.Node {
		lives := s.others[l.keeper]
		if lives == nil {
			lives = map[*life]struct{}{}
			s.others[l.keeper] = lives
			s.nudgeKeepers()
		}
		lives[l] = struct{}{}
	}
	s.count(l)
}

// unkeep makes that undone but for the count, which keep or forget corrects.
func (s *Source) unkeep(l *life) {
	if lives := s.others[l.keeper]; lives != nil {
		if delete(lives, l); len(lives) == 0 {
			delete(s.others, l.keeper)
		}
	}
}

// count has the life among the deadlines exactly if its keeper is this host, or one that
// this host stands in for.
func (s *Source) count(l *life) {
	mine := s.Fleet == nil || l.keeper == s.Node || s.gone[l.keeper]
	if mine {
		s.due.Set(l, l.due)
	} else {
		s.due.Drop(l)
	}
}

func (s *Source) forget(l *life) {
	s.unkeep(l)
	s.due.Drop(l)
}

// nudge makes runDeadlines look at the deadlines again.
func (s *Source) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Heartbeat says that a backend lives. It costs O(log n) of all backends with a
// ttl; one that had been drained gets its connections back. A backend without a
// ttl needs no heartbeats, and one is no error. ErrNoService and ErrNoBackend
// mean that it must register again.
//
// In a fleet, a heartbeat to a host that has not kept the backend, or one of a
// backend whose lapse has been marked, is one write, and the host keeps it from
// then on; that can end with ErrStore. So does, though it counts, every
// heartbeat once this host has been out of touch for the ttl: others may take
// the backend for silent, and it should go to one of them.
func (s *Source) Heartbeat(ctx context.Context, key vip.BackendKey) error {
	id := backendID{key.Address, key.Port}
	if counted, err := s.heard(key.Service, id); counted || err != nil {
		return err
	}
	_, err := s.change(ctx, key.Service, nil, true, func(old *entry) (*entry, error) {
		if indexOf(old.row.Backends, id) < 0 {
			return nil, ErrNoBackend
		}
		reg, ok := old.registered[id]
		if !ok || reg.ttl == 0 {
			return old, nil
		}
		e := old.edited()
		e.registered[id] = registration{ttl: reg.ttl, keeper: s.Node}
		return e, nil
	})
	if err != nil {
		return err
	}
	_, err = s.heard(key.Service, id)
	return err
}

// heard counts a heartbeat, unless that takes a write.
func (s *Source) heard(key vip.ServiceKey, id backendID) (counted bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	if e == nil {
		return false, ErrNoService
	}
	l := e.lives[id]
	switch {
	case l == nil && indexOf(e.row.Backends, id) < 0:
		return false, ErrNoBackend
	case l == nil:
		return true, nil
	case s.Fleet == nil:
		s.revive(e, l)
	case l.keeper != s.Node || l.drained || l.silent:
		return false, nil
	default:
		now := time.Now()
		l.beat(now)
		s.count(l)
		if s.stale != "" && now.Sub(s.staleSince) > l.ttl {
			return true, &StoreError{Err: fmt.Errorf("this host is out of touch with the others, which can't see that the backend lives: %w", errStale(s.stale))}
		}
	}
	return true, nil
}

// revive counts a heartbeat on a host alone. The caller holds mu.
func (s *Source) revive(e *entry, l *life) {
	back := l.beat(time.Now())
	s.due.Set(l, l.due)
	if back {
		s.publish(&taken{put: []*entry{e}})
		s.tellLapse(l)
	}
}

// Life is how a backend with a ttl fares.
type Life struct {
	TTL     time.Duration
	Keeper  string    // the node that counts its heartbeats; "" without a fleet
	Drained bool      // no heartbeat came within TTL
	Due     time.Time // when it drains, or once drained, is removed; zero where another node counts
	Removed time.Time // when it is removed unless a heartbeat comes; likewise
}

// Lives returns the lives of a service's backends that have a ttl, by ID.
func (s *Source) Lives(key vip.ServiceKey) map[string]Life {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	if e == nil || len(e.lives) == 0 {
		return nil
	}
	out := make(map[string]Life, len(e.lives))
	for id, l := range e.lives {
		out[id.String()] = l.report(s.due.Has(l))
	}
	return out
}

// report says how the life fares, and when it ends if that is counted here.
func (l *life) report(counted bool) Life {
	out := Life{TTL: l.ttl, Keeper: l.keeper, Drained: l.drained}
	if counted {
		out.Due, out.Removed = l.due, l.due
		if !l.drained {
			out.Removed = l.due.Add(l.lapse)
		}
	}
	return out
}

// overdue are backends by service.
type overdue map[vip.ServiceKey][]backendID

// expire drains what is overdue and removes what has been drained for long
// enough, and returns how long nothing will be due. A heartbeat makes the first
// deadline later without a wake-up, so a return of runDeadlines to here may find
// nothing. Out of touch with the other hosts nothing is due: they may have
// heard what this one has not.
func (s *Source) expire(ctx context.Context) time.Duration {
	const atMost = time.Hour
	now := time.Now()
	silent, dead := overdue{}, overdue{}
	s.mu.Lock()
	if s.stale != "" {
		s.mu.Unlock()
		return atMost
	}
	drained := map[vip.ServiceKey]bool{}
	for l := range s.due.Due(now) {
		switch {
		case l.drained:
			dead[l.service] = append(dead[l.service], l.backend)
			l.due = now.Add(retryDue) // in case the store refuses
		case s.Fleet != nil:
			l.silent = true
			silent[l.service] = append(silent[l.service], l.backend)
			l.due = now.Add(retryDue)
		default:
			l.drained = true
			l.due = now.Add(l.lapse) // from now: after a suspend, everyone gets the time to come back
			drained[l.service] = true
			s.tellLapse(l)
		}
		s.due.Set(l, l.due)
	}
	var t taken
	for key := range drained {
		t.put = append(t.put, s.entries[key])
	}
	s.publish(&t)
	s.mu.Unlock()

	s.markLapsed(ctx, silent)
	s.removeDead(ctx, dead)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, first, any := s.due.First()
	if !any {
		return atMost
	}
	return max(0, min(atMost, time.Until(first)))
}

// markLapsed marks in the registry that no heartbeat came from the backends, so
// that every host drains them, and makes this host their keeper.
func (s *Source) markLapsed(ctx context.Context, silent overdue) {
	if len(silent) == 0 {
		return
	}
	err := s.changeMany(ctx, slices.Collect(maps.Keys(silent)), func(key vip.ServiceKey, old *entry) *entry {
		e := old.edited()
		for _, id := range silent[key] {
			if s.life(key, id, func(l *life) bool { return l.silent && !l.drained }) {
				e.registered[id] = registration{ttl: e.registered[id].ttl, keeper: s.Node, lapsed: true}
			}
		}
		return e
	})
	if err != nil && ctx.Err() == nil {
		s.Log.Error("mark backends without heartbeats as lapsed; tried again", "after", retryDue, "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, ids := range silent { // of those whose mark was not written, the next heartbeat counts
		for _, id := range ids {
			if e := s.entries[key]; e != nil && e.lives[id] != nil {
				e.lives[id].silent = false
			}
		}
	}
}

// removeDead takes the backends out for good, but for those that a heartbeat
// or a new registration has brought back meanwhile.
func (s *Source) removeDead(ctx context.Context, dead overdue) {
	if len(dead) == 0 {
		return
	}
	removed := overdue{}
	err := s.changeMany(ctx, slices.Collect(maps.Keys(dead)), func(key vip.ServiceKey, old *entry) *entry {
		e := old.edited()
		removed[key] = nil
		for _, id := range dead[key] {
			if s.life(key, id, func(l *life) bool { return l.drained && s.due.Has(l) }) {
				e.without(id)
				removed[key] = append(removed[key], id)
			}
		}
		return e
	})
	if err != nil {
		if ctx.Err() == nil {
			s.Log.Error("remove backends without heartbeats; tried again", "after", retryDue, "err", err)
		}
		return
	}
	for key, ids := range removed {
		for _, id := range ids {
			s.Events.Add(event.Event{Kind: "backend_removed", Service: key.String(), Object: id.String(),
				Message: "no heartbeat came while it was drained"})
		}
	}
}

// life asks about a life, if there is one.
func (s *Source) life(key vip.ServiceKey, id backendID, is func(*life) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	return e != nil && e.lives[id] != nil && is(e.lives[id])
}
