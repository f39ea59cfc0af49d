package numbers

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/test/expect"
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
			// Digits put together again are the number.
			var again Number
			value := new(big.Int)
			for level := 21; level >= 0; level-- {
				d := n.digit(level)
				again = again.with(level, d)
				value.Add(value.Lsh(value, 6), big.NewInt(int64(d)))
			}
			if again != n || value.Cmp(new(big.Int).SetBytes(a.AsSlice())) != 0 {
				t.Fatalf("digits of %s make %v, or %s", a, again, value)
			}
		}
	})
}

// A set behaves like a map under random operations.
func TestSetAgainstAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		width := rapid.SampledFrom([]int{6, 7, 16, 32, 64, 128}).Draw(t, "width")
		// A few windows of neighbours, so that runs fill up and edges are met.
		window := uint64(1) << min(width, 9)
		var bases []Number
		for range rapid.IntRange(1, 3).Draw(t, "windows") {
			base := Number{rapid.Uint64().Draw(t, "hi"), rapid.Uint64().Draw(t, "lo")}
			if width < 128 {
				base.hi = 0
			}
			if width < 64 {
				base.lo &= 1<<width - 1
			}
			bases = append(bases, base)
		}
		fits := func(k Number) bool {
			return width == 128 || k.hi == 0 && (width == 64 || k.lo>>width == 0)
		}
		b := NewSet(width)
		oracle := map[Number]bool{}
		draw := func() Number {
			for {
				base := bases[rapid.IntRange(0, len(bases)-1).Draw(t, "base")]
				if k := base.Plus(rapid.Uint64Range(0, window).Draw(t, "offset")); fits(k) {
					return k
				}
			}
		}
		lowestFree := func(k Number) Number {
			for oracle[k] {
				k = k.Plus(1)
			}
			return k
		}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			k := draw()
			switch rapid.IntRange(0, 5).Draw(t, "op") {
			case 0, 1:
				must.True(t, b.Add(k) != oracle[k], "add %v", k)
				oracle[k] = true
			case 2: // fill up a run
				n := rapid.IntRange(1, 200).Draw(t, "run")
				for at := k; n > 0 && fits(at); at, n = at.Plus(1), n-1 {
					b.Add(at)
					oracle[at] = true
				}
			case 3:
				must.Equal(t, b.Remove(k), oracle[k], "remove %v", k)
				delete(oracle, k)
			case 4:
				got, ok := b.NextFree(k)
				if want := lowestFree(k); fits(want) && (!ok || got != want) || !fits(want) && ok && fits(got) {
					t.Fatalf("next free from %v is %v, %v, want %v", k, got, ok, want)
				}
			case 5:
				other := draw()
				if other.less(k) {
					k, other = other, k
				}
				n := uint64(0)
				for m := range oracle {
					if !m.less(k) && !other.less(m) {
						n++
					}
				}
				if got := b.Count(k, other); got != n {
					t.Fatalf("%d from %v to %v, want %d", got, k, other, n)
				}
			}
			if b.Has(k) != oracle[k] || b.root.count != uint64(len(oracle)) {
				t.Fatalf("has %v: %v; %d members, want %d", k, b.Has(k), b.root.count, len(oracle))
			}
		}
		for k := range oracle {
			must.True(t, b.Remove(k), "%v was lost", k)
		}
		if len(b.root.kids) != 0 || b.root.used != 0 || b.root.full != 0 {
			t.Fatal("an emptied set keeps nodes")
		}
	})
}

func TestNextFreeFindsNothingInAFullSet(t *testing.T) {
	b := NewSet(6)
	for i := range uint64(64) {
		b.Add(Number{lo: i})
	}
	k, ok := b.NextFree(Number{})
	expect.False(t, ok, "found %v", k)
}

// Finding, adding and removing one address allocates nothing if the node exists, however large the
// set is.
func TestSetAllocatesNothing(t *testing.T) {
	for _, held := range []uint64{1_000, 100_000} {
		b := NewSet(128)
		first := Of(netip.MustParseAddr("2001:db8::"))
		for i := range held {
			b.Add(first.Plus(i))
		}
		if n := testing.AllocsPerRun(1_000, func() {
			k := first.Plus(rand.Uint64N(held))
			b.Remove(k)
			if free, ok := b.NextFree(first); !ok || free != k || !b.Add(free) {
				t.Fatal("not the one that was freed")
			}
		}); n > 0 {
			t.Errorf("%v allocations with %d held", n, held)
		}
	}
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
		used, plans := NewSet(32), map[Number]bool{}
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
		a := netip.MustParseAddr(base)
		b.Run(fmt.Sprintf("%d bits", a.BitLen()), func(b *testing.B) {
			first := Of(a)
			for b.Loop() {
				set := NewSet(a.BitLen())
				take := func(n int) time.Duration {
					began := time.Now()
					for range n {
						k, _ := set.NextFree(first)
						set.Add(k)
					}
					return time.Since(began)
				}
				one := func(held uint64) float64 {
					const rounds = 100_000
					began := time.Now()
					for i := range uint64(rounds) {
						k := first.Plus(i * 7919 % held)
						set.Remove(k)
						free, _ := set.NextFree(first)
						set.Add(free)
					}
					return float64(time.Since(began).Nanoseconds()) / rounds
				}
				took := take(1_000)
				few := one(1_000)
				took += take(999_000)
				many := one(1_000_000)
				began := time.Now()
				for i := range uint64(1_000_000) {
					set.Remove(first.Plus(i))
				}
				freed := time.Since(began)
				b.ReportMetric(float64(took.Nanoseconds())/1e6, "ns/take")
				b.ReportMetric(float64(freed.Nanoseconds())/1e6, "ns/free")
				b.ReportMetric(few, "ns/one@1k")
				b.ReportMetric(many, "ns/one@1M")
				b.ReportMetric(many/few, "ratio")
			}
		})
	}
}
