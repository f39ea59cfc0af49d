package pick

import (
	"net/netip"

	"github.com/ironvip/ironvip/plane/kernel/slots"
)

// Sizes of the Maglev table, both prime. The small one costs 32 KiB per frontend and keeps shares
// within about 1 % for 160 backends. The large one costs 256 KiB and is for more than
// smallTableBackends. The kernel's default is 4093.
const (
	smallTable         = 16381
	largeTable         = 131071
	smallTableBackends = 1024
)

// maglev is weighted Maglev hashing; see slots.Maglev.
type maglev struct {
	set
	slots []uint16 // the backend of each slot
}

func newMaglev(s set) *maglev {
	size := uint64(smallTable)
	if len(s.backends) > smallTableBackends {
		size = largeTable
	}
	return &maglev{set: s, slots: slots.Maglev(size, len(s.backends), func(i int) (netip.AddrPort, uint64) {
		return s.backends[i].Addr, uint64(s.backends[i].Weight)
	})}
}

// Pick uses the client's slot, and then the next slots until a backend accepts a connection, so
// that a client's second choice is the same on every host, too. Failing backends cost a few steps;
// O(table) if almost all fail.
func (m *maglev) Pick(hash uint64, now int64, tried []int) int {
	start := int(scale(hash, uint64(len(m.slots))))
	for k := range m.slots {
		if i := int(m.slots[(start+k)%len(m.slots)]); m.takes(i, now, tried) {
			return m.count(i)
		}
	}
	return -1
}
