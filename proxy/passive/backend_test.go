package passive

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

func TestAtMostHalfIsEjected(t *testing.T) {
	for _, tc := range []struct {
		frontends []string
		fail      string
		want      string
	}{
		{[]string{"a"}, "a", ""},
		{[]string{"ab"}, "ab", "a"},
		{[]string{"abc"}, "abc", "a"},
		{[]string{"abcde"}, "edcba", "de"},
		{[]string{"abcd", "ab"}, "abc", "ac"}, // both frontends keep half
		{[]string{"ab", "a"}, "ab", "b"},
	} {
		inSketch(t, func(t *testing.T, s *sketch) {
			for _, name := range tc.fail {
				s.of(string(name)).Refused(refusedErr)
			}
			s.expect(t, tc.want)
		}, tc.frontends...)
	}
}

// If other backends become unusable, ejections end rather than that most are ejected.
func TestFewerBackendsEndEjections(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch) {
		s.of("a").Refused(refusedErr)
		s.of("b").Refused(refusedErr)
		s.expect(t, "ab")
		s.choose(s.fronts[0], "abCD")
		expect.Equal(t, len(s.ejected()), 1, "of 2 usable backends are ejected")
		s.choose(s.fronts[0], "c")
		s.expect(t, "")
	}, "abcd")
}

// A backend that becomes usable again, because its health check passes, is tried at once.
func TestReadmit(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch) {
		s.of("a").Refused(refusedErr)
		s.choose(s.fronts[0], "aBc") // another backend
		s.expect(t, "a")
		s.of("a").Readmit()
		s.expect(t, "")
		expect.True(t, s.of("a").Admits(s.now(), 0), "still skipped")
	}, "abc")
}

// The backoff doubles with each failed try up to its bound. One client tries at a time, and failures
// of connections that began earlier don't count. After a calm time, it begins anew.
func TestTheBackoffGrows(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch) {
		x := s.of("a")
		x.Refused(refusedErr)
		for _, want := range []time.Duration{500, 1000, 2000, 4000, 5000, 5000} {
			for range 10 { // late failures
				x.Refused(refusedErr)
			}
			expect.Equal(t, time.Duration(x.avoid.Load()-s.now()), want*time.Millisecond, "skipped for")
			time.Sleep(want*time.Millisecond - 1)
			expect.False(t, x.Admits(s.now(), time.Second), "tried too early")
			time.Sleep(time.Nanosecond)
			if !x.Admits(s.now(), time.Second) || x.Admits(s.now(), time.Second) {
				t.Error("not tried by one client")
			}
			x.Refused(refusedErr)
		}
		x.Accepted(s.now())
		s.expect(t, "")
		x.Refused(refusedErr)
		expect.Equal(t, time.Duration(x.avoid.Load()-s.now()), EjectMost, "a backend that fails and works in turn is skipped for")
		x.Accepted(s.now())
		time.Sleep(calmTime + 1)
		x.Refused(refusedErr)
		expect.Equal(t, time.Duration(x.avoid.Load()-s.now()), ejectFirst, "skipped after a calm time")
	}, "ab")
}

// Each try of a backend that resets costs a client, so the tries become rarer than those of one that refuses.
func TestResetsBackOffFurther(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch) {
		x := s.of("a")
		for range resetsToEject + 10 {
			time.Sleep(max(0, time.Duration(x.avoid.Load()-s.now())))
			x.Admits(s.now(), time.Second)
			x.Reset()
		}
		expect.Equal(t, time.Duration(x.avoid.Load()-s.now()), lostMost, "skipped for")
	}, "ab")
}

// A connect is no evidence for a backend that resets its connections; an answer is.
func TestAConnectDoesNotReadmitABackendThatResets(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch) {
		x := s.of("a")
		for range resetsToEject - 1 {
			x.Reset()
		}
		x.Answered()
		for range resetsToEject - 1 {
			x.Reset()
			x.Accepted(s.now())
		}
		s.expect(t, "")
		x.Reset()
		s.expect(t, "a")
		x.Accepted(s.now())
		s.expect(t, "a")
		x.Answered()
		s.expect(t, "")
	}, "ab")
}

// Without clients, an ejection ends by itself.
func TestAnEjectionWithoutClientsEnds(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch) {
		s.of("a").Refused(refusedErr)
		time.Sleep(ejectFirst + unseenTime - time.Second)
		expect.Equal(t, s.rows.Len(), 1, "rows")
		time.Sleep(2 * time.Second)
		s.expect(t, "")
		expect.Equal(t, s.rows.Len(), 0, "rows afterwards")
		kinds, _ := s.kinds()
		expect.SameList(t, kinds, []string{"backend_ejected", "backend_readmitted"}, "events")
	}, "ab")
}

// A connection to a backend that was removed can still fail. Such a failure has no effect, also if
// the backend is back.
func TestALateFailureOfARemovedBackend(t *testing.T) {
	for _, returns := range []bool{false, true} {
		inSketch(t, func(t *testing.T, s *sketch) {
			removed := s.of("a")
			removed.Refused(refusedErr)
			time.Sleep(2 * ejectFirst)
			must.True(t, removed.Admits(s.now(), time.Second), "no client tries it")
			s.choose(s.fronts[0], "bc")
			removed.Refused(refusedErr)
			removed.Accepted(s.now())
			if returns {
				s.choose(s.fronts[0], "abc")
			}
			time.Sleep(3 * unseenTime)
			s.expect(t, "")
			s.of("b").Refused(refusedErr)
			s.expect(t, "b")
			time.Sleep(3 * unseenTime)
			s.expect(t, "")
		}, "abc")
	}
}

// A backend that its frontend has just dropped doesn't count among its ejected ones.
func TestADroppedBackendDoesNotCount(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch) {
		s.Use(&s.fronts[0].Frontend, []*Member{s.of("b")})
		s.of("a").Refused(refusedErr)
		s.expect(t, "")
	}, "ab")
}

// A flapping backend causes few events, and a mass failure one for each service.
func TestEventsAreFew(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch) {
		x := s.of("a")
		for range 100 { // 50 s
			x.Refused(refusedErr)
			time.Sleep(250 * time.Millisecond)
			x.Answered()
			time.Sleep(250 * time.Millisecond)
		}
		if kinds, _ := s.kinds(); len(kinds) == 0 || len(kinds) > 6 {
			t.Errorf("%d events of a backend that flapped for 50 s: %v", len(kinds), kinds)
		}
	}, "ab")
	inSketch(t, func(t *testing.T, s *sketch) {
		const services = 60
		feed := s.rows.Watch()
		defer feed.Close()
		for i := range services {
			f := s.add(fmt.Sprintf("web%d", i), "abcd")
			f.members["a"].Refused(refusedErr)
			f.members["b"].Refused(refusedErr)
		}
		time.Sleep(2 * reportPause)
		expect.Equal(t, s.rows.Len(), 2*services, "rows")
		kinds, messages := s.kinds()
		expect.Equal(t, len(kinds), services, "events")
		expect.Equal(t, messages[0], "web0 2 backends connections of clients failed: 10.0.0.97:80: connection refused; 10.0.0.98:80: connection refused")
	}, "ab")
}

// A connection of a backend that works takes no lock and no memory.
func TestAGoodConnectionIsNoNews(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch) {
		x := s.of("a")
		x.Answered()
		s.mu.Lock() // a call that took it would hang
		defer s.mu.Unlock()
		if n := testing.AllocsPerRun(100, func() {
			expect.True(t, x.Admits(s.now(), time.Second), "skipped")
			x.Accepted(s.now())
			x.Answered()
			x.Closed()
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}, "ab")
}

// The members of an address leave it in any order, each once.
func TestMembersLeaveTheirBackend(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}} {
		inSketch(t, func(t *testing.T, s *sketch) {
			x := s.of("a").Backend
			left := map[*Member]struct{}{}
			for _, f := range s.fronts {
				left[f.members["a"]] = struct{}{}
			}
			for _, i := range order {
				m := s.fronts[i].members["a"]
				m.Leave()
				m.Leave()
				delete(left, m)
				must.Equal(t, len(x.members), len(left), "%v: %d members after %d, want %d", order, len(x.members), i, len(left))
				for _, u := range x.members {
					_, is := left[u]
					expect.True(t, is, "%v: a wrong member after %d", order, i)
				}
			}
			expect.True(t, s.backends[x.key] == nil, "the backend stays without members")
		}, "a", "a", "a", "a")
	}
}

func TestDoubt(t *testing.T) {
	const rest = 2 * time.Second
	inSketch(t, func(t *testing.T, s *sketch) {
		x := s.of("a")
		began := s.now()
		time.Sleep(300 * time.Millisecond)
		must.True(t, x.Doubt(began, rest), "no witness")
		expect.False(t, x.Doubt(began, rest), "two witnesses")
		expect.False(t, x.Admits(s.now(), rest), "not skipped")
		s.expect(t, "")
		time.Sleep(time.Second)
		x.Settle()
		expect.True(t, x.Admits(s.now(), rest), "still skipped")
		if kinds, _ := s.kinds(); len(kinds) != 0 || s.rows.Len() != 0 {
			t.Errorf("reported: %v, %d rows", kinds, s.rows.Len())
		}

		x.Doubt(s.now(), rest)
		time.Sleep(rest)
		x.Refused(refusedErr)
		x.Settle()
		s.expect(t, "a")
		expect.Equal(t, s.fronts[0].skipped(), 1, "skipped")
		x.Accepted(s.now())
		s.expect(t, "")

		began = s.now()
		time.Sleep(time.Millisecond)
		x.Accepted(began)
		expect.False(t, x.Doubt(began, rest), "doubted, although it answers")
	}, "ab")
}

// At most half of the backends are skipped, whatever happens in whatever order.
func TestDoubtsAndEjectionsAreCounted(t *testing.T) {
	for seed := range uint64(50) {
		inSketch(t, func(t *testing.T, s *sketch) {
			r := rand.New(rand.NewPCG(seed, 1))
			names := []string{"a", "b", "c", "d", "e"}
			for step := range 300 {
				x := s.of(names[r.IntN(len(names))])
				switch r.IntN(9) {
				case 0:
					x.Doubt(s.now(), time.Second)
				case 1:
					x.Settle()
				case 2:
					x.Refused(refusedErr)
				case 3:
					x.Reset()
				case 4:
					x.Accepted(s.now())
				case 5:
					x.Answered()
				case 6:
					x.Admits(s.now(), time.Second)
				case 7:
					time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
				case 8:
					some := ""
					for _, name := range names {
						if r.IntN(4) == 0 {
							name = strings.ToUpper(name)
						}
						some += name
					}
					s.choose(s.fronts[0], some)
				}
				synctest.Wait()
				f, n := s.fronts[0], 0
				for _, m := range f.members {
					if skipped := m.ejected || m.doubted; skipped != (m.avoid.Load() != 0) || m.ejected && m.doubted {
						t.Fatalf("seed %d, step %d: ejected %v, doubted %v, avoid %d", seed, step, m.ejected, m.doubted, m.avoid.Load())
					} else if skipped && m.usable {
						n++
					}
				}
				if 2*n > len(f.usable) {
					t.Fatalf("seed %d, step %d: %d of %d are skipped", seed, step, n, len(f.usable))
				}
			}
		}, "abcde")
	}
}
