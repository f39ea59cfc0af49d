package ipam

import (
	"math/bits"
	"slices"
)

// bitmap is a sparse set of numbers: a trie of 64-way nodes without empty ones. A node has which of
// its parts are full and how many numbers are below it. So add, remove, has and nextFree cost one step
// per level, whatever the set has: 6 levels for IPv4, 22 for IPv6, 3 for ports. A full run of n numbers
// takes about n/7 bytes. It is not safe for concurrent use.
type bitmap struct {
	levels int
	root   bitmapNode
}

type bitmapNode struct {
	used  uint64 // on the lowest level the members; above it which kids exist
	full  uint64 // which parts have no free number left
	count uint64 // members below
	kids  []*bitmapNode
}

// newBitmap returns an empty set of numbers with width bits.
func newBitmap(width int) *bitmap { return &bitmap{levels: (width + 5) / 6} }

// kid returns the child for a digit, or nil.
func (n *bitmapNode) kid(d uint) *bitmapNode {
	if n.used>>d&1 == 0 {
		return nil
	}
	return n.kids[bits.OnesCount64(n.used&(1<<d-1))]
}

// has reports whether k is in the set.
func (b *bitmap) has(k number) bool {
	n := &b.root
	for level := b.levels - 1; level > 0; level-- {
		if n = n.kid(k.digit(level)); n == nil {
			return false
		}
	}
	return n.used>>k.digit(0)&1 != 0
}

// add adds k and reports whether it is new.
func (b *bitmap) add(k number) bool { return b.root.add(k, b.levels-1) }

func (n *bitmapNode) add(k number, level int) bool {
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
		kid = &bitmapNode{}
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

// remove removes k and reports whether it was there.
func (b *bitmap) remove(k number) bool { return b.root.remove(k, b.levels-1) }

func (n *bitmapNode) remove(k number, level int) bool {
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

// nextFree returns the lowest number from k on that is not in the set.
func (b *bitmap) nextFree(k number) (number, bool) {
	return b.root.nextFree(k, number{}, b.levels-1)
}

// nextFree searches below n, where all numbers start with prefix. The part with k may be full from k
// on without being full; every later part that isn't full has a free number. So at most one step per
// level finds nothing.
func (n *bitmapNode) nextFree(k, prefix number, level int) (number, bool) {
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
	return number{}, false
}

// below returns the number of members lower than k. It costs up to 64 steps per level.
func (b *bitmap) below(k number) uint64 {
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

// count returns the number of members from first to last, both included.
func (b *bitmap) count(first, last number) uint64 {
	n := b.below(last) - b.below(first)
	if b.has(last) {
		n++
	}
	return n
}

// len returns the number of members.
func (b *bitmap) len() uint64 { return b.root.count }
