package leasetable

import (
	"iter"
	"slices"

	"github.com/ironvip/ironvip/internal/table/keyed"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// tombstones is how many removals are kept. After is ErrCompacted for older ones.
const tombstones = 4096

// Table has the leases of a store by resource, by holder, and in the order of their changes.
// One change costs O(its holders). It is not safe for concurrent use. Make one with NewTable.
type Table struct {
	entries   *keyed.Set[ipam.Resource, entry]
	order     entry        // sentinel of a ring of the entries, oldest change first
	removed   []*entry     // the tombstones in the order of their versions
	compacted ipam.Version // of the newest tombstone that was dropped
	version   ipam.Version
	held      ipam.Holdings
}

// entry is the newest change of one resource.
type entry struct {
	prev, next *entry
	version    ipam.Version
	lease      *ipam.Lease // a tombstone has a lease with only the resource
}

// removed reports whether the entry is a tombstone: every lease has a state.
func (e *entry) removed() bool { return e.lease.State == 0 }

func (e *entry) unlink() { e.prev.next, e.next.prev = e.next, e.prev }

// NewTable returns an empty table.
func NewTable() *Table {
	t := &Table{
		entries: keyed.New(func(e *entry) ipam.Resource { return e.lease.Resource }),
		held:    ipam.NewHoldings(),
	}
	t.order.prev, t.order.next = &t.order, &t.order
	return t
}

// Get returns the lease of a resource, or nil. The caller must not change it.
func (t *Table) Get(r ipam.Resource) *ipam.Lease {
	if e := t.entries.Get(r); e != nil && !e.removed() {
		return e.lease
	}
	return nil
}

// Held returns the resources that a service holds. The caller may change the slice.
func (t *Table) Held(k vip.ServiceKey) []ipam.Resource { return slices.Collect(t.held.Of(k)) }

// Set replaces the lease of r; a nil l removes it. The caller must not change l afterwards.
func (t *Table) Set(r ipam.Resource, l *ipam.Lease) {
	old := t.Get(r)
	t.held.Follow(held(old), held(l))
	t.version++
	if e := t.entries.Get(r); e != nil {
		e.unlink()
	}
	e := &entry{prev: t.order.prev, next: &t.order, version: t.version, lease: l}
	if l == nil {
		e.lease = &ipam.Lease{Resource: r}
		t.removed = append(t.removed, e)
	}
	e.prev.next, t.order.prev = e, e
	t.entries.Put(e)
	t.compact()
}

// compact drops the oldest tombstones when there are too many.
func (t *Table) compact() {
	for len(t.removed) > tombstones {
		oldest := t.removed[0]
		t.removed = t.removed[1:]
		if r := oldest.lease.Resource; t.entries.Get(r) == oldest {
			oldest.unlink()
			t.entries.Delete(r)
			t.compacted = oldest.version
		}
	}
}

// After returns the changes after version since, oldest first, and the version for the next
// call, which is at least 1. A since of 0 returns every lease and no removals. It costs
// O(changes).
func (t *Table) After(since ipam.Version) ([]ipam.LeaseChange, ipam.Version, error) {
	if since != 0 && since < t.compacted {
		return nil, since, ipam.ErrCompacted
	}
	first := &t.order
	for first.prev != &t.order && first.prev.version > since {
		first = first.prev
	}
	var changes []ipam.LeaseChange
	for e := first; e != &t.order; e = e.next {
		switch {
		case !e.removed():
			changes = append(changes, ipam.LeaseChange{Resource: e.lease.Resource, Lease: e.lease})
		case since != 0:
			changes = append(changes, ipam.LeaseChange{Resource: e.lease.Resource})
		}
	}
	if t.version == 0 {
		t.version = 1
	}
	return changes, t.version, nil
}

// held returns l if it is held, or blocked and therefore held by the services it names;
// otherwise nil.
func held(l *ipam.Lease) *ipam.Lease {
	if l == nil || l.State == ipam.Cooling || l.State == ipam.Reserved {
		return nil
	}
	return l
}

// Lost returns the services that hold old and don't hold now; either may be nil. A blocked
// lease is held by the services it names.
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

// place returns the index of a service among the holders of a lease, or -1.
func place(l *ipam.Lease, k vip.ServiceKey) int {
	if l = held(l); l == nil {
		return -1
	}
	return slices.IndexFunc(l.Holders, func(h ipam.Holder) bool { return h.Service == k })
}
