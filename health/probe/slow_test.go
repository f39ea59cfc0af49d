package probe

import (
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// A slow target is probed at a random time within its longer interval, also for the first time. While
// its health is in doubt, it has the same interval as others. Back at the full rate, its next
// probe comes within the normal interval.
func TestSlowTargets(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const times = 10
		var down sync.Map // of Target: the engine's goroutine reads it
		l := newLab(t, Options{}, func(t Target) (Outcome, time.Duration) {
			if _, is := down.Load(t); is {
				return Refused, time.Millisecond
			}
			return OK, time.Millisecond
		})
		all := targets(200, vip.HealthCheck{Type: vip.CheckTCP})
		for _, one := range all {
			l.Start(one, Use{Namespace: "default", Slow: times, Begins: Result{Target: one, Health: vip.Healthy}})
		}
		interval := all[0].Check().Interval
		time.Sleep(times * interval * 9 / 10)
		first, early := 0, 0
		for _, one := range all {
			if starts := l.startsOf(one); len(starts) > 0 {
				if first++; starts[0] < times*interval/2 {
					early++
				}
			}
		}
		if first < 150 || first > 199 || early < 60 || early > 140 {
			t.Errorf("after 0.9 of an interval, %d of 200 targets were probed, %d of them in its first half", first, early)
		}
		time.Sleep(5 * times * interval)
		for _, one := range all {
			starts := l.startsOf(one)
			for i := 1; i < len(starts); i++ {
				must.Between(t, starts[i]-starts[i-1], times*interval*8/10-10*time.Millisecond, times*interval+10*time.Millisecond, "between two probes")
			}
		}
		down.Store(all[0], true)
		time.Sleep(times*interval + 2*all[0].Check().FastInterval + time.Second)
		expect.Equal(t, l.health()[vip.Unhealthy], 1, "targets are unhealthy")
		before := len(l.startsOf(all[1]))
		l.Start(all[1], Use{Namespace: "default"})
		time.Sleep(10*interval + interval/2)
		expect.Between(t, len(l.startsOf(all[1]))-before, 10, 14, "probes in 10 intervals at the full rate")
	})
}
