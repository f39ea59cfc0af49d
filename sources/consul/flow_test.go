package consul

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServicesComeChangeAndGo(t *testing.T) {
	play(t, Options{}, func(f *fake) { f.set("web", "n1 10.0.0.1:80") }, func(s *scene) {
		s.after(time.Second)
		s.want("web 80/tcp: 10.0.0.1:80")
		expect.Equal(t, s.sink.replaces, 1, "full lists")
		s.fake.set("web", "n1 10.0.0.1:80 critical", "n2 10.0.0.2:80")
		s.fake.set("db", "n1 10.0.0.1:5432")
		s.after(2 * time.Second)
		s.want("db 5432/tcp: 10.0.0.1:5432; web 80/tcp: 10.0.0.1:80 unhealthy, 10.0.0.2:80")
		s.fake.set("web")
		s.after(2 * time.Second)
		s.want("db 5432/tcp: 10.0.0.1:5432")
		s.fake.set("web", "n1 10.0.0.1:81")
		s.after(2 * time.Second)
		s.want("db 5432/tcp: 10.0.0.1:5432; web 81/tcp: 10.0.0.1:81")
		if s.sink.replaces != 1 || s.sink.stale != "" || len(s.sink.problems) > 0 {
			t.Errorf("%d full lists, stale %q, problems %v", s.sink.replaces, s.sink.stale, s.sink.problems)
		}
	})
}

// An empty catalog is a full list too. A service that appears and disappears unnoticed leaves
// nothing behind.
func TestAnEmptyCatalog(t *testing.T) {
	play(t, Options{}, func(*fake) {}, func(s *scene) {
		s.after(time.Second)
		expect.Equal(t, s.sink.replaces, 1, "full lists")
		for range 50 {
			s.fake.set("web", "n1 10.0.0.1:80")
			s.after(rand.N(300 * time.Millisecond))
			s.fake.set("web")
			s.after(rand.N(300 * time.Millisecond))
		}
		s.after(time.Minute)
		s.want("")
		s.fake.set("web", "n1 10.0.0.1:80")
		s.after(time.Minute)
		s.want("web 80/tcp: 10.0.0.1:80")
	})
}

// There is one blocking query for each of 200 services and one for the list. A change of one
// service ends one query. Without changes there is nearly no traffic.
func TestWhatItCosts(t *testing.T) {
	play(t, Options{}, func(f *fake) { many(f, 200) }, func(s *scene) {
		s.after(10 * time.Second)
		if n := len(s.sink.rows); n != 200 || s.sink.replaces != 1 || len(s.sink.puts) != 0 {
			t.Errorf("%d services, %d full lists, %d puts", n, s.sink.replaces, len(s.sink.puts))
		}
		if s.fake.most > 201 || s.fake.under() != 201 {
			t.Errorf("%d questions held, %d at most", s.fake.under(), s.fake.most)
		}
		s.asked()
		s.fake.set("s0100", "n1 10.0.0.1:80", "n2 10.0.0.2:80 critical")
		s.after(100 * time.Millisecond)
		if list, services := s.asked(); list != 0 || services != 1 || len(s.sink.puts) != 1 || len(s.sink.puts["s0100"]) != 1 {
			t.Errorf("one change: %d questions for the list, %d for services, published %v", list, services, s.sink.puts)
		}
		calls := s.sink.calls
		s.after(time.Hour)
		list, services := s.asked()
		// The interval is 5 minutes for each service and 30 s for the list, with a jitter of a
		// tenth.
		if services < 2_000 || services > 2_800 || list > 130 {
			t.Errorf("in an hour %d questions for services, %d for the list", services, list)
		}
		if len(s.sink.puts) != 1 || s.sink.replaces != 1 || s.sink.calls-calls > 130 {
			t.Errorf("a return is not a change: puts %v, %d calls", s.sink.puts, s.sink.calls-calls)
		}
	})
}

// 1,000 services change 10 times a second. The number of queries is bounded. Each service is
// published at most once in 100 ms. The final state of each is reached within seconds.
func TestStorm(t *testing.T) {
	play(t, Options{}, func(f *fake) { many(f, 1000) }, func(s *scene) {
		s.after(10 * time.Second)
		s.asked()
		const seconds = 2
		for round := range seconds * 10 {
			for i := range 1000 {
				state := "passing"
				if (round+i)%2 == 0 {
					state = "critical"
				}
				s.fake.set(fmt.Sprintf("s%04d", i), "n1 10.0.0.1:80 "+state, fmt.Sprintf("n2 10.0.0.2:80 w=%d/1", round+2))
			}
			s.after(100 * time.Millisecond)
		}
		_, services := s.asked()
		expect.AtMost(t, services, 2000+500*seconds+1000, "questions")
		s.after(3 * time.Second)
		want := fmt.Sprintf("10.0.0.2:80 w=%d", seconds*10+1)
		for key, row := range s.sink.rows {
			got := described(row)
			must.True(t, strings.HasSuffix(got, want), "%s ended as %q, not with %q", key, got, want)
		}
		published := 0
		for name, times := range s.sink.puts {
			published += len(times)
			for i := 1; i < len(times); i++ {
				must.AtLeast(t, times[i].Sub(times[i-1]), 100*time.Millisecond, "%s was published twice within", name)
			}
		}
		t.Logf("20,000 changes: %d questions, %d services published in %d calls", services, published, s.sink.calls)
		if len(s.sink.rows) != 1000 || s.sink.deletes != 0 || s.sink.stale != "" {
			t.Errorf("%d services, %d deletions, stale %q", len(s.sink.rows), s.sink.deletes, s.sink.stale)
		}
	})
}

// For all faults of Consul: the known services stay and are marked stale, and the rate of queries
// is limited. Afterwards everything is current without a restart, including changes made in the
// meantime.
func TestConsulIsAway(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault func(string) error
	}{
		{"everything fails", always(errors.New("connection refused"))},
		{"the services fail", func(name string) error {
			if name == "" {
				return nil
			}
			return errors.New("consul answers 500: no cluster leader")
		}},
		{"the list fails", func(name string) error {
			if name != "" {
				return nil
			}
			return errors.New("unexpected end of JSON input")
		}},
		{"one service fails", func(name string) error {
			if name != "s0007" {
				return nil
			}
			return errors.New("consul answers 500: rpc error")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			play(t, Options{}, func(f *fake) { many(f, 20) }, func(s *scene) {
				s.after(5 * time.Second)
				before := s.sink.String()
				s.asked()
				s.fake.fail(test.fault)
				s.after(5 * time.Minute)
				s.want(before)
				if s.sink.stale == "" || !strings.HasPrefix(s.sink.stale, "consul at 127.0.0.1:8500: ") {
					t.Errorf("stale %q", s.sink.stale)
				}
				// 5 minutes of pauses between 5 and 10 s are 60 queries at most, and a few at the
				// start.
				if list, services := s.asked(); list > 100 || services > 20*100 {
					t.Errorf("%d questions for the list, %d for services", list, services)
				}
				s.fake.set("s0007", "n3 10.0.0.3:80", "n1 10.0.0.1:80")
				s.fake.set("s0008")
				s.fake.set("new", "n1 10.0.0.1:80")
				s.fake.fail(nil)
				s.after(15 * time.Second)
				if got := s.sink.String(); !strings.Contains(got, "s0007 80/tcp: 10.0.0.1:80, 10.0.0.3:80") || strings.Contains(got, "s0008") || !strings.Contains(got, "new ") || s.sink.stale != "" {
					t.Errorf("in effect %q, stale %q", got, s.sink.stale)
				}
				expect.Equal(t, s.fake.under(), 21, "questions held")
			})
		})
	}
}

// A source that starts while Consul is unavailable publishes nothing. One service that can't be
// read delays the others only for seconds.
func TestBeginningWithoutConsul(t *testing.T) {
	play(t, Options{}, func(f *fake) { many(f, 3); f.fault = always(errors.New("connection refused")) }, func(s *scene) {
		s.after(time.Minute)
		if s.sink.replaces != 0 || !strings.Contains(s.sink.stale, "connection refused") {
			t.Errorf("%d full lists, stale %q", s.sink.replaces, s.sink.stale)
		}
		s.fake.fail(func(name string) error {
			if name == "s0001" {
				return errors.New("consul answers 500: broken")
			}
			return nil
		})
		s.after(20 * time.Second)
		if len(s.sink.rows) != 2 || !strings.Contains(s.sink.stale, "service s0001: consul answers 500") {
			t.Errorf("%v, stale %q", s.sink.rows, s.sink.stale)
		}
		s.fake.fail(nil)
		s.after(15 * time.Second)
		if len(s.sink.rows) != 3 || s.sink.stale != "" {
			t.Errorf("%v, stale %q", s.sink.rows, s.sink.stale)
		}
	})
}

// The source follows a server with an older state (restored, or started from an older disk). A full
// list contains the losses, and the shrink guard doubts it.
func TestTheIndexGoesBackwards(t *testing.T) {
	play(t, Options{}, func(f *fake) { many(f, 5) }, func(s *scene) {
		s.after(5 * time.Second)
		s.fake.reset(3, map[string][]instance{"s0000": instances("n9 10.0.0.9:80"), "old": instances("n1 10.0.0.1:80")})
		s.after(5 * time.Second)
		s.want("old 80/tcp: 10.0.0.1:80; s0000 80/tcp: 10.0.0.9:80")
		if s.sink.replaces != 2 || s.sink.deletes != 0 {
			t.Errorf("%d full lists, %d deletions", s.sink.replaces, s.sink.deletes)
		}
		s.fake.set("s0000", "n1 10.0.0.1:80")
		s.after(time.Second)
		s.want("old 80/tcp: 10.0.0.1:80; s0000 80/tcp: 10.0.0.1:80")
		s.fake.reset(1, nil)
		s.after(5 * time.Second)
		s.want("")
		if s.sink.replaces != 3 || s.sink.deletes != 0 {
			t.Errorf("%d full lists, %d deletions", s.sink.replaces, s.sink.deletes)
		}
	})
}

// Instances that vanish from a streamed answer are read again without blocking, once: this answer counts, also if it says
// that it was streamed.
func TestStreamedAnswers(t *testing.T) {
	play(t, Options{}, func(f *fake) { f.set("web", "n1 10.0.0.1:80", "n2 10.0.0.2:80"); f.streamed = true }, func(s *scene) {
		s.after(5 * time.Second)
		s.want("web 80/tcp: 10.0.0.1:80, 10.0.0.2:80")
		s.fake.set("web", "n1 10.0.0.1:80")
		s.after(2 * time.Second)
		s.want("web 80/tcp: 10.0.0.1:80")
	})
}

// The index of only one service goes backwards. Its state is read again.
func TestOneIndexGoesBackwards(t *testing.T) {
	play(t, Options{}, func(f *fake) { many(f, 2) }, func(s *scene) {
		s.after(5 * time.Second)
		for index := range uint64(3) { // 2, 1, and 0, which counts as 1
			s.fake.locked(func() {
				f := s.fake.services["s0001"]
				close(f.changed)
				f.index, f.instances, f.changed = 2-index, instances(fmt.Sprintf("n1 10.0.0.%d:80", 7+index)), make(chan struct{})
			})
			s.after(2 * time.Second)
			s.want(fmt.Sprintf("s0000 80/tcp: 10.0.0.1:80, 10.0.0.2:80; s0001 80/tcp: 10.0.0.%d:80", 7+index))
		}
		s.asked()
		s.after(time.Second)
		if _, services := s.asked(); services > 10 { // index 0 is always answered at once
			t.Errorf("%d questions in a second", services)
		}
	})
}

// A service without instances stays while the list contains it, because one of the two answers is
// outdated. The source does not use blocking queries for it.
func TestTheListAndTheAnswerDisagree(t *testing.T) {
	play(t, Options{}, func(f *fake) { many(f, 1) }, func(s *scene) {
		s.after(5 * time.Second)
		s.fake.locked(func() {
			f := s.fake.services["s0000"]
			f.index, f.instances = 100, nil
			close(f.changed)
			f.changed = make(chan struct{})
		})
		s.after(time.Second)
		s.asked()
		s.after(10 * time.Minute)
		s.want("s0000 80/tcp: 10.0.0.1:80, 10.0.0.2:80")
		if _, services := s.asked(); services > 45 || s.fake.held["s0000"] != 0 {
			t.Errorf("%d questions in 10 minutes, %d held", services, s.fake.held["s0000"])
		}
		s.fake.set("s0000", "n3 10.0.0.3:80")
		s.after(time.Minute)
		s.want("s0000 80/tcp: 10.0.0.3:80")
		s.fake.locked(func() { s.fake.services["s0000"].instances = instances("n1 10.0.0.1:80 proxy") })
		s.fake.set("s0000")
		s.after(2 * time.Second)
		s.want("")
	})
}

// An empty list may mean missing permissions. Only Consul's header on filtered results shows the
// difference.
func TestATokenThatMayReadNothingIsToldOf(t *testing.T) {
	play(t, Options{}, func(f *fake) { many(f, 1); f.filtered["s0000"] = true }, func(s *scene) {
		s.after(5 * time.Second)
		texts := func() bool {
			return strings.Contains(fmt.Sprint(s.sink.problems), "the token may not read")
		}
		if !texts() || s.sink.stale != "" {
			t.Errorf("problems %v, stale %q", s.sink.problems, s.sink.stale)
		}
		s.fake.locked(func() { clear(s.fake.filtered); s.fake.listed++ })
		s.fake.fail(nil)
		s.after(time.Minute)
		if texts() {
			t.Errorf("still reported: %v", s.sink.problems)
		}
	})
}

// An instance that the token can no longer read is not removed.
func TestTheTokenLosesItsRights(t *testing.T) {
	play(t, Options{}, func(f *fake) { many(f, 3) }, func(s *scene) {
		s.after(5 * time.Second)
		before := s.sink.String()
		s.fake.locked(func() {
			for i := range 3 {
				s.fake.filtered[fmt.Sprintf("s%04d", i)] = true
			}
			s.fake.listed++
		})
		s.fake.fail(nil)
		s.after(time.Minute)
		s.want(before)
		if !strings.Contains(s.sink.stale, "service s0000: the token may not read its instances") || !strings.Contains(s.sink.stale, "and 2 more") {
			t.Errorf("stale %q", s.sink.stale)
		}
		s.fake.locked(func() { clear(s.fake.filtered); s.fake.listed++ })
		s.fake.fail(nil)
		s.after(time.Minute)
		s.want(before)
		expect.Equal(t, s.sink.stale, "", "stale")
	})
}

// A problem with one service is published by the name of its key, once. The service and others
// still follow their instances.
func TestWrongMetadata(t *testing.T) {
	play(t, Options{}, func(f *fake) {
		f.set("web", "n1 10.0.0.1:80 scheduler=fast")
		f.set("db", "n1 10.0.0.1:5432 pool=lan")
	}, func(s *scene) {
		s.after(time.Second)
		s.want("db 5432/tcp: 10.0.0.1:5432")
		if texts(s.sink.problems) != `ironvip-scheduler: "fast" is not a known value` || s.sink.problems[0].Service != "web" {
			t.Errorf("%+v", s.sink.problems)
		}
		s.fake.set("web", "n1 10.0.0.1:80 scheduler=mh")
		s.after(time.Second)
		s.want("db 5432/tcp: 10.0.0.1:5432; web 80/tcp: 10.0.0.1:80")
		expect.Empty(t, s.sink.problems)
		s.fake.set("web", "n2 10.0.0.2:80 scheduler=slow")
		s.after(time.Second)
		s.want("db 5432/tcp: 10.0.0.1:5432; web 80/tcp: 10.0.0.2:80")
		if len(s.sink.problems) != 1 || s.sink.rows[vip.ServiceKey{Namespace: "default", Name: "web"}].Scheduler != vip.MaglevHash {
			t.Errorf("%+v", s.sink.problems)
		}
		s.fake.set("web")
		s.after(2 * time.Second)
		expect.Empty(t, s.sink.problems, "a service that is gone has problems")
	})
}

// Two services in Consul claim one name. The first by name has it, regardless of time. When it is
// gone, the other has the name.
func TestTwoServicesOfOneName(t *testing.T) {
	play(t, Options{}, func(f *fake) { f.set("b", "n2 10.0.0.2:80 name=web") }, func(s *scene) {
		s.after(time.Second)
		s.want("web 80/tcp: 10.0.0.2:80")
		s.fake.set("a", "n1 10.0.0.1:80 name=web")
		s.after(2 * time.Second)
		s.want("web 80/tcp: 10.0.0.1:80")
		if texts(s.sink.problems) != "ironvip-name: service a of Consul has the name" || s.sink.deletes != 0 {
			t.Errorf("%v, %d deletions", texts(s.sink.problems), s.sink.deletes)
		}
		s.fake.set("a", "n1 10.0.0.1:80 name=other")
		s.after(2 * time.Second)
		s.want("other 80/tcp: 10.0.0.1:80; web 80/tcp: 10.0.0.2:80")
		if len(s.sink.problems) > 0 || s.sink.deletes != 0 {
			t.Errorf("%v, %d deletions", texts(s.sink.problems), s.sink.deletes)
		}
		s.fake.set("a")
		s.after(2 * time.Second)
		s.want("web 80/tcp: 10.0.0.2:80")
	})
}

// A new run of a source begins with the full list. It then removes what disappeared between the
// runs. A service that can't be read stays.
func TestRunAnew(t *testing.T) {
	play(t, Options{}, func(f *fake) { many(f, 3) }, func(s *scene) {
		s.after(time.Second)
		s.stop()
		s.fake.set("s0000")
		s.fake.set("s0003", "n1 10.0.0.1:80")
		s.fake.locked(func() {
			s.fake.fault = func(name string) error {
				if name == "s0001" {
					return errors.New("consul answers 500")
				}
				return nil
			}
		})
		s.run()
		s.after(20 * time.Second)
		s.want("s0001 80/tcp: 10.0.0.1:80, 10.0.0.2:80; s0002 80/tcp: 10.0.0.1:80, 10.0.0.2:80; s0003 80/tcp: 10.0.0.1:80")
		if s.sink.replaces != 2 || s.sink.stale == "" {
			t.Errorf("%d full lists, stale %q", s.sink.replaces, s.sink.stale)
		}
	})
}

// A run that ends between the answer that a service is gone and the round that publishes it leaves
// nothing of the service to the next run. The changes of the others delay that round. The list is
// read once a second, so the answer comes about 100 steps after the removal.
func TestRunAnewDuringARemoval(t *testing.T) {
	const step = 9 * time.Millisecond
	for i := range 90 {
		play(t, Options{}, func(f *fake) { many(f, 12) }, func(s *scene) {
			s.after(time.Second)
			for i := range 100 + i/3 {
				if i == 10 {
					s.fake.set("s0000")
				}
				s.fake.set(fmt.Sprintf("s%04d", 1+i%11), fmt.Sprintf("n1 10.0.0.1:%d", 80+i))
				s.after(step)
			}
			s.after(time.Duration(i%3) * step / 3)
			s.run()
			s.after(20 * time.Second)
			if got := s.sink.String(); strings.Contains(got, "s0000") || len(s.sink.rows) != 11 {
				t.Errorf("a new run after %d/3 steps: in effect %q", 300+i, got)
			}
		})
	}
}

// Missing services that are configured by name become problems.
func TestServicesByName(t *testing.T) {
	play(t, Options{Config: Config{Services: []string{"web", "db"}}}, func(f *fake) { f.set("web", "n1 10.0.0.1:80") }, func(s *scene) {
		s.after(time.Second)
		s.want("web 80/tcp: 10.0.0.1:80")
		if len(s.sink.problems) != 1 || s.sink.problems[0].Service != "db" {
			t.Errorf("%+v", s.sink.problems)
		}
		s.fake.set("db", "n1 10.0.0.1:5432")
		s.after(2 * time.Second)
		expect.Empty(t, s.sink.problems)
	})
}

// Consul takes 200 connections from a host. The queries take turns, which becomes a problem. Every
// change is seen within about 10 s, also after services that made turns necessary.
func TestTooFewConnections(t *testing.T) {
	play(t, Options{timing: timing{held: heldConnections}}, func(f *fake) { many(f, heldConnections) }, func(s *scene) {
		s.after(30 * time.Second)
		if len(s.sink.rows) != heldConnections || len(s.sink.problems) > 0 {
			t.Fatalf("%d services, %v", len(s.sink.rows), s.sink.problems)
		}
		many(s.fake, 1000)
		s.after(30 * time.Second)
		if len(s.sink.rows) != 1000 || s.sink.stale != "" || len(s.sink.problems) != 1 || !strings.Contains(s.sink.problems[0].Hint, "https") {
			t.Fatalf("%d services, stale %q, %v", len(s.sink.rows), s.sink.stale, s.sink.problems)
		}
		for i := range 100 {
			s.fake.set(fmt.Sprintf("s%04d", i*10), "n7 10.0.0.7:80")
		}
		s.asked()
		s.after(15 * time.Second)
		for i := range 100 {
			key := vip.ServiceKey{Namespace: "default", Name: fmt.Sprintf("s%04d", i*10)}
			got := described(s.sink.rows[key])
			must.True(t, strings.HasSuffix(got, ": 10.0.0.7:80"), "%s", got)
		}
		_, services := s.asked()
		expect.AtMost(t, services, 15*150, "questions in 15 s")
		expect.AtMost(t, s.fake.most, heldConnections+1, "questions at once")
	})
}

func TestAnythingInAnyOrder(t *testing.T) { anythingInAnyOrder(t, 0, 15) }

// anythingInAnyOrder makes random changes in random order, with n seeds from first. The final state is
// that of Consul.
func anythingInAnyOrder(t *testing.T, first, n uint64) {
	for seed := first; seed < first+n; seed++ {
		play(t, Options{}, func(f *fake) { many(f, 4) }, func(s *scene) {
			random := rand.New(rand.NewPCG(seed, 1))
			name := func() string { return fmt.Sprintf("s%04d", random.IntN(8)) }
			for range 60 {
				switch random.IntN(10) {
				case 0:
					s.fake.fail(always(errors.New("connection refused")))
				case 1:
					broken := name()
					s.fake.fail(func(name string) error {
						if name == broken {
							return errors.New("consul answers 500")
						}
						return nil
					})
				case 2, 3:
					s.fake.fail(nil)
				case 4:
					s.fake.set(name())
				case 5:
					had := map[string][]instance{}
					for range random.IntN(6) {
						had[name()] = instances(fmt.Sprintf("n1 10.0.0.%d:80", random.IntN(200)+1))
					}
					s.fake.reset(1+random.Uint64N(s.fake.index+100), had)
				case 6:
					s.run()
				default:
					s.fake.set(name(), fmt.Sprintf("n1 10.0.0.%d:80", random.IntN(200)+1), "n2 10.0.1.2:80")
				}
				s.after(time.Duration(random.Int64N(int64(3 * time.Second))))
			}
			s.fake.fail(nil)
			s.after(time.Minute)
			want := newSink()
			for name, of := range s.fake.services {
				o := Options{}.withDefaults()
				want.Put(o.build(name, of.instances, nil).service)
			}
			s.want(want.String())
			if s.sink.stale != "" || len(s.sink.problems) > 0 || s.fake.under() != 1+len(s.fake.services) {
				t.Errorf("seed %d: stale %q, problems %v, held %v", seed, s.sink.stale, s.sink.problems, s.fake.held)
			}
		})
	}
}
