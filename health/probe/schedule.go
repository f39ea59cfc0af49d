package probe

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/ironvip/ironvip/vip"
)

const (
	// jitter is the part of an interval by which chance shortens it at most.
	jitter = 0.2
	// firstSpread is the part of the interval over which the first probes of many targets are
	// spread. The second probes begin when it ends (after 1 - jitter), so the rate has no peak.
	firstSpread = 1 - jitter
	// maxSpread bounds that time for long intervals.
	maxSpread = 10 * time.Second
	// spreadStep bounds that time for few targets: the first of them need no 80% of an interval. It
	// adds about 1,500 probes in the first second at most.
	spreadStep = 4 * time.Millisecond
)

// spread distributes the first probes of new targets evenly, without knowing how many will come.
// Multiples of the golden ratio, modulo 1, are evenly distributed after any number of them.
type spread struct {
	n      uint64
	recent time.Duration // spreadStep for each recent target; it shrinks as time passes
	last   time.Duration
}

// next returns how long after now the next target is due. Without other recent targets, it is 0.
func (s *spread) next(c *vip.HealthCheck, now time.Duration) time.Duration {
	s.recent = max(0, s.recent-(now-s.last))
	_, phase := math.Modf(float64(s.n) * (math.Phi - 1))
	within := min(time.Duration(firstSpread*float64(c.Interval)), maxSpread, s.recent)
	s.n++
	s.recent += spreadStep
	s.last = now
	return time.Duration(phase * float64(within))
}

// interval returns the time between two probes of a target whose health is not in doubt.
func interval(c *vip.HealthCheck, slow int) time.Duration { return c.Interval * time.Duration(slow) }

// random returns a random duration below d.
func random(chance *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(chance.Int64N(int64(max(d, 1))))
}

// following returns when the probe after one that began at start is due: an interval later, but not
// before now, because a probe can take longer than its interval.
func following(chance *rand.Rand, c *vip.HealthCheck, slow int, doubtful bool, start, now time.Duration) time.Duration {
	wait := interval(c, slow)
	if doubtful {
		wait = c.FastInterval
	}
	wait -= time.Duration(chance.Float64() * jitter * float64(wait))
	return max(start+wait, now)
}
