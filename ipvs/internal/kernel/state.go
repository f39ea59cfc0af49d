package kernel

import (
	"net/netip"
	"slices"
)

// State is a service with its destinations, these sorted by CompareDests.
type State struct {
	Service
	Dests []Dest
	// ages tells which destinations the kernel was given earlier: the higher, the
	// later. Nil where they are as this package gives them, see ordered.
	Ages map[netip.AddrPort]int
}

func CompareDests(a, b Dest) int { return a.Addr.Compare(b.Addr) }

// Size is the number of destinations; nil has none.
func (s *State) Size() int {
	if s == nil {
		return 0
	}
	return len(s.Dests)
}

// Serves reports whether a backend is a destination; nil has none.
func (s *State) Serves(backend netip.AddrPort) bool {
	if s == nil {
		return false
	}
	_, found := slices.BinarySearchFunc(s.Dests, Dest{Addr: backend}, CompareDests)
	return found
}

// Slab cuts slices that live and die together off larger ones of a size. Where
// that is 0, each is one of its own.
type Slab[T any] struct {
	Size int
	free []T
}

// SlabSize is the size where thousands are to come.
const SlabSize = 1024

func (s *Slab[T]) Cut(n int) []T {
	if n > len(s.free) {
		s.free = make([]T, max(n, s.Size))
	}
	part := s.free[:n:n]
	s.free = s.free[n:]
	return part
}
