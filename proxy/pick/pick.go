// Package pick chooses a backend for a new connection.
//
// Its input is the usable backends of one frontend with their weights, and shared counts of open
// connections. Its output is a Picker, which returns one backend for a client. Pickers change only
// a shared turn counter and the connection counts. Pick does no I/O, takes no locks and allocates
// nothing; it may be called concurrently. A change of backends or weights needs a new Picker.
// Hashing Pickers depend only on their input, so every host sends a client to the same backend.
package pick

import (
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/ironvip/ironvip/vip"
)

// MaxBackends is the largest number of backends of a Picker.
const MaxBackends = 1<<16 - 1

// Backend is one backend that accepts new connections.
type Backend struct {
	Addr   netip.AddrPort
	Weight uint32 // 1 to vip.MaxWeight
	State  *State
}

// State is the part of a backend that changes with each connection. Its owner keeps it across
// Pickers.
type State struct {
	Open atomic.Int64 // its connections, including those being established
	// Avoid is the time before which it is skipped, in nanoseconds of the caller's clock. States of
	// the same backend in different Pickers may share it.
	Avoid *atomic.Int64

	// Most bounds Shared: at this number, the backend is skipped. 0: no limit.
	Most   atomic.Int64
	Shared *atomic.Int64 // its connections over all frontends that have it; nil: without Most
}

// Full reports whether the backend has as many connections as it may.
func (s *State) Full() bool {
	most := s.Most.Load()
	return most > 0 && s.Shared.Load() >= most
}

// Picker chooses among its backends.
type Picker interface {
	// Pick returns the index of a backend for a client with this hash (see Hash). It skips backends
	// in tried, those that are full, and those to avoid at now. It returns -1 if none is left; with now = math.MaxInt64
	// it avoids none. Pick counts the connection in State.Open in the same step, because
	// simultaneous clients would otherwise all find the same backend idle. The caller subtracts 1
	// when the connection ends or fails.
	Pick(hash uint64, now int64, tried []int) int
}

// Supported lists the schedulers that New supports.
func Supported() []vip.Scheduler {
	return []vip.Scheduler{vip.RoundRobin, vip.WeightedRoundRobin, vip.LeastConnection,
		vip.WeightedLeastConnection, vip.SourceHash, vip.MaglevHash}
}

// New returns the scheduler's Picker for backends, which must be immutable and, for sh and mh, in
// the same order on every host. The caller owns the turn counter and keeps it across Pickers, so
// that a change of backends does not restart the order. Building mh costs O(table), about 0.3 ms;
// the others O(len(backends)).
func New(s vip.Scheduler, backends []Backend, turn *atomic.Uint64) (Picker, error) {
	if len(backends) > MaxBackends {
		return nil, fmt.Errorf("%d backends are more than the %d a scheduler takes", len(backends), MaxBackends)
	}
	set := set{backends: backends}
	if len(backends) == 0 {
		return none{}, nil
	}
	switch s {
	case vip.RoundRobin, vip.WeightedRoundRobin:
		return &roundRobin{set, newStride(backends, turn, s == vip.WeightedRoundRobin)}, nil
	case vip.LeastConnection, vip.WeightedLeastConnection:
		return &leastConnection{set, newStride(backends, turn, s == vip.WeightedLeastConnection)}, nil
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

// set is the part common to all Pickers.
type set struct{ backends []Backend }

func (s *set) takes(i int, now int64, tried []int) bool {
	state := s.backends[i].State
	return state.Avoid.Load() <= now && !state.Full() && !slices.Contains(tried, i)
}

// from counts a connection on the first backend at or after start that accepts one.
func (s *set) from(start int, now int64, tried []int) int {
	for k := range s.backends {
		if i := (start + k) % len(s.backends); s.takes(i, now, tried) {
			return s.count(i)
		}
	}
	return -1
}

// count counts a connection on i, independent of concurrent changes, and returns i.
func (s *set) count(i int) int {
	s.backends[i].State.Open.Add(1)
	return i
}
