package pipeline

import (
	"time"

	"github.com/ironvip/ironvip/vip"
)

// clockSlack is how far the host's clock may be set without anybody noticing: a
// reading of it and of the monotonic clock are not of the same moment.
const clockSlack = time.Second

// clock notices that somebody set the host's clock. Deadlines are by that one,
// for they outlive the process and are shown to people; how long a drain takes
// must not depend on who sets it.
type clock struct {
	read  func() (wall vip.Instant, steady time.Duration) // steady counts from any moment on, at the pace of wall
	start vip.Instant                                     // when steady was 0, by the clock as it was last set
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

// now returns the time, and by how much the clock was set since the last call.
func (c *clock) now() (now vip.Instant, set time.Duration) {
	now, steady := c.read()
	start := now.Add(-steady)
	if set = start.Sub(c.start); set.Abs() <= clockSlack {
		return now, 0
	}
	c.start = start
	return now, set
}
