package rest

import (
	"context"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/internal/fleet"
)

// Fleet tells of the hosts that share the registries. A *fleet.Tree is one.
type Fleet interface {
	fleet.Turn
	// AwayFor returns for how long the node has not been there, as far as this host
	// has seen itself; 0 when it is there.
	AwayFor(node string) time.Duration
}

// keepersInterval is how often the elected host looks whether the nodes that
// keep backends are still there.
const keepersInterval = time.Second

// watchKeepers stands in for keepers that are gone, while this host is the
// elected one: their backends get a full ttl from then on to be heard of by
// somebody else. It costs O(keepers) a look, and O(backends) of one that goes or
// comes back.
func (s *Source) watchKeepers(ctx context.Context) {
	tick := time.NewTicker(keepersInterval)
	defer tick.Stop()
	for {
		changed := s.Fleet.Changed()
		s.standIn()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-s.keepersChanged:
		case <-tick.C:
		}
	}
}

// standIn corrects for whom this host counts beside itself.
func (s *Source) standIn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine, now := s.Fleet.Mine(), time.Now()
	gone := map[string]bool{}
	for node, lives := range s.others {
		is := mine && s.away(node)
		if is {
			gone[node] = true
		}
		if is == s.gone[node] {
			continue
		}
		s.gone[node] = is
		for l := range lives {
			l.restart(now)
			s.count(l)
		}
		s.nudge()
	}
	s.gone = gone
}

// awayAfter is how long a node may be missing before it counts as away: hosts
// that start at the same time don't see each other at once, and one that starts
// anew is back soon.
const awayAfter = 5 * time.Second

// away reports whether a node that something was said through is not there. No
// node at all is never there.
func (s *Source) away(node string) bool { return node == "" || s.Fleet.AwayFor(node) > awayAfter }

func (s *Source) nudgeKeepers() {
	select {
	case s.keepersChanged <- struct{}{}:
	default:
	}
}

// setStale notes whether the registries are in touch. While they are not, no
// deadline passes; then everyone has a full ttl, for other hosts could not take
// a heartbeat meanwhile.
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
	s.tellStale()
}

// overslept is by how much a deadline may be missed before the host counts as
// having been stopped: it has not heard the heartbeats of that time.
const overslept = 5 * time.Second

// wakeUp looks at how late a deadline is. In a fleet a host that was stopped
// would mark as lapsed, for everyone, who only was not heard by it.
func (s *Source) wakeUp(late time.Duration) {
	if s.Fleet == nil || late < overslept {
		return
	}
	s.Log.Warn("this host was stopped for a while; backends with a ttl have all of it again", "late", late)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restartAll()
}

// restartAll gives every life that is counted here its full time again. The
// caller holds mu.
func (s *Source) restartAll() {
	now := time.Now()
	for l := range s.due.All() {
		l.restart(now)
		s.due.Set(l, l.due)
	}
	s.nudge()
}

func errStale(why string) error { return fmt.Errorf("%w: %s", fleet.ErrUnavailable, why) }
