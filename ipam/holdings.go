package ipam

import (
	"iter"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// Holdings finds leases by the services that they name, usually one per service. They are not safe for
// concurrent use. Make them with NewHoldings.
type Holdings struct{ of map[vip.ServiceKey][]Resource }

// NewHoldings returns empty Holdings.
func NewHoldings() Holdings { return Holdings{of: make(map[vip.ServiceKey][]Resource)} }

// Of yields what a service holds, oldest first. The loop body must not change the Holdings.
func (h Holdings) Of(k vip.ServiceKey) iter.Seq[Resource] { return slices.Values(h.of[k]) }

// Any reports whether a service holds anything.
func (h Holdings) Any(k vip.ServiceKey) bool { return len(h.of[k]) > 0 }

// Follow replaces the lease old by now; nil is none. It costs O(holders and what they hold), if few holders change.
func (h Holdings) Follow(old, now *Lease) {
	for k := range Lost(old, now) {
		dropValue(h.of, k, old.Resource)
	}
	for k := range Lost(now, old) {
		h.of[k] = append(h.of[k], now.Resource)
	}
}

// Lost yields the services that old names and now doesn't, each once; nil is none. It costs O(holders x changes).
func Lost(old, now *Lease) iter.Seq[vip.ServiceKey] {
	return func(yield func(vip.ServiceKey) bool) {
		if old == nil {
			return
		}
		first, end := 0, len(old.Holders) // of those that may differ
		if now != nil {
			n := len(now.Holders)
			for first < min(end, n) && old.Holders[first].Service == now.Holders[first].Service {
				first++
			}
			for end > first && n > first && old.Holders[end-1].Service == now.Holders[n-1].Service {
				end, n = end-1, n-1
			}
		}
		for _, h := range old.Holders[first:end] {
			if (now == nil || now.HolderOf(h.Service) == nil) && old.HolderOf(h.Service) == &old.Holders[first] && !yield(h.Service) {
				return
			}
			first++
		}
	}
}

// dropValue takes v out of the list at k, and an empty list out of the map.
func dropValue[K, V comparable](m map[K][]V, k K, v V) {
	list := m[k]
	if i := slices.Index(list, v); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	if len(list) == 0 {
		delete(m, k)
	} else {
		m[k] = list
	}
}
