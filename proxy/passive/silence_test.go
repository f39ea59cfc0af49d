package passive

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
)

func TestUnlikely(t *testing.T) {
	for _, c := range []struct {
		n              int
		given, missing int64
		want           bool
	}{
		{2, 1e9, 0, false}, // chance, however many
		{4, 266, 0, true},  // 400 clients a second of three backends, for a second
		{3, 266, 0, false},
		{11, 22, 0, true}, // few clients
		{10, 20, 0, false},
		{1e6, 0, 0, false}, // nobody answers: logs, long polls, a database that is down
		{1e6, 0, 1e6, false},
		{1e6, 1, 1e6, false},
		{30, 100, 100, true}, // half of the requests are long polls
		{20, 100, 100, false},
		{50, 10, 90, false},
	} {
		expect.Equal(t, unlikely(c.n, c.given, c.missing, chance), c.want, "unlikely(%d, %d, %d)", c.n, c.given, c.missing)
	}
}

// The result is that of the product of probabilities. More evidence against the backend never helps it,
// more of the same at the others never harms it, and nothing is evidence if the others don't answer.
func FuzzUnlikely(f *testing.F) {
	f.Add(uint16(4), uint16(266), uint16(0), uint16(1))
	f.Add(uint16(20), uint16(100), uint16(100), uint16(50))
	f.Fuzz(func(t *testing.T, n, given, missing, more uint16) {
		is := func(n, given, missing uint16) bool { return unlikely(int(n), int64(given), int64(missing), chance) }
		product := 1.0
		for i := range int(n) {
			silent := float64(n) + float64(missing) - float64(i)
			product *= silent / (silent + float64(given))
		}
		yes := is(n, given, missing)
		if want := product <= chance && n >= leastStreak; yes != want && (product < chance*0.999 || product > chance*1.001) {
			t.Errorf("%d in a row of %d answers, %d without: %v, and the product is %g", n, given, missing, yes, product)
		}
		n, given, missing, more = min(n, 1<<15), min(given, 1<<15), min(missing, 1<<15), min(more, 1<<15)
		switch yes := is(n, given, missing); {
		case yes && given == 0:
			t.Error("without evidence")
		case yes && !is(n+1, given, missing):
			t.Error("a longer streak is more likely")
		case yes && !is(n, given+more, missing):
			t.Error("with more answers of the others, more likely")
		case !yes && is(n, given, missing+more):
			t.Error("with fewer answers of the others, less likely")
		}
	})
}

// Backends that behave in the same way are practically never told apart by chance, whatever share of
// the clients gives up and however unevenly they are spread. One that answers nobody is found.
func TestSilenceByChance(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 2))
		const backends, clients = 4, 20000
		giveUp := r.Float64()
		var share [backends]float64
		for i := range share {
			share[i] = r.ExpFloat64()
		}
		for _, dead := range []bool{false, true} {
			type counts struct {
				given, missing int64
				n              int
				since          [2]int64
			}
			var all counts
			var each [backends]counts
			found := -1
			for k := range clients {
				i := 0
				for x := r.Float64() * (share[0] + share[1] + share[2] + share[3]); i < backends-1 && x >= share[i]; i++ {
					x -= share[i]
				}
				b := &each[i]
				if r.Float64() >= giveUp && !(dead && i == 0) {
					all.given++
					b.given++
					b.n = 0
					continue
				}
				if b.n++; b.n == 1 {
					b.since = [2]int64{all.given - b.given, all.missing - b.missing}
				}
				all.missing++
				b.missing++
				if unlikely(b.n, all.given-b.given-b.since[0], all.missing-b.missing-b.since[1], chance) {
					if !dead || i != 0 {
						t.Fatalf("seed %d, %.2f give up, shares %.2f: backend %d is suspect after %d clients", seed, giveUp, share, i, k)
					}
					found = b.n
					break
				}
			}
			if dead && giveUp < 0.5 && share[0] > 0.2 && (found < 0 || found > 100) {
				t.Errorf("seed %d, %.2f give up, shares %.2f: the silent one is found after %d clients", seed, giveUp, share, found)
			}
		}
	}
}

// A stopped program: all clients of it give up within the same time. It is ejected when the first
// few do, the others of that moment are lost.
func TestAStreakIsShort(t *testing.T) {
	inSketch(t, func(t *testing.T, s *sketch) {
		a, b := s.of("a"), s.of("b")
		begin := func(m *Member) *Request {
			c := &Request{}
			c.Begin(m)
			c.Ask(s.now())
			return c
		}
		var waiting []*Request
		time.Sleep(time.Millisecond)
		for range 100 {
			waiting = append(waiting, begin(a))
			c := begin(b)
			time.Sleep(10 * time.Millisecond)
			c.Answer(b, s.now())
		}
		const enough = 6 // with 100 answers
		for i, c := range waiting[:enough] {
			s.expect(t, "")
			if c.GiveUp(a); i == 0 {
				c.GiveUp(a) // again at the end of the connection
			}
		}
		s.expect(t, "a")
		waiting[0].Answer(a, s.now()) // too late
		s.expect(t, "a")
		begin(a).Answer(a, s.now())
		s.expect(t, "")
		for _, c := range waiting[enough:] {
			c.GiveUp(a) // it has answered since they began
		}
		s.expect(t, "")
	}, "ab")
}

// A service of few clients, one at a time: nobody else is answered while a client waits in vain.
func TestSilenceOfAQuietService(t *testing.T) {
	for name, c := range map[string]struct {
		silent   []string // the backends that answer nobody
		together int      // clients at a time
		ejects   int      // after so many clients without an answer; 0: never
	}{
		"one of three":                    {[]string{"a"}, 1, 6},
		"all":                             {[]string{"a", "b", "c"}, 1, 0},
		"all clients of a moment are one": {[]string{"a"}, 3, 4},
	} {
		t.Run(name, func(t *testing.T) {
			inSketch(t, func(t *testing.T, s *sketch) {
				lost := 0
				time.Sleep(time.Millisecond)
				for i := range 60 {
					name := []string{"a", "b", "c"}[i%3]
					m := s.of(name)
					var clients []*Request
					for range c.together {
						one := &Request{}
						one.Begin(m)
						one.Ask(s.now())
						clients = append(clients, one)
					}
					if !slices.Contains(c.silent, name) {
						time.Sleep(time.Millisecond)
						for _, one := range clients {
							one.Answer(m, s.now())
						}
						continue
					}
					time.Sleep(3 * time.Second)
					for _, one := range clients {
						one.GiveUp(m)
					}
					if lost++; c.ejects == 0 || lost < c.ejects {
						s.expect(t, "")
						continue
					}
					s.expect(t, "a")
					return
				}
				expect.Equal(t, c.ejects, 0, "not ejected")
			}, "abc")
		})
	}
}
