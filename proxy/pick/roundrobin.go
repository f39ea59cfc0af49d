package pick

import (
	"sync/atomic"

	"github.com/ironvip/ironvip/plane/kernel/slots"
)

// roundRobin gives each backend its weight's share of every cycle.
type roundRobin struct {
	set
	stride
}

func (r *roundRobin) Pick(_ uint64, now int64, tried []int) int {
	i := r.next()
	for misses := 0; misses < len(r.backends); misses++ {
		if r.takes(i, now, tried) {
			return r.count(i)
		}
		i = r.next()
	}
	return r.from(i, now, tried)
}

// stride is a weighted round robin without a lock: the static stride scheduler of gRPC. The turn
// counter iterates over generations of all backends. Backend i is picked in exactly weight[i] of
// every max generations, evenly spread. A cycle is the sum of the weights divided by their common
// divisor; over one cycle, the counts are exact, as with the kernel's wrr. One step costs O(n * max
// / sum) on average: O(1) for similar weights and at most O(n).
type stride struct {
	weight []uint64 // divided by their greatest common divisor
	max    uint64
	turn   *atomic.Uint64
}

// newStride returns a stride over backends. Unless weighted, all have the same weight.
func newStride(backends []Backend, turn *atomic.Uint64, weighted bool) stride {
	s := stride{weight: make([]uint64, len(backends)), turn: turn}
	divisor := 0
	for i, b := range backends {
		s.weight[i] = 1
		if weighted {
			s.weight[i] = uint64(b.Weight)
		}
		divisor = slots.GCD(divisor, int(s.weight[i]))
	}
	for i := range s.weight {
		s.weight[i] /= uint64(divisor)
		s.max = max(s.max, s.weight[i])
	}
	return s
}

// next returns the backend that is next in turn. It terminates because the backend with the
// greatest weight is picked in every generation.
func (s *stride) next() int {
	n := uint64(len(s.weight))
	for {
		seq := s.turn.Add(1) - 1
		generation, i := seq/n, seq%n
		// The offset spreads light backends over different generations.
		phase := (s.weight[i]*(generation%s.max) + i*(s.max/2)) % s.max
		if phase >= s.max-s.weight[i] {
			return int(i)
		}
	}
}
