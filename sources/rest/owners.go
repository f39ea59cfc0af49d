package rest

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/internal/fleet"
)

// Fleet is what the source needs of the other hosts. A *fleet.Tree is one.
type Fleet interface {
	fleet.Leadership
	// AwayFor returns how long a node has been absent, as far as this host has seen; 0
	// if it is there.
	AwayFor(node string) time.Duration
}

// ownersInterval is how often the elected host checks whether the heartbeat owners
// are present.
const ownersInterval = time.Second

// watchOwners makes the elected host count heartbeats for owners that are absent.
// Their backends get a full ttl from then on, to send a heartbeat to another host. A
// check costs O(owners), plus O(backends) of an owner that goes or returns.
func (s *Source) watchOwners(ctx context.Context) {
	tick := time.NewTicker(ownersInterval)
	defer tick.Stop()
	for {
		changed := s.Fleet.Changed()
		s.takeOver()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-s.ownersChanged:
		case <-tick.C:
		}
	}
}

// takeOver updates for which owners this host counts.
func (s *Source) takeOver() {
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
		signal(s.deadlineChanged)
	}
	s.takenOver = takenOver
}

// absentAfter is how long a node may be missing before it counts as absent: hosts
// that start together don't see each other at once, and a restart is short.
const absentAfter = 5 * time.Second

// absent reports whether a heartbeat owner is absent, as "" always is.
func (s *Source) absent(node string) bool { return node == "" || s.Fleet.AwayFor(node) > absentAfter }

// setStale records whether the store can be reached. While it can't, no deadline
// passes. Then every backend gets a full ttl, because no other host could accept its
// heartbeats meanwhile.
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

// maxDelay is the delay of a deadline from which on this host counts as suspended:
// it has not received the heartbeats of that time.
const maxDelay = 5 * time.Second

// checkDelay restarts all deadlines after a suspension of a fleet's host, which
// would mark backends as lapsed, for all hosts, that it only did not hear.
func (s *Source) checkDelay(late time.Duration) {
	if s.Fleet == nil || late < maxDelay {
		return
	}
	s.Log.Warn("this host was suspended; backends with a ttl get a full ttl", "for", late)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restartAll()
}

// restartAll gives every backend that is counted here its full time. The caller
// holds mu.
func (s *Source) restartAll() {
	now := time.Now()
	for h := range s.deadlines.All() {
		h.restart(now)
		s.deadlines.Set(h, h.due)
	}
	signal(s.deadlineChanged)
}
