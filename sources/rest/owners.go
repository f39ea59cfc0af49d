package rest

import (
	"context"
	"time"
)

// Fleet is the part of the fleet that the source uses. *fleet.Tree implements it.
type Fleet interface {
	// Mine reports whether this host is the leader. Changed returns a channel that is closed when that
	// changes.
	Mine() bool
	Changed() <-chan struct{}
	// AwayFor returns how long a node has been absent, as far as this host knows; 0 if it is
	// present.
	AwayFor(node string) time.Duration
}

// ownersInterval is how often the elected host checks whether heartbeat owners are present.
const ownersInterval = time.Second

// watchOwners makes the elected host count heartbeats for absent owners. Their backends get a full
// ttl from then on, to send a heartbeat to another host. A check costs O(owners), plus O(backends)
// of an owner that leaves or returns.
func (s *Source) watchOwners(ctx context.Context) {
	tick := time.NewTicker(ownersInterval)
	defer tick.Stop()
	for {
		changed := s.Fleet.Changed()
		s.updateOwners()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-s.ownersChanged:
		case <-tick.C:
		}
	}
}

// updateOwners updates the set of owners that this host counts heartbeats for.
func (s *Source) updateOwners() {
	s.mu.Lock()
	defer s.mu.Unlock()
	elected, now := s.Fleet.Mine(), time.Now()
	takenOver := map[string]bool{}
	for node, heartbeats := range s.others {
		is := elected && s.absent(node)
		if is {
			takenOver[node] = true
		}
		if is == s.takenOver[node] {
			continue
		}
		s.takenOver[node] = is
		for h := range heartbeats {
			h.restart(now)
			s.schedule(h)
		}
		s.deadlineChanged.Set()
	}
	s.takenOver = takenOver
}

// absentAfter is how long a node must be missing before it counts as absent. Hosts that start
// together don't see each other at once, and a restart takes less time.
const absentAfter = 5 * time.Second

// absent reports whether a heartbeat owner is absent. The owner "" is always absent.
func (s *Source) absent(node string) bool { return node == "" || s.Fleet.AwayFor(node) > absentAfter }

// setStale records whether the store is reachable. While it is not, no deadline is handled.
// Afterwards every backend gets a full ttl, because no other host could accept its heartbeats in
// the meantime.
func (s *Source) setStale(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why == s.stale {
		return
	}
	was := s.stale
	s.stale = why
	switch {
	case was == "":
		s.staleSince = time.Now()
	case why == "":
		s.restartAll()
		if s.sink != nil {
			s.sink.Fresh()
		}
	}
	s.publishStale()
}

// maxDelay is the delay of a deadline from which this host counts as suspended. It has not received
// the heartbeats of that time.
const maxDelay = 5 * time.Second

// checkDelay restarts all deadlines after this host of a fleet was suspended. Otherwise it would
// mark backends as lapsed on all hosts, although only this host missed their heartbeats.
func (s *Source) checkDelay(late time.Duration) {
	if s.Fleet == nil || late < maxDelay {
		return
	}
	s.Log.Warn("this host was suspended; backends with a ttl get a full ttl", "for", late)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restartAll()
}

// restartAll sets a full time for every backend that this host counts heartbeats for. The caller
// holds mu.
func (s *Source) restartAll() {
	now := time.Now()
	for h := range s.deadlines.All() {
		h.restart(now)
		s.deadlines.Set(h, h.due)
	}
	s.deadlineChanged.Set()
}
