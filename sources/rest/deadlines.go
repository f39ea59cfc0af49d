package rest

import (
	"container/heap"
	"context"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/event"
)

// Bounds on the ttl of a backend.
const (
	MinTTL = time.Second
	MaxTTL = 24 * time.Hour
)

// retryRemoval is how long a removal that the store refused waits.
const retryRemoval = 10 * time.Second

// life is a backend that must send heartbeats. Mu guards it.
type life struct {
	service vip.ServiceKey
	backend backendID
	ttl     time.Duration
	lapse   time.Duration // from drained to removed: the longer of ttl and drain timeout
	due     time.Time     // when it drains, or once drained, is removed
	drained bool
	index   int // in deadlines; -1 when not in it
}

// beat starts the life's ttl anew and reports whether it had been drained.
func (l *life) beat(now time.Time) (revived bool) {
	revived, l.drained = l.drained, false
	l.due = now.Add(l.ttl)
	return revived
}

// deadlines is a heap of lives by due time.
type deadlines []*life

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}
func (d *deadlines) Push(x any) {
	l := x.(*life)
	l.index = len(*d)
	*d = append(*d, l)
}
func (d *deadlines) Pop() any {
	last := len(*d) - 1
	l := (*d)[last]
	(*d)[last], l.index = nil, -1
	*d = (*d)[:last]
	return l
}

// adopt puts e in the place of old, nil for none, and carries lives over: a
// backend that stays keeps its due time. The caller holds mu, or is New.
func (s *Source) adopt(old, e *entry) {
	if e == nil {
		for _, l := range old.lives {
			heap.Remove(&s.due, l.index)
		}
		delete(s.entries, old.row.Key)
		return
	}
	now := time.Now()
	e.lives = map[backendID]*life{}
	for id, ttl := range e.registered {
		if ttl == 0 {
			continue
		}
		var l *life
		if old != nil {
			l = old.lives[id]
			delete(old.lives, id)
		}
		if l == nil {
			l = &life{service: e.row.Key, backend: id, ttl: ttl, due: now.Add(ttl)}
			heap.Push(&s.due, l)
		} else if l.ttl != ttl {
			l.ttl = ttl
			l.beat(now)
			heap.Fix(&s.due, l.index)
		}
		l.lapse = max(ttl, e.row.DrainTimeout)
		e.lives[id] = l
	}
	if old != nil {
		for _, l := range old.lives {
			heap.Remove(&s.due, l.index)
		}
	}
	s.entries[e.row.Key] = e
	s.nudge()
}

// nudge makes Run look at the deadlines again.
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
func (s *Source) Heartbeat(key vip.BackendKey) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key.Service]
	if e == nil {
		return ErrNoService
	}
	id := backendID{key.Address, key.Port}
	l := e.lives[id]
	if l == nil {
		if indexOf(e.row.Backends, id) < 0 {
			return ErrNoBackend
		}
		return nil
	}
	s.revive(e, l)
	return nil
}

// revive counts a heartbeat. The caller holds mu.
func (s *Source) revive(e *entry, l *life) {
	back := l.beat(time.Now())
	heap.Fix(&s.due, l.index)
	if back {
		s.publish(e.published())
		s.Events.Add(event.Event{Kind: "backend_alive", Service: l.service.String(), Object: l.name(),
			Message: "a heartbeat came again: takes connections"})
	}
}

func (l *life) name() string { return vip.Backend{Address: l.backend.addr, Port: l.backend.port}.ID() }

// Life is how a backend with a ttl fares.
type Life struct {
	TTL     time.Duration
	Drained bool      // no heartbeat came within TTL
	Due     time.Time // when it drains, or once drained, is removed
	Removed time.Time // when it is removed unless a heartbeat comes
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
	for _, l := range e.lives {
		out[l.name()] = l.report()
	}
	return out
}

func (l *life) report() Life {
	removed := l.due
	if !l.drained {
		removed = l.due.Add(l.lapse)
	}
	return Life{TTL: l.ttl, Drained: l.drained, Due: l.due, Removed: removed}
}

// expire drains what is overdue and removes what has been drained for long
// enough, and returns how long nothing will be due. A heartbeat makes the first
// deadline later without a wake-up, so a return of Run to here may find nothing.
func (s *Source) expire(ctx context.Context) time.Duration {
	const atMost = time.Hour
	now := time.Now()
	drained := map[vip.ServiceKey]bool{}
	dead := map[vip.ServiceKey][]backendID{}
	s.mu.Lock()
	for len(s.due) > 0 && !s.due[0].due.After(now) {
		l := s.due[0]
		if !l.drained {
			l.drained = true
			l.due = now.Add(l.lapse) // from now: after a suspend, everyone gets the time to come back
			drained[l.service] = true
			s.Events.Add(event.Event{Kind: "backend_expired", Service: l.service.String(), Object: l.name(),
				Message: fmt.Sprintf("no heartbeat within %s: drained, removed in %s", l.ttl, l.lapse)})
		} else {
			dead[l.service] = append(dead[l.service], l.backend)
			l.due = now.Add(retryRemoval) // in case the store refuses
		}
		heap.Fix(&s.due, 0)
	}
	rows := make([]vip.Service, 0, len(drained))
	for key := range drained {
		rows = append(rows, s.entries[key].published())
	}
	s.publish(rows...)
	s.mu.Unlock()

	if len(dead) > 0 {
		if err := s.removeDead(ctx, dead); err != nil && ctx.Err() == nil {
			s.Log.Error("remove backends without heartbeats; tried again", "after", retryRemoval, "err", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.due) == 0 {
		return atMost
	}
	return max(0, min(atMost, time.Until(s.due[0].due)))
}

// removeDead takes the backends out for good, but for those that a heartbeat
// or a new registration has brought back meanwhile.
func (s *Source) removeDead(ctx context.Context, dead map[vip.ServiceKey][]backendID) error {
	names := make(map[vip.ServiceKey]int, len(dead))
	for key := range dead {
		names[key] = 0
	}
	c, err := s.begin(ctx, names)
	if err != nil {
		return err
	}
	defer c.end()
	var events []event.Event
	for key, ids := range dead {
		e := s.entry(key)
		if e == nil {
			continue
		}
		for _, id := range ids {
			if !s.isDrained(e, id) {
				continue
			}
			e = e.without(id)
			events = append(events, event.Event{Kind: "backend_removed", Service: key.String(),
				Object:  vip.Backend{Address: id.addr, Port: id.port}.ID(),
				Message: "no heartbeat came while it was drained"})
		}
		c.set(key, e)
	}
	if _, err := c.commit(); err != nil {
		return err
	}
	for _, ev := range events {
		s.Events.Add(ev)
	}
	return nil
}

func (s *Source) isDrained(e *entry, id backendID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := e.lives[id]
	return l != nil && l.drained
}
