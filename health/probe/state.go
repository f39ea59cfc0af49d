package probe

import (
	"fmt"
	"math"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// Flap damping. A target that became unhealthy more than flapFree times stays unhealthy for at
// least firstHold after the next time, and twice as long after each further one, up to maxHold.
// One time is forgotten for each flapWindow without another. With maxFlaps, a target that no longer
// flaps has all its freedom back after 35 minutes.
const (
	flapWindow = 5 * time.Minute
	flapFree   = 2
	firstHold  = 10 * time.Second
	maxHold    = 2 * time.Minute
	maxFlaps   = 7
)

// state is the health of one target. Its methods are pure: they get the time, in two clocks. now is
// monotonic, for decisions, so that a change of the wall clock has no effect. wall is for rows.
type state struct {
	health  vip.Health
	outcome Outcome
	seen    Outcome // of the last probe; a cause changes when it is seen twice in a row
	flaps   uint8
	passing uint32 // in a row
	failing uint32 // in a row
	inARow  uint32 // of those that led to health
	since   vip.Instant
	failed  vip.Instant // when a probe last failed; zero: none did
	reason  string
	failure string        // of the probe that failed last
	fell    time.Duration // when flaps was updated
	held    time.Duration // not healthy before this
}

// newState returns the state of a new target.
func newState(wall vip.Instant) state { return state{health: vip.Unknown, since: wall} }

// restoreState returns the state of a row of an earlier run. Only Healthy and Unhealthy are a starting
// state. A time that can't be becomes the present one: the clock may have changed. Earlier flaps
// are not known any more.
func restoreState(r Result, wall vip.Instant) state {
	s := newState(wall)
	if r.Health != vip.Healthy && r.Health != vip.Unhealthy {
		return s
	}
	s.health, s.since, s.outcome, s.reason = r.Health, r.Since, r.Outcome, clip(r.Reason)
	if s.since.IsZero() || s.since.After(wall) {
		s.since = wall
	}
	if s.health == vip.Unhealthy { // at the latest then; later failures were not kept
		s.failed, s.failure = s.since, s.reason
	}
	return s
}

// add counts the result of a probe and reports whether the row changes. A local outcome is no
// evidence: it changes nothing except the cause of an unknown state.
func (s *state) add(c *vip.HealthCheck, o Outcome, reason string, now time.Duration, wall vip.Instant) (changed bool) {
	switch {
	case o == OK:
		return s.pass(c, now, wall)
	case o.IsLocal():
		if s.health != vip.Unknown || s.outcome.IsLocal() {
			return false
		}
		s.outcome, s.reason = o, reason
		return true
	}
	return s.fail(c, o, reason, now, wall)
}

func (s *state) pass(c *vip.HealthCheck, now time.Duration, wall vip.Instant) bool {
	s.failing, s.seen = 0, OK
	s.passing = min(s.passing, math.MaxUint32-1) + 1
	switch {
	case s.health == vip.Healthy:
		return false
	case s.health == vip.Unhealthy && (s.passing < uint32(c.Rise) || now < s.held):
		return false
	}
	s.become(vip.Healthy, OK, "", s.passing, wall)
	return true
}

func (s *state) fail(c *vip.HealthCheck, o Outcome, reason string, now time.Duration, wall vip.Instant) bool {
	again := s.seen == o
	s.failed, s.failure = wall, reason
	s.passing, s.seen = 0, o
	s.failing = min(s.failing, math.MaxUint32-1) + 1
	switch s.health {
	case vip.Healthy:
		if s.failing < uint32(c.Fall) {
			return false
		}
		if hold := s.flap(now); hold > 0 {
			reason = clip(fmt.Sprintf("flapping: unhealthy %d times recently, stays unhealthy for at least %s: %s", s.flaps, hold, reason))
			o = Flapping
		}
		s.become(vip.Unhealthy, o, reason, s.failing, wall)
		return true
	case vip.Unhealthy:
		if s.outcome == o || !again || now < s.held {
			return false
		}
		s.outcome, s.reason = o, reason
		return true
	default:
		s.become(vip.Unhealthy, o, reason, s.failing, wall)
		return true
	}
}

// flap counts a change to Unhealthy and returns how long the target must stay unhealthy.
func (s *state) flap(now time.Duration) (hold time.Duration) {
	forgotten := min((now-s.fell)/flapWindow, maxFlaps)
	s.flaps = min(max(s.flaps, uint8(forgotten))-uint8(forgotten)+1, maxFlaps)
	s.fell = now
	if s.flaps <= flapFree {
		return 0
	}
	hold = min(firstHold<<(s.flaps-flapFree-1), maxHold)
	s.held = now + hold
	return hold
}

// become changes the health, after some results in a row.
func (s *state) become(h vip.Health, o Outcome, reason string, inARow uint32, wall vip.Instant) {
	s.health, s.outcome, s.reason, s.inARow, s.since = h, o, reason, inARow, wall
}

// doubtful reports whether the next probe should come early: the state is unknown, or the last
// results differ from it. A held target that passes is not doubtful: time decides.
func (s *state) doubtful(c *vip.HealthCheck) bool {
	switch s.health {
	case vip.Healthy:
		return s.failing > 0
	case vip.Unhealthy:
		return s.passing > 0 && s.passing < uint32(c.Rise)
	default:
		return true
	}
}

// row returns the row of the table.
func (s *state) row(t Target) Result {
	return Result{Target: t, Health: s.health, Since: s.since, Outcome: s.outcome, Reason: s.reason, InARow: s.inARow}
}
