// Package hostclock reads the host's clock and detects when it is set.
//
// Deadlines use the wall clock, because they outlive the process and are shown to people. The time
// until a deadline must not depend on steps of that clock. A step is a difference between the wall
// clock and the monotonic clock. The owner of deadlines calls Now before it compares them, and
// moves them by the step. The package has no timers.
package hostclock

import (
	"time"

	"github.com/ironvip/ironvip/vip"
)

// Slack is the largest step that is ignored. The wall clock and the monotonic clock are not read at
// the same instant.
const Slack = time.Second

// Clock detects steps of the host's clock. It is not safe for concurrent use.
type Clock struct {
	read  Reader
	start vip.Instant // the time at which steady was 0, by the clock as last set
}

// Reader returns the time by the wall clock, and by a steady clock that counts from any moment.
type Reader func() (wall vip.Instant, steady time.Duration)

// New returns a clock that reads with read. Steps before New are not detected.
func New(read Reader) Clock {
	wall, steady := read()
	return Clock{read: read, start: wall.Add(-steady)}
}

// Host returns the reader of the host's clocks.
func Host() Reader {
	began := time.Now()
	return func() (vip.Instant, time.Duration) {
		now := time.Now()
		return vip.InstantOf(now), now.Sub(began)
	}
}

// Now returns the time by the wall clock, and the step of the clock since the last call.
func (c *Clock) Now() (now vip.Instant, set time.Duration) {
	now, steady := c.read()
	start := now.Add(-steady)
	if set = start.Sub(c.start); set.Abs() <= Slack {
		return now, 0
	}
	c.start = start
	return now, set
}
