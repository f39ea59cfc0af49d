package pick

// leastConnection picks the backend with the fewest open connections for its weight. Among equals
// (mostly idle ones) it uses round robin; the kernel would pick the first. O(backends).
type leastConnection struct {
	set
	stride
}

func (l *leastConnection) Pick(_ uint64, now int64, tried []int) int {
	return l.least(l.next(), now, tried, func(i int) uint64 { return l.weight[i] })
}

// least counts a connection on the backend with the least open/weight; among equals the first at or
// after start. If another goroutine has changed that backend's count meanwhile, it searches again.
func (s *set) least(start int, now int64, tried []int, weight func(int) uint64) int {
	for {
		i, open := s.leastOpen(start, now, tried, weight)
		if i < 0 || s.backends[i].State.Open.CompareAndSwap(open, open+1) {
			return i
		}
	}
}

// leastOpen returns the backend for least, and its connections. Products stay far below 2^64:
// weights have 16 bits, and descriptors bound the connections.
func (s *set) leastOpen(start int, now int64, tried []int, weight func(int) uint64) (best int, open int64) {
	best, per := -1, uint64(1)
	for k := range s.backends {
		i := start + k
		if i >= len(s.backends) {
			i -= len(s.backends)
		}
		if !s.takes(i, now, tried) {
			continue
		}
		o, w := s.backends[i].State.Open.Load(), weight(i)
		if best < 0 || uint64(o)*per < uint64(open)*w {
			best, open, per = i, o, w
		}
	}
	return best, open
}
