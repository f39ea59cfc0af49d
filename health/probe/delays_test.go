package probe

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

const ms = time.Millisecond

// A timeout counts unless the process could have lost half of it, in as many delays as a probe has
// to continue.
func TestStarved(t *testing.T) {
	every := func(period, took time.Duration) (d delays) {
		for at := period; at <= 10*time.Second; at += period {
			d.add(at, took)
		}
		return d
	}
	one := func(ended, took time.Duration) (d delays) {
		d.add(ended, took)
		return d
	}
	for _, tc := range []struct {
		name                string
		delays              delays
		began, timeout, now time.Duration
		took                time.Duration // 0: the timeout
		want                bool
	}{
		{name: "none", began: 9 * time.Second, timeout: time.Second},
		{name: "timers of a busy host", delays: every(25*ms, 20*ms), began: 9 * time.Second, timeout: time.Second},
		{name: "a process that runs 5 ms of 100 ms", delays: every(100*ms, 95*ms), began: 9 * time.Second, timeout: time.Second, want: true},
		{name: "the same with a long timeout", delays: every(100*ms, 95*ms), began: 0, timeout: 10 * time.Second},
		{name: "it was stopped for half of the time", delays: one(9500*ms, 500*ms), began: 9 * time.Second, timeout: time.Second, want: true},
		{name: "it was stopped for less", delays: one(9500*ms, 499*ms), began: 9 * time.Second, timeout: time.Second},
		{name: "it was stopped before", delays: one(8900*ms, 5*time.Second), began: 9 * time.Second, timeout: time.Second},
		{name: "it was stopped mostly before", delays: one(9100*ms, 5*time.Second), began: 9 * time.Second, timeout: time.Second},
		{name: "the timeout was noticed late", began: 8 * time.Second, timeout: time.Second, took: 1600 * ms, want: true},
		{name: "the timeout was noticed a little late", began: 8 * time.Second, timeout: time.Second, took: 1100 * ms},
		{name: "a command that failed after most of its time", delays: every(100*ms, 95*ms), began: 9 * time.Second, timeout: time.Second, took: 900 * ms, want: true},
		{name: "a command that failed early", delays: every(100*ms, 95*ms), began: 9 * time.Second, timeout: time.Second, took: 400 * ms},
	} {
		took := cmp.Or(tc.took, tc.timeout)
		got := tc.delays.starved(tc.began, 10*time.Second, tc.timeout, took)
		expect.Equal(t, got != "", tc.want, "%s: %q", tc.name, got)
	}
}

// The sum of the longest delays equals that of a sorted list, also when the ring has overwritten some.
func TestLongestDelays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d delays
		var all []delay
		now := time.Duration(0)
		for range rapid.SampledFrom([]int{0, 3, 20, keptDelays, 2*keptDelays + 5}).Draw(t, "delays") {
			one := time.Duration(rapid.IntRange(0, 40).Draw(t, "delay")) * ms
			now += one + ms
			d.add(now, one)
			if one >= leastDelay {
				all = append(all, delay{now, one})
			}
		}
		began := time.Duration(rapid.Int64Range(0, int64(now)).Draw(t, "began"))
		var took []time.Duration
		for _, one := range all[max(0, len(all)-keptDelays):] {
			if one.ended > began {
				took = append(took, min(one.took, one.ended-began))
			}
		}
		slices.Sort(took)
		want := time.Duration(0)
		for _, one := range took[max(0, len(took)-wakes):] {
			want += one
		}
		got := d.since(began, now)
		must.Equal(t, got, min(want, now-began), "lost %v, want %v", got, want)
	})
}

// While the host gives the agent too little time of its processors, timeouts are counted and shown,
// and no backend becomes unhealthy. With enough time, the same timeouts count.
// Slow: 200 targets are probed for minutes of fake time, six times.
func TestTimeoutsOfASaturatedHost(t *testing.T) {
	for _, c := range []struct {
		name    string
		check   vip.HealthCheck
		outcome Outcome
		took    time.Duration
	}{
		{"tcp", tcp, TimedOut, time.Second},
		{"a command without an end", vip.HealthCheck{Type: vip.CheckExec, Command: "/bin/check"}, TimedOut, time.Second},
		{"a command with a timeout of its own", vip.HealthCheck{Type: vip.CheckExec, Command: "/bin/check"}, Exited, 900 * ms},
	} {
		t.Run(c.name, func(t *testing.T) { timeoutsOfASaturatedHost(t, c.check, c.outcome, c.took) })
	}
}

func timeoutsOfASaturatedHost(t *testing.T, check vip.HealthCheck, failure Outcome, took time.Duration) {
	for _, saturated := range []bool{true, false} {
		bubble.Run(t, fmt.Sprint(saturated), func(t *testing.T) {
			const n = 200
			begin := time.Now()
			work := 10 * time.Microsecond
			if saturated {
				work = 25 * ms // for each of about 100 probes in a second
			}
			l := newLab(t, Options{Commands: n}, func(Target) (Outcome, time.Duration) {
				if at := time.Since(begin); at < 10*time.Second || at > 50*time.Second {
					return OK, ms
				}
				time.Sleep(work) // in the engine's goroutine, which holds its lock
				return failure, took
			})
			for _, target := range targets(n, check) {
				l.Start(target, Use{Namespace: "default"})
			}
			time.Sleep(65 * time.Second)
			s := l.Stats()
			counted := map[Outcome]uint64{}
			for _, c := range s.Probes {
				counted[c.Outcome] = c.N
			}
			fault, is := s.Faults[Starved]
			if saturated && (s.Changes != n || counted[failure] > n/4 || counted[Starved] < 5*n || !is || fault.Probes != counted[Starved] || fault.Reason == "") {
				t.Errorf("saturated: %d changes, %v, %+v", s.Changes, counted, fault)
			}
			if !saturated && (s.Changes != 3*n || counted[Starved] != 0 || is) {
				t.Errorf("not saturated: %d changes, %v, %+v", s.Changes, counted, fault)
			}
			time.Sleep(faultQuiet)
			expect.Empty(t, l.Stats().Faults, "a minute later")
		})
	}
}
