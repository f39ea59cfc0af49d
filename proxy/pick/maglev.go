package pick

// Sizes of the Maglev table, both prime. The small one costs 32 KiB per frontend and keeps shares
// within about 1 % for 160 backends. The large one costs 256 KiB and is for more than
// smallTableBackends. The kernel's default is 4093.
const (
	smallTable         = 16381
	largeTable         = 131071
	smallTableBackends = 1024
)

// maglev is weighted Maglev hashing (Eisenbud et al., NSDI 2016, section 3.4): every backend has
// its own permutation of the table's slots and takes the next free slot in each round in which its
// weight is due. A change of one backend moves hardly any client of the others.
type maglev struct {
	set
	slots []uint16 // the backend of each slot
}

func newMaglev(s set) *maglev {
	size := uint64(smallTable)
	if len(s.backends) > smallTableBackends {
		size = largeTable
	}
	m := &maglev{set: s, slots: make([]uint16, size)}
	m.fill(size)
	return m
}

func (m *maglev) fill(size uint64) {
	type filler struct{ next, skip, weight, due uint64 }
	fillers := make([]filler, len(m.backends))
	var most uint64
	for i, b := range m.backends {
		fillers[i] = filler{
			next:   hashAddr(b.Addr, 1) % size,
			skip:   hashAddr(b.Addr, 2)%(size-1) + 1,
			weight: uint64(b.Weight),
		}
		most = max(most, fillers[i].weight)
	}
	taken := make([]bool, size)
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
			m.slots[f.next] = uint16(i)
			if left--; left == 0 {
				return
			}
		}
	}
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
