package probe

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// results is a sequence of probe results: + passes, r is refused, t times out, L is a local fault.
func outcomesOf(results string) []Outcome {
	var all []Outcome
	for _, r := range results {
		all = append(all, map[rune]Outcome{'+': OK, 'r': Refused, 't': TimedOut, 'L': Local}[r])
	}
	return all
}

// letter is the state as one character: ? unknown, H healthy, U unhealthy, and a lower-case letter
// while the next probe comes early.
func letter(s *state, c *vip.HealthCheck) string {
	text := map[vip.Health]string{vip.Unknown: "?", vip.Healthy: "H", vip.Unhealthy: "U"}[s.health]
	if s.doubtful(c) {
		return strings.ToLower(text)
	}
	return text
}

func TestRiseAndFall(t *testing.T) {
	for _, test := range []struct {
		name             string
		rise, fall       uint8
		results, states  string
		changes          int
		outcome          Outcome
		reasonOfOutcomes string
	}{
		{"the first result decides: healthy", 2, 3, "+", "H", 1, OK, ""},
		{"the first result decides: unhealthy", 2, 3, "r", "U", 1, Refused, "refused"},
		{"fewer failures than fall", 2, 3, "+rr+rr+", "HhhHhhH", 1, OK, ""},
		{"fall", 2, 3, "+rtr", "HhhU", 2, Refused, "refused"},
		{"fewer passes than rise", 3, 1, "r++r++r", "UuuUuuU", 1, Refused, "refused"},
		{"rise", 2, 3, "r++", "UuH", 2, OK, ""},
		{"rise and fall of 1", 1, 1, "+r+r", "HUHU", 4, Refused, "refused"},
		{"the cause changes when it is seen twice", 2, 3, "rtrtt", "UUUUU", 2, TimedOut, "timeout"},
		{"local faults are no evidence", 2, 3, "+LLLLrLrL", "HHHHHhhhh", 1, OK, ""},
		{"local faults explain an unknown state", 2, 3, "LL", "??", 1, Local, "local"},
		{"a result after local faults decides", 2, 3, "LLr", "??U", 2, Refused, "refused"},
		{"a local fault does not interrupt a streak", 2, 3, "r+L+", "UuuH", 2, OK, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := NewTarget(addr("127.0.0.1:1"), vip.HealthCheck{Type: vip.CheckTCP, Rise: test.rise, Fall: test.fall}).Check()
			s := newState(1)
			states, changes := "", 0
			var failed vip.Instant // the last failure is known, also when others passed since
			var failure string
			for i, o := range outcomesOf(test.results) {
				reason := o.String()
				if o == OK {
					reason = ""
				}
				before, now := s.health, vip.Instant(i+2)
				if s.add(&c, o, reason, time.Duration(i)*time.Second, now) {
					changes++
				}
				if before != s.health && s.since != now {
					t.Errorf("result %d changed the state, since is %d, want %d", i, s.since, now)
				}
				states += letter(&s, &c)
				if o != OK && o != Local {
					failed, failure = now, reason
				}
				if s.failed != failed || s.failure != failure {
					t.Errorf("after result %d, the last failure is %q at %d, want %q at %d", i, s.failure, s.failed, failure, failed)
				}
			}
			if states != test.states || changes != test.changes {
				t.Errorf("states are %s with %d changes, want %s with %d", states, changes, test.states, test.changes)
			}
			if s.outcome != test.outcome || s.reason != test.reasonOfOutcomes {
				t.Errorf("the cause is %v (%q), want %v (%q)", s.outcome, s.reason, test.outcome, test.reasonOfOutcomes)
			}
		})
	}
}

// A target that fails and passes forever is unhealthy for longer each time, up to the bound.
func TestFlapDamping(t *testing.T) {
	c := NewTarget(addr("127.0.0.1:1"), vip.HealthCheck{Type: vip.CheckTCP, Rise: 1, Fall: 1}).Check()
	s := newState(1)
	now, step := time.Duration(0), 100*time.Millisecond
	wall := func() vip.Instant { return vip.Instant(int64(now) + 1) }
	s.add(&c, OK, "", now, wall())
	var downs []time.Duration
	for range 9 {
		now += step
		if !s.add(&c, Refused, "connection refused", now, wall()) || s.health != vip.Unhealthy {
			t.Fatalf("after %v: not unhealthy", downs)
		}
		fell, row := now, s.row(Target{})
		if damped := len(downs) >= flapFree; (row.Outcome == Flapping) != damped || strings.HasPrefix(row.Reason, "flapping: ") != damped ||
			!strings.HasSuffix(row.Reason, "connection refused") || (s.held > now) != damped {
			t.Errorf("row of time %d: %+v", len(downs)+1, row)
		}
		changes := 0
		for s.health == vip.Unhealthy {
			now += step
			if s.add(&c, OK, "", now, wall()) {
				changes++
			}
			if s.health == vip.Unhealthy && s.doubtful(&c) {
				t.Fatal("a held target is probed early")
			}
		}
		expect.Equal(t, changes, 1, "changes of the row until healthy")
		downs = append(downs, now-fell)
	}
	s10 := 10 * time.Second
	for i, want := range []time.Duration{step, step, s10, 2 * s10, 4 * s10, 8 * s10, maxHold, maxHold, maxHold} {
		if downs[i] != want {
			t.Errorf("unhealthy for %v, want %v at number %d", downs, want, i)
			break
		}
	}
	// Each window without a failure forgets one.
	now += (maxFlaps - 1) * flapWindow
	s.add(&c, Refused, "", now, wall())
	if s.flaps != 2 || s.outcome != Refused {
		t.Errorf("after a long time: flaps %d, outcome %v", s.flaps, s.outcome)
	}
}

// The row of a held target changes when the hold has passed, not at each probe.
func TestHeldRowIsStable(t *testing.T) {
	c := NewTarget(addr("127.0.0.1:1"), vip.HealthCheck{Type: vip.CheckTCP, Rise: 2, Fall: 1}).Check()
	s := newState(1)
	changes := 0
	now := time.Duration(0)
	for _, o := range outcomesOf("+r++r++r" + strings.Repeat("++r", 3)) {
		now += time.Second // the third r falls at 8 s and holds until 18 s
		if s.add(&c, o, "x", now, 1) {
			changes++
		}
	}
	if changes != 6 || s.outcome != Flapping {
		t.Errorf("%d changes, outcome %v; want 6 and flapping", changes, s.outcome)
	}
	for range 2 {
		now += time.Second
		s.add(&c, Refused, "x", now, 1)
	}
	expect.Equal(t, s.outcome, Refused, "after the hold the cause")
}

func TestRestoredState(t *testing.T) {
	c := NewTarget(addr("127.0.0.1:1"), vip.HealthCheck{Type: vip.CheckTCP}).Check()
	now, wall := 5*time.Second, vip.InstantOf(time.Unix(1e9, 0))
	row := Result{Health: vip.Unhealthy, Since: wall - 100, Outcome: Refused, Reason: "connect:\nrefused"}

	s := restoreState(row, wall)
	if s.doubtful(&c) || s.row(Target{}) != (Result{Health: vip.Unhealthy, Since: wall - 100, Outcome: Refused, Reason: "connect: refused"}) {
		t.Errorf("restored %+v", s.row(Target{}))
	}
	if s.failed != wall-100 || s.failure != "connect: refused" {
		t.Errorf("restored the last failure %q at %v", s.failure, s.failed)
	}
	if s.add(&c, OK, "", now, wall); s.health != vip.Unhealthy {
		t.Error("one pass of 2 decided about a restored state")
	}
	if s.add(&c, OK, "", now, wall); s.health != vip.Healthy {
		t.Error("two passes did not")
	}

	row.Since = wall.Add(time.Hour) // the clock was set back
	expect.Equal(t, restoreState(row, wall).since, wall, "unhealthy since")
	for _, h := range []vip.Health{0, vip.Unknown, vip.Unchecked, vip.Ejected} {
		expect.Equal(t, restoreState(Result{Health: h, Reason: "x", Outcome: Local}, wall), newState(wall), "restored %v", h)
	}
}

// Whatever the results are, the state follows from the last ones, and a hold is bounded.
func TestStateFollowsFromTheLastResults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewTarget(addr("127.0.0.1:1"), vip.HealthCheck{Type: vip.CheckTCP,
			Rise: rapid.Uint8Range(1, 4).Draw(t, "rise"), Fall: rapid.Uint8Range(1, 4).Draw(t, "fall")}).Check()
		s := newState(1)
		now, fell := time.Duration(0), time.Duration(-1)
		var streak int // passes, or failures as a negative number
		for range rapid.IntRange(1, 200).Draw(t, "results") {
			now += time.Duration(rapid.IntRange(0, 30_000).Draw(t, "ms")) * time.Millisecond
			o := rapid.SampledFrom([]Outcome{OK, OK, OK, Refused, TimedOut, Local}).Draw(t, "outcome")
			before := s
			changed := s.add(&c, o, "x", now, 1)
			row, former := s.row(Target{}), before.row(Target{})
			must.Equal(t, changed, (row != former), "changed is %t, the row went from %+v to %+v", changed, former, row)
			switch {
			case o == OK:
				streak = max(streak, 0) + 1
			case o != Local:
				streak = min(streak, 0) - 1
			}
			if s.health == vip.Unhealthy && before.health != vip.Unhealthy {
				fell = now
			}
			if s.health != before.health && int(row.InARow) != max(streak, -streak) {
				t.Fatalf("%s after %d in a row, reported as %d", s.health, streak, row.InARow)
			}
			var want vip.Health
			switch {
			case o == Local:
				want = before.health
			case before.health == vip.Unknown && streak > 0:
				want = vip.Healthy
			case before.health == vip.Unknown:
				want = vip.Unhealthy
			case before.health == vip.Healthy && -streak >= int(c.Fall):
				want = vip.Unhealthy
			case before.health == vip.Unhealthy && streak >= int(c.Rise) && now >= fell+maxHold:
				want = vip.Healthy
			case before.health == vip.Unhealthy && streak >= int(c.Rise):
				want = s.health // within the bound, the hold decides
			default:
				want = before.health
			}
			must.Equal(t, s.health, want, "%v became %v after %d, want %v", before.health, s.health, streak, want)
			if s.held > fell+maxHold || s.flaps > maxFlaps {
				t.Fatalf("held until %v, fell at %v, flaps %d", s.held, fell, s.flaps)
			}
		}
	})
}
