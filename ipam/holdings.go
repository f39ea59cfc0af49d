package ipam

import (
	"iter"
	"slices"

	"github.com/ironvip/ironvip/internal/table/keyed"
	"github.com/ironvip/ironvip/vip"
)

// Holdings finds leases by the services that they name, usually one per service. A lease takes 40
// bytes, because the key is read from the lease. Holdings are not safe for concurrent use. Make them
// with NewHoldings.
type Holdings struct {
	first *keyed.Set[vip.ServiceKey, holding]
}

// holding is one lease of one service.
type holding struct {
	lease  *Lease
	holder int      // the index of the service among its holders
	next   *holding // of the same service
}

func (h *holding) service() vip.ServiceKey { return h.lease.Holders[h.holder].Service }

// NewHoldings returns empty Holdings.
func NewHoldings() Holdings { return Holdings{first: keyed.New((*holding).service)} }

// Of yields what a service holds, oldest first. The loop body must not change the Holdings.
func (h Holdings) Of(k vip.ServiceKey) iter.Seq[Resource] {
	return func(yield func(Resource) bool) {
		for one := h.first.Get(k); one != nil; one = one.next {
			if !yield(one.lease.Resource) {
				return
			}
		}
	}
}

// Any reports whether a service holds anything.
func (h Holdings) Any(k vip.ServiceKey) bool { return h.first.Get(k) != nil }

// Follow replaces the lease old by now; nil is none. Nobody may change now afterwards. It costs
// O(holders and what they hold).
func (h Holdings) Follow(old, now *Lease) {
	for k := range holdersOf(old) {
		if now == nil || now.holder(k) == nil {
			h.remove(k, old.Resource)
		}
	}
	for k, place := range holdersOf(now) {
		h.set(k, holding{lease: now, holder: place})
	}
}

// holdersOf yields the holders of a lease, each once, with their indexes.
func holdersOf(l *Lease) iter.Seq2[vip.ServiceKey, int] {
	return func(yield func(vip.ServiceKey, int) bool) {
		if l == nil {
			return
		}
		for i := range l.Holders {
			k := l.Holders[i].Service
			again := slices.ContainsFunc(l.Holders[:i], func(h Holder) bool { return h.Service == k })
			if !again && !yield(k, i) {
				return
			}
		}
	}
}

// set appends a lease to what k holds, or replaces the one of the same resource.
func (h Holdings) set(k vip.ServiceKey, now holding) {
	at := h.first.Get(k)
	if at == nil {
		h.first.Put(&now)
		return
	}
	for at.lease.Resource != now.lease.Resource {
		if at.next == nil {
			at.next = &now
			return
		}
		at = at.next
	}
	at.lease, at.holder = now.lease, now.holder
}

func (h Holdings) remove(k vip.ServiceKey, r Resource) {
	first := h.first.Get(k)
	if first == nil {
		return
	}
	if first.lease.Resource == r {
		if first.next != nil {
			h.first.Put(first.next)
		} else {
			h.first.Delete(k)
		}
		return
	}
	for before := first; before.next != nil; before = before.next {
		if before.next.lease.Resource == r {
			before.next = before.next.next
			return
		}
	}
}
