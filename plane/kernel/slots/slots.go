// Package slots divides the backends of a frontend among the slots from which a dataplane of the kernel chooses: at random by
// weight, or by a hash. It is pure code.
package slots

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// Hashed is the number of slots of a service that chooses by a hash. It is prime, so each backend
// has a permutation of all slots.
const Hashed = 251

// mostShares bounds the slots of a service that chooses at random. With weights that need more, the
// shares are rounded to this number.
const mostShares = 1024

// Share is how many slots a backend has.
type Share struct {
	Addr netip.AddrPort
	N    int
}

// SharesOf appends the shares of f's usable backends for choosing slots at random to all, which is empty. Exact is false if
// they are rounded.
func SharesOf(all []Share, f *vip.Frontend) (_ []Share, exact bool) {
	total, divisor := 0, 0
	for _, b := range f.Backends {
		if b.Weight == 0 {
			continue
		}
		w := int(b.Weight)
		if f.Scheduler == vip.RoundRobin {
			w = 1
		}
		all = append(all, Share{b.Addr, w})
		total, divisor = total+w, GCD(w, divisor)
	}
	if len(all) == 0 {
		return nil, true
	}
	total /= divisor
	exact = total <= max(mostShares, len(all))
	for i := range all {
		if all[i].N /= divisor; !exact {
			all[i].N = max(1, all[i].N*mostShares/total)
		}
	}
	return all, exact
}

// GCD returns the greatest common divisor.
func GCD(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// ByShare returns slots with these shares, in any order. It keeps of the old slots what it can, because each changed
// slot is a change of the kernel's table. It uses up the shares.
func ByShare(old []netip.AddrPort, left []Share) []netip.AddrPort {
	slices.SortFunc(left, func(a, b Share) int { return a.Addr.Compare(b.Addr) })
	total := 0
	for _, s := range left {
		total += s.N
	}
	out := make([]netip.AddrPort, total)
	for i := range min(total, len(old)) {
		at, known := slices.BinarySearchFunc(left, old[i], func(s Share, a netip.AddrPort) int { return s.Addr.Compare(a) })
		if known && left[at].N > 0 {
			out[i] = old[i]
			left[at].N--
		}
	}
	next := 0
	for i := range out {
		if out[i].IsValid() {
			continue
		}
		for left[next].N == 0 {
			next++
		}
		out[i] = left[next].Addr
		left[next].N--
	}
	return out
}

// ByHash returns the slots of a service that chooses by a hash, by the Maglev algorithm: each
// backend has a permutation of the slots, and they take free slots in turn, by weight. When one
// goes, its slots are distributed, and few others change. The result depends on f's backends alone,
// so that all hosts send a client to the same one.
func ByHash(f *vip.Frontend) []netip.AddrPort {
	type taker struct {
		addr           netip.AddrPort
		at, skip       int
		weight, credit int
	}
	var takers []taker
	highest := 0
	for _, b := range f.Backends {
		if b.Weight == 0 {
			continue
		}
		h := fnv.New64a()
		key, _ := b.Addr.MarshalBinary()
		_, _ = h.Write(key)
		sum := binary.BigEndian.AppendUint64(nil, mix(h.Sum64()))
		takers = append(takers, taker{addr: b.Addr, at: int(binary.BigEndian.Uint32(sum) % Hashed),
			skip: int(binary.BigEndian.Uint32(sum[4:])%(Hashed-1)) + 1, weight: int(b.Weight)})
		highest = max(highest, int(b.Weight))
	}
	if len(takers) == 0 {
		return nil
	}
	out := make([]netip.AddrPort, Hashed)
	for taken := 0; taken < Hashed; {
		for i := range takers {
			t := &takers[i]
			for t.credit += t.weight; t.credit >= highest && taken < Hashed; t.credit -= highest {
				for out[t.at].IsValid() {
					t.at = (t.at + t.skip) % Hashed
				}
				out[t.at] = t.addr
				taken++
			}
		}
	}
	return out
}

// mix spreads the bits of similar hashes, as the finalizer of MurmurHash3 does.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// Preferred returns the backend with the highest weight, the first of several.
func Preferred(f *vip.Frontend) []netip.AddrPort {
	best := slices.MaxFunc(f.Backends, func(a, b vip.Endpoint) int {
		if a.Weight != b.Weight {
			return int(a.Weight) - int(b.Weight)
		}
		return b.Addr.Compare(a.Addr)
	})
	return []netip.AddrPort{best.Addr}
}
