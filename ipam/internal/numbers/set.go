package numbers

import "math/bits"

// Set is a sparse set of numbers, as words of 64 neighbours. Add and Remove cost one lookup, and NextFree one for
// 64 numbers of the run that it skips. It is not safe for concurrent use. Make one with NewSet.
type Set struct{ words map[Number]uint64 } // by their first numbers; none is 0

// NewSet returns an empty set.
func NewSet() *Set { return &Set{make(map[Number]uint64)} }

// word returns where a number is: its word, and its bit there.
func (n Number) word() (first Number, bit uint64) {
	return Number{n.hi, n.lo &^ 63}, 1 << (n.lo & 63)
}

// Add adds k.
func (s *Set) Add(k Number) {
	at, bit := k.word()
	s.words[at] |= bit
}

// Remove removes k.
func (s *Set) Remove(k Number) {
	at, bit := k.word()
	if left := s.words[at] &^ bit; left != 0 {
		s.words[at] = left
	} else {
		delete(s.words, at)
	}
}

// NextFree returns the lowest number from k on that is not in the set. It wraps at 2^128.
func (s *Set) NextFree(k Number) Number {
	at, bit := k.word()
	for free := ^s.words[at] &^ (bit - 1); ; free = ^s.words[at] {
		if free != 0 {
			return at.Plus(uint64(bits.TrailingZeros64(free)))
		}
		at = at.Plus(64)
	}
}

// Count returns the number of members in a span. It costs O(words), of the span or of the set.
func (s *Set) Count(in Span) (n uint64) {
	from, bit := in.First.word()
	to, last := in.Last.word()
	count := func(at Number) {
		word := s.words[at]
		if at == from {
			word &^= bit - 1
		}
		if at == to {
			word &= last | (last - 1)
		}
		n += uint64(bits.OnesCount64(word))
	}
	if steps := to.minus(from) / 64; steps < uint64(len(s.words)) {
		for i := range steps + 1 {
			count(from.Plus(64 * i))
		}
		return n
	}
	for at := range s.words {
		if !at.less(from) && !to.less(at) {
			count(at)
		}
	}
	return n
}
