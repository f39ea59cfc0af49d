// Package keyed has a set of values that contain their own keys.
//
// A map[K]*E stores each key again. With large keys, such as names and addresses, and many maps,
// this is a large part of all memory. A Set stores only pointers: 10 to 20 bytes each, for any key.
// It is not safe for concurrent use.
package keyed

import (
	"hash/maphash"
	"iter"
)

// pageSize bounds the slots of a page. A full page is split in two, so adding costs at most
// O(pageSize).
const pageSize = 512

// Set finds values by their keys. Create one with New.
type Set[K comparable, E any] struct {
	key   func(*E) K
	seed  maphash.Seed
	bits  uint       // number of top bits of a hash that select the page
	pages []*page[E] // 1 << bits; a page with fewer bits appears several times
	n     int
}

// page is a hash table with linear probing. The mark of an empty slot is 0; other marks are a part
// of the hash, so that a search mostly reads one value.
type page[E any] struct {
	bits  uint // number of top bits of a hash that all its values have in common
	n     int
	marks []uint8
	slots []*E
}

// New returns an empty set. key returns a value's key, which must not change while the value is in
// the set.
func New[K comparable, E any](key func(*E) K) *Set[K, E] {
	return &Set[K, E]{key: key, seed: maphash.MakeSeed(), pages: []*page[E]{newPage[E](8, 0)}}
}

func newPage[E any](size int, bits uint) *page[E] {
	return &page[E]{bits: bits, marks: make([]uint8, size), slots: make([]*E, size)}
}

// Len returns the number of values.
func (s *Set[K, E]) Len() int { return s.n }

// Get returns the value with the key, or nil.
func (s *Set[K, E]) Get(k K) *E {
	p, i := s.find(k, s.hash(k))
	return p.slots[i]
}

// All yields every value, in no particular order. The set must not change meanwhile.
func (s *Set[K, E]) All() iter.Seq[*E] {
	return func(yield func(*E) bool) {
		for i := 0; i < len(s.pages); i += 1 << (s.bits - s.pages[i].bits) {
			for _, e := range s.pages[i].slots {
				if e != nil && !yield(e) {
					return
				}
			}
		}
	}
}

// Put adds a value, or replaces the one with the same key.
func (s *Set[K, E]) Put(e *E) {
	k := s.key(e)
	h := s.hash(k)
	p, i := s.find(k, h)
	if p.slots[i] != nil {
		p.slots[i] = e
		return
	}
	s.n++
	for (p.n+1)*16 > len(p.slots)*13 {
		s.grow(p, h)
		p = s.page(h)
	}
	p.add(e, h)
}

// Delete removes the value with the key, if any.
func (s *Set[K, E]) Delete(k K) {
	p, i := s.find(k, s.hash(k))
	if p.slots[i] == nil {
		return
	}
	s.n--
	p.n--
	// The following values move up, except those whose search begins after the gap.
	mask := len(p.slots) - 1
	for j := (i + 1) & mask; p.slots[j] != nil; j = (j + 1) & mask {
		if first := int(s.hash(s.key(p.slots[j]))) & mask; (j-first)&mask >= (j-i)&mask {
			p.slots[i], p.marks[i] = p.slots[j], p.marks[j]
			i = j
		}
	}
	p.slots[i], p.marks[i] = nil, 0
}

func (s *Set[K, E]) hash(k K) uint64 { return maphash.Comparable(s.seed, k) }

func (s *Set[K, E]) page(h uint64) *page[E] { return s.pages[h>>(64-s.bits)] }

// find returns the place of the value with a key, or the empty slot where its search ends.
func (s *Set[K, E]) find(k K, h uint64) (*page[E], int) {
	p := s.page(h)
	mask, mark := len(p.slots)-1, markOf(h)
	for i := int(h) & mask; ; i = (i + 1) & mask {
		switch p.marks[i] {
		case 0:
			return p, i
		case mark:
			if s.key(p.slots[i]) == k {
				return p, i
			}
		}
	}
}

// markOf uses other bits than the places in a page and, mostly, the page.
func markOf(h uint64) uint8 { return uint8(h>>16) | 1 }

// add adds a value that is not in the page, which has room.
func (p *page[E]) add(e *E, h uint64) {
	mask := len(p.slots) - 1
	i := int(h) & mask
	for p.marks[i] != 0 {
		i = (i + 1) & mask
	}
	p.slots[i], p.marks[i] = e, markOf(h)
	p.n++
}

// grow makes room in p, the page of a hash: it replaces p by a larger page, or by two.
func (s *Set[K, E]) grow(p *page[E], h uint64) {
	size, bits := 2*len(p.slots), p.bits
	if size > pageSize {
		size, bits = pageSize, bits+1
	}
	if bits > s.bits {
		pages := make([]*page[E], 2*len(s.pages))
		for i := range pages {
			pages[i] = s.pages[i/2]
		}
		s.pages, s.bits = pages, bits
	}
	first, end := h>>(64-p.bits)<<(s.bits-p.bits), uint64(1)<<(s.bits-p.bits)
	for end += first; first < end; {
		fresh := newPage[E](size, bits)
		for range 1 << (s.bits - bits) {
			s.pages[first] = fresh
			first++
		}
	}
	for _, e := range p.slots {
		if e != nil {
			h := s.hash(s.key(e))
			s.page(h).add(e, h)
		}
	}
}
