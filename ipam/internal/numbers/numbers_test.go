package numbers

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/test/must"
)

func TestNumbersAreAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b16 [16]byte
		copy(b16[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "bytes"))
		for _, a := range []netip.Addr{netip.AddrFrom16(b16), netip.AddrFrom4([4]byte(b16[:4]))} {
			n := Of(a)
			must.Equal(t, n.Addr(a.Is4()), a, "comes back as")
			if next := a.Next(); next.IsValid() && n.Plus(1).Addr(a.Is4()) != next {
				t.Fatalf("%s plus 1 is %s", a, n.Plus(1).Addr(a.Is4()))
			}
		}
	})
}

// A set behaves like a map under random operations.
func TestSetAgainstAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Neighbours in two places, so that words fill up and edges are met.
		base := Number{rapid.Uint64().Draw(t, "hi"), rapid.Uint64().Draw(t, "lo")}
		bases := []Number{base, base.Plus(1 << 20)}
		draw := func() Number {
			return rapid.SampledFrom(bases).Draw(t, "base").Plus(rapid.Uint64Range(0, 512).Draw(t, "offset"))
		}
		s, oracle := NewSet(), map[Number]bool{}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			k := draw()
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0: // fill up a run
				for at := range rapid.Uint64Range(1, 200).Draw(t, "run") {
					s.Add(k.Plus(at))
					oracle[k.Plus(at)] = true
				}
			case 1:
				s.Remove(k)
				delete(oracle, k)
			case 2:
				want := k
				for oracle[want] {
					want = want.Plus(1)
				}
				must.Equal(t, s.NextFree(k), want, "next free from %v", k)
			case 3:
				in := Span{k, draw()}
				if in.Last.less(k) {
					in = Span{in.Last, k}
				}
				n := uint64(0)
				for m := range oracle {
					if in.contains(m) {
						n++
					}
				}
				must.Equal(t, s.Count(in), n, "members in %v", in)
			}
			must.Equal(t, s.Has(k), oracle[k], "has %v", k)
		}
		for k := range oracle {
			s.Remove(k)
		}
		must.Equal(t, len(s.words), 0, "words of an emptied set")
	})
}

func TestSpansAgainstAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Spans
		var all []Number
		for at := uint64(0); len(s) < 4; {
			at += rapid.Uint64Range(1, 100).Draw(t, "gap")
			n := rapid.Uint64Range(1, 100).Draw(t, "size")
			s = append(s, Span{Number{lo: at}, Number{lo: at + n - 1}})
			for range n {
				all = append(all, Number{lo: at})
				at++
			}
		}
		if rapid.Bool().Draw(t, "reverse") { // spans come in the order of the configuration
			slices.Reverse(s)
			all = all[:0]
			for _, r := range s {
				for k := r.First; !r.Last.less(k); k = k.Plus(1) {
					all = append(all, k)
				}
			}
		}
		if s.Size() != uint64(len(all)) {
			t.Fatalf("size %d, want %d", s.Size(), len(all))
		}
		n := rapid.IntRange(0, len(all)+2).Draw(t, "split")
		head, tail := s.Split(uint64(n))
		if head.Size() != uint64(min(n, len(all))) || head.Size()+tail.Size() != s.Size() {
			t.Fatalf("split at %d gives %d and %d of %d", n, head.Size(), tail.Size(), len(all))
		}
		used, plans := NewSet(), map[Number]bool{}
		for _, k := range all {
			switch n := rapid.IntRange(0, 19).Draw(t, "used"); {
			case n > 1:
				used.Add(k)
			case n == 1:
				plans[k] = true
			}
		}
		// From a member on, wrapping once, in the order of the spans.
		start := rapid.IntRange(0, len(all)-1).Draw(t, "from")
		var want Number
		found := false
		for i := range all {
			if k := all[(start+i)%len(all)]; !used.Has(k) && !plans[k] {
				want, found = k, true
				break
			}
		}
		if got, ok := s.NextFree(used, all[start], func(k Number) bool { return plans[k] }); ok != found || got != want {
			t.Fatalf("next free from %v is %v, %v, want %v, %v", all[start], got, ok, want, found)
		}
	})
}

// BenchmarkMillion adds and removes a million addresses, and compares the cost of one with 1,000 and
// with 1,000,000 held.
func BenchmarkMillion(b *testing.B) {
	for _, base := range []string{"10.0.0.0", "2001:db8::"} {
		first := Of(netip.MustParseAddr(base))
		b.Run(base, func(b *testing.B) {
			for b.Loop() {
				s := NewSet()
				fill := func(from, to uint64) time.Duration {
					began := time.Now()
					for i := from; i < to; i++ {
						s.Add(s.NextFree(first.Plus(i)))
					}
					return time.Since(began)
				}
				one := func(held uint64) float64 {
					const rounds = 100_000
					began := time.Now()
					for i := range uint64(rounds) {
						k := first.Plus(i * 7919 % held)
						s.Remove(k)
						s.Add(s.NextFree(k))
					}
					return float64(time.Since(began).Nanoseconds()) / rounds
				}
				took := fill(0, 1_000)
				few := one(1_000)
				took += fill(1_000, 1_000_000)
				many := one(1_000_000)
				began := time.Now()
				s.NextFree(first)
				b.ReportMetric(float64(time.Since(began).Nanoseconds()), "ns/skip")
				b.ReportMetric(float64(took.Nanoseconds())/1e6, "ns/take")
				b.ReportMetric(many/few, "ratio")
			}
		})
	}
}

// Has reports whether k is in the set.
func (s *Set) Has(k Number) bool {
	at, bit := k.word()
	return s.words[at]&bit != 0
}
