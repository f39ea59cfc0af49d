package ipam

import (
	"net/netip"

	"go4.org/netipx"
)

// span is a run of numbers, both ends included.
type span struct{ first, last number }

func spanOf(r netipx.IPRange) span { return span{numberOf(r.From()), numberOf(r.To())} }

// size is at most 2^64-1.
func (s span) size() uint64 { return addSaturating(s.last.minus(s.first), 1) }

// spans are runs in the order of their use. None overlap.
type spans []span

func (s spans) size() (n uint64) {
	for _, r := range s {
		n = addSaturating(n, r.size())
	}
	return n
}

func (s spans) contains(k number) bool {
	for _, r := range s {
		if !k.less(r.first) && !r.last.less(k) {
			return true
		}
	}
	return false
}

// split divides the spans after the first n numbers.
func (s spans) split(n uint64) (head, tail spans) {
	for _, r := range s {
		size := r.size()
		switch {
		case n == 0:
			tail = append(tail, r)
		case size <= n:
			head = append(head, r)
			n -= size
		default:
			head = append(head, span{r.first, r.first.plus(n - 1)})
			tail = append(tail, span{r.first.plus(n), r.last})
			n = 0
		}
	}
	return head, tail
}

// without returns the spans without the members of the set.
func (s spans) without(set *netipx.IPSet, v4 bool) spans {
	var out spans
	for _, r := range s {
		whole := netipx.IPRangeFrom(r.first.addr(v4), r.last.addr(v4))
		if !set.OverlapsRange(whole) {
			out = append(out, r)
			continue
		}
		var b netipx.IPSetBuilder
		b.AddRange(whole)
		b.RemoveSet(set)
		rest, _ := b.IPSet() // fails on invalid input only
		for _, part := range rest.Ranges() {
			out = append(out, spanOf(part))
		}
	}
	return out
}

// nextFree returns the first number of the spans that is neither used nor planned. It starts at
// from, if that is in one of them, and wraps around once.
func (s spans) nextFree(used *bitmap, from number, planned func(number) bool) (number, bool) {
	if len(s) == 0 {
		return number{}, false
	}
	start := 0
	for i, r := range s {
		if !from.less(r.first) && !r.last.less(from) {
			start = i
			break
		}
	}
	// The span with from comes first, from there on, and last as a whole.
	for i := range len(s) + 1 {
		r := s[(start+i)%len(s)]
		at := r.first
		if i == 0 && !from.less(r.first) && !r.last.less(from) {
			at = from
		}
		for free, ok := used.nextFree(at); ok && !r.last.less(free); free, ok = used.nextFree(free.plus(1)) {
			if !planned(free) {
				return free, true
			}
			if free == r.last {
				break
			}
		}
	}
	return number{}, false
}

func addSaturating(a, b uint64) uint64 {
	if a+b < a {
		return ^uint64(0)
	}
	return a + b
}

// ends returns the addresses of a prefix that are never allocated: the network and broadcast address of
// IPv4 (a /31 and a /32 have none), and the subnet-router anycast address of IPv6 (RFC 4291; a /127
// and a /128 have none).
func ends(p netip.Prefix) []netip.Addr {
	r := netipx.RangeOfPrefix(p)
	switch {
	case p.Addr().BitLen()-p.Bits() < 2:
		return nil
	case p.Addr().Is4():
		return []netip.Addr{r.From(), r.To()}
	default:
		return []netip.Addr{r.From()}
	}
}
