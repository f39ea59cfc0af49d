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

// Follow replaces the lease old by now; nil is none. It costs O(holders and what they hold).
func (h Holdings) Follow(old, now *Lease) {
	if old != nil {
		for i := range old.Holders {
			if k := old.Holders[i].Service; now == nil || now.holder(k) == nil {
				dropValue(h.of, k, old.Resource)
			}
		}
	}
	if now != nil {
		for i := range now.Holders {
			if k := now.Holders[i].Service; !slices.Contains(h.of[k], now.Resource) {
				h.of[k] = append(h.of[k], now.Resource)
			}
		}
	}
}
