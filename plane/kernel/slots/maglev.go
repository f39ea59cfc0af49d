package slots

import (
	"encoding/binary"
	"net/netip"
)

// Maglev returns the index of the backend of each slot, by weighted Maglev hashing (Eisenbud et al., NSDI 2016, section 3.4):
// every one of n backends has its own permutation of the slots and takes the next free slot in each round in which its weight
// is due. A change of one backend moves hardly any client of the others. The number of slots is prime, n is 1 to 65536, and
// weights are above 0.
func Maglev(size uint64, n int, backend func(i int) (addr netip.AddrPort, weight uint64)) []uint16 {
	type filler struct{ next, skip, weight, due uint64 }
	fillers := make([]filler, n)
	var most uint64
	for i := range fillers {
		addr, weight := backend(i)
		fillers[i] = filler{next: HashOf(addr, 1) % size, skip: HashOf(addr, 2)%(size-1) + 1, weight: weight}
		most = max(most, weight)
	}
	slots, taken := make([]uint16, size), make([]bool, size)
	left := size
	// A backend is due when round*weight has passed the next multiple of the greatest weight. All
	// are due in round 0, so that even the lightest backend gets a slot.
	for round := uint64(0); ; round++ {
		for i := range fillers {
			f := &fillers[i]
			if round*f.weight < f.due {
				continue
			}
			f.due += most
			for taken[f.next] {
				if f.next += f.skip; f.next >= size {
					f.next -= size
				}
			}
			taken[f.next] = true
			slots[f.next] = uint16(i)
			if left--; left == 0 {
				return slots
			}
		}
	}
}

// HashOf returns the hash of an address and port. It has no secret, so it is the same on every host and in every version. An
// IPv4 address has the same hash in both forms.
func HashOf(a netip.AddrPort, seed uint64) uint64 {
	b := a.Addr().As16()
	h := mix(seed ^ 0x9e3779b97f4a7c15 ^ binary.BigEndian.Uint64(b[:8]))
	h = mix(h ^ binary.BigEndian.Uint64(b[8:]))
	return mix(h ^ (uint64(a.Port())<<1 | 1))
}

// mix is the finalizer of splitmix64: a bijection in which every input bit
// changes every output bit with probability close to a half.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
