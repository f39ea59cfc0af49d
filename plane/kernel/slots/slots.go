// Package slots divides the backends of a frontend among the slots from which a dataplane chooses: at random by weight, or by
// a hash. It is pure code.
package slots

import (
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// Hashed is the number of slots of a service that chooses by a hash. It is prime, so each backend
// has a permutation of all slots.
const Hashed = 251

// Weights that need more slots than this, or more than sixteen for each backend up to manyShares, are rounded: with a few
// slots for each backend, the shares of many would all be too small.
const (
	fewShares  = 1024
	manyShares = 8192
)

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
	most := max(fewShares, min(16*len(all), manyShares))
	exact = total <= max(most, len(all))
	for i := range all {
		if all[i].N /= divisor; !exact {
			all[i].N = max(1, (all[i].N*most+total/2)/total)
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

// ByHash returns the slots of a service that chooses by a hash; see Maglev. The result depends on f's
// backends alone, so that all hosts send a client to the same one.
func ByHash(f *vip.Frontend) []netip.AddrPort {
	usable := slices.DeleteFunc(slices.Clone(f.Backends), func(b vip.Endpoint) bool { return b.Weight == 0 })
	if len(usable) == 0 {
		return nil
	}
	out := make([]netip.AddrPort, Hashed)
	for slot, i := range Maglev(Hashed, len(usable), func(i int) (netip.AddrPort, uint64) { return usable[i].Addr, uint64(usable[i].Weight) }) {
		out[slot] = usable[i].Addr
	}
	return out
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
