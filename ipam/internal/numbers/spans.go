package numbers

import (
	"slices"

	"go4.org/netipx"
)

// Span is a run of numbers, both ends included.
type Span struct{ First, Last Number }

// SpanOf returns a range of addresses as numbers.
func SpanOf(r netipx.IPRange) Span { return Span{Of(r.From()), Of(r.To())} }

// Size is at most 2^64-1.
func (s Span) Size() uint64 { return AddSaturating(s.Last.minus(s.First), 1) }

func (s Span) contains(k Number) bool { return !k.less(s.First) && !s.Last.less(k) }

// Spans are runs in the order of their use. None overlap.
type Spans []Span

// Size is at most 2^64-1.
func (s Spans) Size() (n uint64) {
	for _, r := range s {
		n = AddSaturating(n, r.Size())
	}
	return n
}

// Contains reports whether k is in one of the spans.
func (s Spans) Contains(k Number) bool { return s.find(k) >= 0 }

func (s Spans) find(k Number) int {
	return slices.IndexFunc(s, func(r Span) bool { return r.contains(k) })
}

// Split divides the spans after the first n numbers.
func (s Spans) Split(n uint64) (head, tail Spans) {
	for _, r := range s {
		size := r.Size()
		switch {
		case n == 0:
			tail = append(tail, r)
		case size <= n:
			head = append(head, r)
			n -= size
		default:
			head = append(head, Span{r.First, r.First.Plus(n - 1)})
			tail = append(tail, Span{r.First.Plus(n), r.Last})
			n = 0
		}
	}
	return head, tail
}

// Without returns the spans without the members of the set.
func (s Spans) Without(set *netipx.IPSet, v4 bool) Spans {
	var out Spans
	for _, r := range s {
		whole := netipx.IPRangeFrom(r.First.Addr(v4), r.Last.Addr(v4))
		if !set.OverlapsRange(whole) {
			out = append(out, r)
			continue
		}
		var b netipx.IPSetBuilder
		b.AddRange(whole)
		b.RemoveSet(set)
		rest, _ := b.IPSet() // fails on invalid input only
		for _, part := range rest.Ranges() {
			out = append(out, SpanOf(part))
		}
	}
	return out
}

// NextFree returns the first number of the spans that is neither used nor planned. It starts at
// from, if that is in one of them, and wraps around once.
func (s Spans) NextFree(used *Set, from Number, planned func(Number) bool) (Number, bool) {
	if len(s) == 0 {
		return Number{}, false
	}
	start := s.find(from)
	if start < 0 {
		start, from = 0, s[0].First
	}
	// The span with from comes first, from there on, and last as a whole.
	for i := range len(s) + 1 {
		r := s[(start+i)%len(s)]
		at := r.First
		if i == 0 {
			at = from
		}
		for free := used.NextFree(at); !r.Last.less(free); free = used.NextFree(free.Plus(1)) {
			if !planned(free) {
				return free, true
			}
			if free == r.Last {
				break
			}
		}
	}
	return Number{}, false
}

// AddSaturating returns a + b, at most 2^64-1.
func AddSaturating(a, b uint64) uint64 {
	if a+b < a {
		return ^uint64(0)
	}
	return a + b
}
