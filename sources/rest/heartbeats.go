package rest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/vip"
)

// Bounds of a backend's ttl.
const (
	MinTTL = time.Second
	MaxTTL = 24 * time.Hour
)

// retryInterval is how long to wait before a lapse or removal that the store refused is tried
// again.
const retryInterval = 10 * time.Second

// heartbeat is the state of a backend that must send heartbeats. mu protects it.
type heartbeat struct {
	service vip.ServiceKey
	backend backendID
	ttl     time.Duration
	grace   time.Duration // from missed to removed: the longer of ttl and drain timeout
	due     time.Time     // when it is drained or, once missed, removed
	missed  bool          // no heartbeat arrived in time; in a fleet, the registry's value

	owner   string // the node that counts the heartbeats; "" without a fleet
	marking bool   // overdue, and about to be marked as lapsed in the registry
}

// receive starts a new ttl and reports whether the backend had been drained.
func (h *heartbeat) receive(now time.Time) (revived bool) {
	revived, h.missed = h.missed, false
	h.due = now.Add(h.ttl)
	return revived
}

// restart sets a full time until the deadline: the ttl or, once missed, the grace.
func (h *heartbeat) restart(now time.Time) {
	h.marking = false
	if h.due = now.Add(h.ttl); h.missed {
		h.due = now.Add(h.grace)
	}
}

// setEntry replaces the entry old, which may be nil, by e. A backend in both keeps its deadline.
// The caller holds mu.
func (s *Source) setEntry(old, e *entry) {
	now := time.Now()
	e.heartbeats = map[backendID]*heartbeat{}
	for id, reg := range e.registered {
		if reg.ttl == 0 {
			continue
		}
		var h *heartbeat
		if old != nil {
			h = old.heartbeats[id]
			delete(old.heartbeats, id)
		}
		before := heartbeat{}
		if h == nil {
			h = &heartbeat{service: e.row.Key, backend: id}
		} else {
			before = *h
			s.untrack(h)
		}
		h.grace = max(reg.ttl, e.row.DrainTimeout)
		if h.ttl != reg.ttl { // includes a new heartbeat
			h.ttl = reg.ttl
			h.receive(now)
		}
		if s.Fleet != nil {
			h.owner, h.missed = reg.owner, reg.lapsed
			if before.ttl == 0 || before.owner != h.owner || before.missed != h.missed {
				h.restart(now)
			}
			if before.ttl != 0 && before.missed != h.missed {
				s.publishLapse(h)
			}
		}
		e.heartbeats[id] = h
		s.track(h)
	}
	if old != nil {
		s.forget(old)
	}
	s.endpoints += e.endpoints() - s.entries[e.row.Key].endpoints()
	s.entries[e.row.Key] = e
	s.deadlineChanged.Set()
}

// removeEntry removes a service from memory. The caller holds mu.
func (s *Source) removeEntry(e *entry) {
	s.forget(e)
	s.endpoints -= s.entries[e.row.Key].endpoints()
	delete(s.entries, e.row.Key)
}

// forget removes the heartbeats of an entry.
func (s *Source) forget(e *entry) {
	for _, h := range e.heartbeats {
		s.untrack(h)
		s.deadlines.Drop(h)
	}
}

// publishLapse publishes an event about a backend that has missed its heartbeats or has sent one
// again. Each host of a fleet publishes it.
func (s *Source) publishLapse(h *heartbeat) {
	e := event.Event{Kind: "backend_alive", Service: h.service.String(), Object: h.backend.String(), Message: "heartbeat received: takes connections again"}
	if h.missed {
		e.Kind, e.Message = "backend_expired", fmt.Sprintf("no heartbeat within %s: drained, removed in %s", h.ttl, h.grace)
	}
	if h.owner != "" {
		e.Message += fmt.Sprintf(" (node %q)", h.owner)
	}
	s.Events.Add(e)
}

// track adds the heartbeat to its owner's and schedules it. The caller holds mu.
func (s *Source) track(h *heartbeat) {
	if s.Fleet != nil && h.owner != s.Node {
		of := s.others[h.owner]
		if of == nil {
			of = map[*heartbeat]struct{}{}
			s.others[h.owner] = of
			s.ownersChanged.Set()
		}
		of[h] = struct{}{}
	}
	s.schedule(h)
}

// untrack removes the heartbeat from its owner's. It does not change the deadline. Call track or
// forget afterwards.
func (s *Source) untrack(h *heartbeat) {
	if of := s.others[h.owner]; of != nil {
		if delete(of, h); len(of) == 0 {
			delete(s.others, h.owner)
		}
	}
}

// schedule sets the deadline if this host counts the heartbeat: as its owner, or for
// an absent owner.
func (s *Source) schedule(h *heartbeat) {
	if s.Fleet == nil || h.owner == s.Node || s.takenOver[h.owner] {
		s.deadlines.Set(h, h.due)
	} else {
		s.deadlines.Drop(h)
	}
}

// Heartbeat counts a heartbeat of a backend. It costs O(log n) of all backends with a ttl. A
// drained backend receives new connections again. A backend without a ttl needs no heartbeats, but
// sending one is not an error. After ErrNoService or ErrNoBackend the backend must register again.
//
// In a fleet a heartbeat needs one write if this host doesn't own the backend's heartbeats, or if
// the backend is marked as lapsed. This host then becomes the owner. The error may be ErrStore even
// if the heartbeat counts. In that case this host could not reach the store for the ttl, and other
// hosts may consider the backend dead. The backend should then send its heartbeats to one of them.
func (s *Source) Heartbeat(ctx context.Context, key vip.BackendKey) error {
	id := backendID{key.Address, key.Port}
	if counted, err := s.countHeartbeat(key.Service, id); counted || err != nil {
		return err
	}
	_, err := s.edit(ctx, key.Service, &edit{heartbeat: true, apply: func(now *entry) (*entry, error) {
		if indexOf(now.row.Backends, id) < 0 {
			return nil, registry.ErrNoBackend
		}
		reg, ok := now.registered[id]
		if !ok || reg.ttl == 0 {
			return now, nil
		}
		next := now.edited()
		next.registered[id] = registration{ttl: reg.ttl, owner: s.Node}
		return next, nil
	}})
	if err != nil {
		return err
	}
	_, err = s.countHeartbeat(key.Service, id)
	return err
}

// countHeartbeat counts a heartbeat unless a write is needed.
func (s *Source) countHeartbeat(key vip.ServiceKey, id backendID) (counted bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	if e == nil {
		return false, registry.ErrNoService
	}
	h := e.heartbeats[id]
	switch {
	case h == nil && indexOf(e.row.Backends, id) < 0:
		return false, registry.ErrNoBackend
	case h == nil:
		return true, nil
	case s.Fleet != nil && (h.owner != s.Node || h.missed || h.marking):
		return false, nil
	}
	now := time.Now()
	if h.receive(now) {
		s.publish(&rows{put: []*entry{e}})
		s.publishLapse(h)
	}
	s.schedule(h)
	if s.Fleet != nil && s.stale != "" && now.Sub(s.staleSince) > h.ttl {
		return true, &registry.StoreError{Err: fmt.Errorf("this host can't reach the store, so the other hosts don't see the heartbeat: %w", registry.Unavailable(s.stale))}
	}
	return true, nil
}

// HeartbeatStatus is the state of a backend with a ttl.
type HeartbeatStatus struct {
	TTL     time.Duration
	Owner   string    // the node that counts the heartbeats; "" without a fleet
	Missed  bool      // no heartbeat arrived within TTL: the backend is drained
	Due     time.Time // when it is drained or, once missed, removed; zero if another node counts
	Removed time.Time // when it is removed if no heartbeat arrives; zero if another node counts
}

// HeartbeatStatuses returns the state of a service's backends with a ttl, by ID.
func (s *Source) HeartbeatStatuses(key vip.ServiceKey) map[string]HeartbeatStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	if e == nil || len(e.heartbeats) == 0 {
		return nil
	}
	out := make(map[string]HeartbeatStatus, len(e.heartbeats))
	for id, h := range e.heartbeats {
		st := HeartbeatStatus{TTL: h.ttl, Owner: h.owner, Missed: h.missed}
		if s.deadlines.Has(h) {
			if st.Due, st.Removed = h.due, h.due; !h.missed {
				st.Removed = h.due.Add(h.grace)
			}
		}
		out[id.String()] = st
	}
	return out
}

// runDeadlines handles deadlines until the context ends.
func (s *Source) runDeadlines(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := s.expire(ctx)
		from := time.Now()
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.deadlineChanged:
		}
		s.checkDelay(time.Since(from) - wait)
	}
}

// overdue lists backends by service.
type overdue map[vip.ServiceKey][]backendID

// expire drains overdue backends and removes those that were drained for the grace period. It
// returns the time until the next deadline. While the store is unreachable, no deadline is handled,
// because other hosts may have received heartbeats.
func (s *Source) expire(ctx context.Context) time.Duration {
	const atMost = time.Hour
	now := time.Now()
	lapsed, dead := overdue{}, overdue{}
	s.mu.Lock()
	if s.stale != "" {
		s.mu.Unlock()
		return atMost
	}
	drained := map[vip.ServiceKey]*entry{}
	for h := range s.deadlines.Due(now) {
		due := now.Add(retryInterval) // if the store refuses
		switch {
		case h.missed:
			dead[h.service] = append(dead[h.service], h.backend)
		case s.Fleet != nil:
			h.marking = true
			lapsed[h.service] = append(lapsed[h.service], h.backend)
		default:
			h.missed = true
			due = now.Add(h.grace) // from now, so that after a suspension every backend has time to return
			drained[h.service] = s.entries[h.service]
			s.publishLapse(h)
		}
		h.due = due
		s.deadlines.Set(h, h.due)
	}
	s.publish(&rows{put: slices.Collect(maps.Values(drained))})
	s.mu.Unlock()

	s.markLapsed(ctx, lapsed)
	s.removeDead(ctx, dead)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, first, any := s.deadlines.First()
	if !any {
		return atMost
	}
	return max(0, min(atMost, time.Until(first)))
}

// markLapsed marks backends in the registry as lapsed, so that every host drains them. This host
// becomes their heartbeat owner.
func (s *Source) markLapsed(ctx context.Context, lapsed overdue) {
	if len(lapsed) == 0 {
		return
	}
	err := s.editMany(ctx, slices.Collect(maps.Keys(lapsed)), func(key vip.ServiceKey, now *entry) *entry {
		next := now.edited()
		for _, id := range lapsed[key] {
			if s.heartbeatIs(key, id, func(h *heartbeat) bool { return h.marking && !h.missed }) {
				next.registered[id] = registration{ttl: next.registered[id].ttl, owner: s.Node, lapsed: true}
			}
		}
		return next
	})
	if err != nil && ctx.Err() == nil {
		s.Log.Error("backends without heartbeats not marked as lapsed, trying again", "after", retryInterval, "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, ids := range lapsed { // a backend that was not marked can send its next heartbeat without a write
		for _, id := range ids {
			if e := s.entries[key]; e != nil && e.heartbeats[id] != nil {
				e.heartbeats[id].marking = false
			}
		}
	}
}

// removeDead removes backends, except those that have sent a heartbeat or registered again in the
// meantime.
func (s *Source) removeDead(ctx context.Context, dead overdue) {
	if len(dead) == 0 {
		return
	}
	removed := overdue{}
	err := s.editMany(ctx, slices.Collect(maps.Keys(dead)), func(key vip.ServiceKey, now *entry) *entry {
		next := now.edited()
		removed[key] = nil
		for _, id := range dead[key] {
			if s.heartbeatIs(key, id, func(h *heartbeat) bool { return h.missed && s.deadlines.Has(h) }) {
				next.remove(id)
				removed[key] = append(removed[key], id)
			}
		}
		return next
	})
	if err != nil {
		if ctx.Err() == nil {
			s.Log.Error("backends without heartbeats not removed, trying again", "after", retryInterval, "err", err)
		}
		return
	}
	for key, ids := range removed {
		for _, id := range ids {
			s.Events.Add(event.Event{Kind: "backend_removed", Service: key.String(), Object: id.String(),
				Message: "no heartbeat while it was drained"})
		}
	}
}

// heartbeatIs reports whether a backend has a heartbeat for which is returns true.
func (s *Source) heartbeatIs(key vip.ServiceKey, id backendID, is func(*heartbeat) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	return e != nil && e.heartbeats[id] != nil && is(e.heartbeats[id])
}
