package control

import (
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// Compiled says what became of one service: the row of the compiled table.
type Compiled struct {
	// ServiceRev is the newest revision of the service's row that is compiled
	// together with the allocator's answer to it.
	ServiceRev   uint64
	Frontends    []vip.FrontendKey // the service's live frontends, sorted; none that drain
	Revs         []uint64          // of each of Frontends, its revision when this row was written
	Usable       []bool            // of each of Frontends, whether any backend takes new connections
	FrontendsRev uint64            // the newest of Revs
	// Problems are what the allocator could not grant, what is not supported, and
	// what another service has already.
	Problems []vip.Problem
}

// SameCompiled reports whether a and b say the same, without reflection.
func SameCompiled(a, b Compiled) bool {
	return a.ServiceRev == b.ServiceRev &&
		a.FrontendsRev == b.FrontendsRev &&
		slices.Equal(a.Frontends, b.Frontends) &&
		slices.Equal(a.Revs, b.Revs) &&
		slices.Equal(a.Usable, b.Usable) &&
		slices.Equal(a.Problems, b.Problems)
}
