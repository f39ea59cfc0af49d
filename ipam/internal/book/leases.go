package book

import (
	"iter"
	"slices"

	"github.com/ironvip/ironvip/internal/table/keyed"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// graves is how many removals are remembered.
const graves = 4096

// Leases are the leases of a store in memory: by resource, by who holds them,
// and in the order of their changes. One change costs O(its holders). Leases
// have no lock of their own. Make them with NewLeases.
type Leases struct {
	entries *keyed.Set[ipam.Resource, entry]
	order   entry    // ring of the entries, oldest change first; the sentinel
	removed []*entry // in the order of their versions
	horizon ipam.Version
	version ipam.Version
	held    ipam.Holdings
}

// entry is the newest change of one resource.
type entry struct {
	prev, next *entry
	version    ipam.Version
	lease      *ipam.Lease // of a removed one, the resource alone
}

// gone reports whether the lease ended: every lease has a state.
func (e *entry) gone() bool { return e.lease.State == 0 }

func (e *entry) unlink() { e.prev.next, e.next.prev = e.next, e.prev }

// NewLeases returns none.
func NewLeases() *Leases {
	b := &Leases{
		entries: keyed.New(func(e *entry) ipam.Resource { return e.lease.Resource }),
		held:    ipam.NewHoldings(),
	}
	b.order.prev, b.order.next = &b.order, &b.order
	return b
}

// Get returns the lease of a resource, nil without one. It must not be changed.
func (b *Leases) Get(r ipam.Resource) *ipam.Lease {
	if e := b.entries.Get(r); e != nil && !e.gone() {
		return e.lease
	}
	return nil
}

// Held returns what a service holds. The slice is the caller's.
func (b *Leases) Held(k vip.ServiceKey) []ipam.Resource { return slices.Collect(b.held.Of(k)) }

// Set notes that the lease of r is l now; nil is its end. Nobody changes the
// lease from here on.
func (b *Leases) Set(r ipam.Resource, l *ipam.Lease) {
	old := b.Get(r)
	b.held.Follow(held(old), held(l))
	b.version++
	if e := b.entries.Get(r); e != nil {
		e.unlink()
	}
	e := &entry{prev: b.order.prev, next: &b.order, version: b.version, lease: l}
	if l == nil {
		e.lease = &ipam.Lease{Resource: r}
		b.removed = append(b.removed, e)
	}
	e.prev.next, b.order.prev = e, e
	b.entries.Put(e)
	b.bury()
}

// bury forgets the oldest removals when there are too many.
func (b *Leases) bury() {
	for len(b.removed) > graves {
		oldest := b.removed[0]
		b.removed = b.removed[1:]
		if r := oldest.lease.Resource; b.entries.Get(r) == oldest {
			oldest.unlink()
			b.entries.Delete(r)
			b.horizon = oldest.version
		}
	}
}

// After returns what changed after since, oldest first, and the version to ask
// from next, which is at least 1, so that asking again doesn't start anew. From
// 0 there are no removals to tell of. It costs O(changes).
func (b *Leases) After(since ipam.Version) ([]ipam.LeaseChange, ipam.Version, error) {
	if since != 0 && since < b.horizon {
		return nil, since, ipam.ErrCompacted
	}
	first := &b.order
	for first.prev != &b.order && first.prev.version > since {
		first = first.prev
	}
	var changes []ipam.LeaseChange
	for e := first; e != &b.order; e = e.next {
		switch {
		case !e.gone():
			changes = append(changes, ipam.LeaseChange{Resource: e.lease.Resource, Lease: e.lease})
		case since != 0:
			changes = append(changes, ipam.LeaseChange{Resource: e.lease.Resource})
		}
	}
	if b.version == 0 {
		b.version = 1
	}
	return changes, b.version, nil
}

// held returns a lease that is held, or blocked and so held by those whom it
// names; nil of any other.
func held(l *ipam.Lease) *ipam.Lease {
	if l == nil || l.State == ipam.Cooling {
		return nil
	}
	return l
}

// Lost returns the services that hold old and don't hold now; either may be nil.
// A blocked lease is held by those whom it names.
func Lost(old, now *ipam.Lease) iter.Seq[vip.ServiceKey] {
	return func(yield func(vip.ServiceKey) bool) {
		if old == nil {
			return
		}
		for i := range old.Holders {
			k := old.Holders[i].Service
			if place(now, k) < 0 && place(old, k) == i && !yield(k) {
				return
			}
		}
	}
}

// place returns the first place of a service among those who hold a lease, -1 if
// it doesn't.
func place(l *ipam.Lease, k vip.ServiceKey) int {
	if l = held(l); l == nil {
		return -1
	}
	return slices.IndexFunc(l.Holders, func(h ipam.Holder) bool { return h.Service == k })
}
