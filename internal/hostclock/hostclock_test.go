package hostclock

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/vip"
)

func TestClock(t *testing.T) {
	start := vip.InstantOf(time.Date(2026, 11, 8, 12, 0, 0, 0, time.UTC))
	wall, steady := start, time.Hour
	c := New(func() (vip.Instant, time.Duration) { return wall, steady })
	for _, step := range []struct{ wall, steady, want time.Duration }{
		{0, 0, 0},
		{time.Hour, time.Hour, 0},
		{Slack, 0, 0},
		{-2 * Slack, 0, 0},
		{Slack, 0, 0},
		{time.Minute + time.Hour, time.Minute, time.Hour},
		{time.Minute, time.Minute, 0},
		{time.Minute - time.Hour, time.Minute, -time.Hour},
		{Slack, 0, 0},
		{1, 0, Slack + 1}, // in small steps
		{0, 0, 0},
	} {
		wall, steady = wall.Add(step.wall), steady+step.steady
		if now, set := c.Now(); now != wall || set != step.want {
			t.Errorf("%+v: it is %s and the clock was set by %s", step, now, set)
		}
	}
}
