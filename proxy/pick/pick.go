// Package pick chooses a backend for a new connection.
//
// In come the usable backends of one frontend with their weights and, shared
// with whoever counts them, their open connections; out comes a Picker that
// names one of them for a client. Pickers are pure apart from a shared turn
// counter and the connections they count: no I/O, no locks, no allocation in
// Pick, and any number of goroutines may call one at once. A change of backends or weights makes a new
// Picker; hashing ones depend on nothing but their input, so that every host
// sends the same client to the same backend.
package pick

import (
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/ironvip/ironvip/vip"
)

// MaxBackends is how many backends a Picker takes.
const MaxBackends = 1<<16 - 1

// Backend is one backend that takes new connections.
type Backend struct {
	Addr   netip.AddrPort
	Weight uint32 // 1 to vip.MaxWeight
	State  *State
}

// State is what changes about a backend from one connection to the next. Its
// owner keeps it over any number of Pickers.
type State struct {
	Open  atomic.Int64 // connections it has, those being made included
	Avoid atomic.Int64 // it is passed over before this time, in nanoseconds of the caller's clock
}

// Picker chooses among the backends it was made of.
type Picker interface {
	// Pick returns the index of a backend for the client that Hash made hash of,
	// passing over those that are in tried or to be avoided at now. It returns
	// -1 when that leaves none; now = math.MaxInt64 avoids none. The connection to
	// the backend is counted in its State.Open already, in one step with the
	// choice: clients who choose in the same instant would all find the same
	// backend idle otherwise. Whoever asked takes 1 off Open when the connection
	// ends or isn't made.
	Pick(hash uint64, now int64, tried []int) int
}

// Supported lists the schedulers New knows.
func Supported() []vip.Scheduler {
	return []vip.Scheduler{vip.RoundRobin, vip.WeightedRoundRobin, vip.LeastConnection,
		vip.WeightedLeastConnection, vip.SourceHash, vip.MaglevHash}
}

// New returns the scheduler's Picker for backends, which must be sorted alike
// on every host for sh and mh to agree, and must not change afterwards. The turn
// counter is the caller's, kept over Pickers so that a change of backends does
// not start from the first again. Building mh costs O(table), about 0.3 ms; the
// others O(len(backends)).
func New(s vip.Scheduler, backends []Backend, turn *atomic.Uint64) (Picker, error) {
	if len(backends) > MaxBackends {
		return nil, fmt.Errorf("%d backends are more than the %d a scheduler takes", len(backends), MaxBackends)
	}
	set := set{backends: backends}
	if len(backends) == 0 {
		return none{}, nil
	}
	switch s {
	case vip.RoundRobin:
		return &roundRobin{set, turn}, nil
	case vip.WeightedRoundRobin:
		return &weightedRoundRobin{set, newStride(backends, turn)}, nil
	case vip.LeastConnection:
		return &leastConnection{set, turn}, nil
	case vip.WeightedLeastConnection:
		return &weightedLeastConnection{set, newStride(backends, turn)}, nil
	case vip.SourceHash:
		return newSourceHash(set), nil
	case vip.MaglevHash:
		return newMaglev(set), nil
	}
	return nil, fmt.Errorf("unknown scheduler %q", s)
}

// none is the Picker of a frontend without backends.
type none struct{}

func (none) Pick(uint64, int64, []int) int { return -1 }

// set is what all Pickers have.
type set struct{ backends []Backend }

func (s *set) takes(i int, now int64, tried []int) bool {
	return s.backends[i].State.Avoid.Load() <= now && !slices.Contains(tried, i)
}

// from counts a connection on the first backend at or after start, going round,
// that takes one.
func (s *set) from(start int, now int64, tried []int) int {
	for i := start; i < len(s.backends); i++ {
		if s.takes(i, now, tried) {
			return s.count(i)
		}
	}
	for i := range start {
		if s.takes(i, now, tried) {
			return s.count(i)
		}
	}
	return -1
}

// count counts a connection on i, whatever others do meanwhile, and returns i.
func (s *set) count(i int) int {
	s.backends[i].State.Open.Add(1)
	return i
}
