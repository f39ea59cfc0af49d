package pipeline

import (
	"time"

	"github.com/ironvip/ironvip/vip"
)

// clockSlack is the largest step of the host's clock that is ignored. The wall clock and the
// monotonic clock are not read at the same instant.
const clockSlack = time.Second

// clock detects steps of the host's clock. Deadlines use the wall clock, because they outlive the
// process and are shown to people. The length of a drain must not depend on such steps.
type clock struct {
	read  func() (wall vip.Instant, steady time.Duration) // steady counts from any moment, at the pace of wall
	start vip.Instant                                     // the time at which steady was 0, by the clock as last set
}

func newClock(read func() (vip.Instant, time.Duration)) clock {
	wall, steady := read()
	return clock{read: read, start: wall.Add(-steady)}
}

// hostClock reads the host's clocks.
func hostClock() func() (vip.Instant, time.Duration) {
	began := time.Now()
	return func() (vip.Instant, time.Duration) {
		now := time.Now()
		return vip.InstantOf(now), now.Sub(began)
	}
}

// now returns the time, and the step of the clock since the last call.
func (c *clock) now() (now vip.Instant, set time.Duration) {
	now, steady := c.read()
	start := now.Add(-steady)
	if set = start.Sub(c.start); set.Abs() <= clockSlack {
		return now, 0
	}
	c.start = start
	return now, set
}
