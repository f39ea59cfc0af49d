package kernel

import (
	"net/netip"
	"slices"
)

// State is a service with its destinations, sorted by CompareDests.
type State struct {
	Service
	Dests []Dest
	// Ages are the positions in the order in which destinations were added. Nil means that
	// this is the order of Dests.
	Ages map[netip.AddrPort]int
}

func CompareDests(a, b Dest) int { return a.Addr.Compare(b.Addr) }

// Serves reports whether a backend is a destination. S may be nil.
func (s *State) Serves(backend netip.AddrPort) bool {
	if s == nil {
		return false
	}
	_, found := slices.BinarySearchFunc(s.Dests, Dest{Addr: backend}, CompareDests)
	return found
}

// Slab allocates slices with a common lifetime as parts of larger ones. If Size is 0,
// each is allocated by itself.
type Slab[T any] struct {
	Size int
	free []T
}

// SlabSize is a size for thousands of slices.
const SlabSize = 1024

func (s *Slab[T]) Cut(n int) []T {
	if n > len(s.free) {
		s.free = make([]T, max(n, s.Size))
	}
	part := s.free[:n:n]
	s.free = s.free[n:]
	return part
}
