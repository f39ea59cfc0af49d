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
