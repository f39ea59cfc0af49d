package pick

import (
	"math/bits"
	"net/netip"
	"sort"

	"github.com/ironvip/ironvip/plane/kernel/slots"
)

// Hash returns the hash of a client for sh and mh: of its address, and of its port if withPort is
// set. It has no secret seed, so it is the same on every host and in every version. An IPv4 client
// has the same hash in both forms.
func Hash(client netip.AddrPort, withPort bool) uint64 {
	var port uint16
	if withPort {
		port = client.Port()
	}
	return slots.HashOf(netip.AddrPortFrom(client.Addr(), port), 0)
}

// scale maps a hash evenly onto [0, n).
func scale(hash, n uint64) uint64 {
	hi, _ := bits.Mul64(hash, n)
	return hi
}

// sourceHash assigns each backend a share of the hash space by its weight. A change of backends
// moves most clients; mh moves few.
type sourceHash struct {
	set
	upto []uint64 // the sum of the weights up to and with each backend
}

func newSourceHash(s set) *sourceHash {
	sh := &sourceHash{set: s, upto: make([]uint64, len(s.backends))}
	var sum uint64
	for i, b := range s.backends {
		sum += uint64(b.Weight)
		sh.upto[i] = sum
	}
	return sh
}

func (s *sourceHash) Pick(hash uint64, now int64, tried []int) int {
	at := scale(hash, s.upto[len(s.upto)-1])
	i := sort.Search(len(s.upto), func(i int) bool { return s.upto[i] > at })
	return s.from(i, now, tried)
}
