package numbers

import (
	"math/bits"
	"slices"
)

// Set is a sparse set of numbers: a trie of 64-way nodes without empty ones. A node has which of
// its parts are full and how many numbers are below it. So Add, Remove, Has and NextFree cost one step
// per level, whatever the set has: 6 levels for IPv4, 22 for IPv6, 3 for ports. A full run of n numbers
// takes about n/7 bytes. It is not safe for concurrent use.
type Set struct {
	levels int
	root   node
}

type node struct {
	used  uint64 // on the lowest level the members; above it which kids exist
	full  uint64 // which parts have no free number left
	count uint64 // members below
	kids  []*node
}

// NewSet returns an empty set of numbers with width bits.
func NewSet(width int) *Set { return &Set{levels: (width + 5) / 6} }

// kid returns the child for a digit, or nil.
func (n *node) kid(d uint) *node {
	if n.used>>d&1 == 0 {
		return nil
	}
	return n.kids[bits.OnesCount64(n.used&(1<<d-1))]
}

// Has reports whether k is in the set.
func (b *Set) Has(k Number) bool {
	n := &b.root
	for level := b.levels - 1; level > 0; level-- {
		if n = n.kid(k.digit(level)); n == nil {
			return false
		}
	}
	return n.used>>k.digit(0)&1 != 0
}

// Add adds k and reports whether it is new.
func (b *Set) Add(k Number) bool { return b.root.add(k, b.levels-1) }

func (n *node) add(k Number, level int) bool {
	d := k.digit(level)
	bit := uint64(1) << d
	if level == 0 {
		if n.used&bit != 0 {
			return false
		}
		n.used |= bit
		n.full = n.used
		n.count++
		return true
	}
	kid := n.kid(d)
	if kid == nil {
		kid = &node{}
		n.kids = slices.Insert(n.kids, bits.OnesCount64(n.used&(bit-1)), kid)
		n.used |= bit
	}
	if !kid.add(k, level-1) {
		return false
	}
	n.count++
	if kid.full == ^uint64(0) {
		n.full |= bit
	}
	return true
}

// Remove removes k and reports whether it was there.
func (b *Set) Remove(k Number) bool { return b.root.remove(k, b.levels-1) }

func (n *node) remove(k Number, level int) bool {
	d := k.digit(level)
	bit := uint64(1) << d
	if level == 0 {
		if n.used&bit == 0 {
			return false
		}
		n.used &^= bit
		n.full = n.used
		n.count--
		return true
	}
	kid := n.kid(d)
	if kid == nil || !kid.remove(k, level-1) {
		return false
	}
	n.count--
	n.full &^= bit
	if kid.count == 0 {
		i := bits.OnesCount64(n.used & (bit - 1))
		n.kids = slices.Delete(n.kids, i, i+1)
		n.used &^= bit
	}
	return true
}

// NextFree returns the lowest number from k on that is not in the set.
func (b *Set) NextFree(k Number) (Number, bool) {
	return b.root.nextFree(k, Number{}, b.levels-1)
}

// nextFree searches below n, where all numbers start with prefix. The part with k may be full from k
// on without being full; every later part that isn't full has a free number. So at most one step per
// level finds nothing.
func (n *node) nextFree(k, prefix Number, level int) (Number, bool) {
	first := k.digit(level)
	for open := ^n.full >> first << first; open != 0; open &= open - 1 {
		d := uint(bits.TrailingZeros64(open))
		p := prefix.with(level, d)
		if d > first {
			k = p
		}
		if level == 0 {
			return p, true
		}
		kid := n.kid(d)
		if kid == nil {
			return k, true
		}
		if free, ok := kid.nextFree(k, p, level-1); ok {
			return free, true
		}
	}
	return Number{}, false
}

// below returns the number of members lower than k. It costs up to 64 steps per level.
func (b *Set) below(k Number) uint64 {
	total := uint64(0)
	n := &b.root
	for level := b.levels - 1; ; level-- {
		d := k.digit(level)
		if level == 0 {
			return total + uint64(bits.OnesCount64(n.used&(1<<d-1)))
		}
		i := bits.OnesCount64(n.used & (1<<d - 1))
		for _, kid := range n.kids[:i] {
			total += kid.count
		}
		if n = n.kid(d); n == nil {
			return total
		}
	}
}

// Count returns the number of members from first to last, both included.
func (b *Set) Count(first, last Number) uint64 {
	n := b.below(last) - b.below(first)
	if b.Has(last) {
		n++
	}
	return n
}
