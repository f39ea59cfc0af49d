package leasetable

import (
	"iter"
	"slices"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// Table has the leases of a store by resource and by holder. One change costs O(its holders). Only its
// feeds are safe for concurrent use. Make one with NewTable.
type Table struct {
	leases *table.Table[ipam.Resource, *ipam.Lease]
	held   ipam.Holdings
}

// NewTable returns an empty table.
func NewTable() *Table {
	return &Table{leases: table.New(&table.Clock{}, func(l **ipam.Lease) ipam.Resource { return (*l).Resource }, nil), held: ipam.NewHoldings()}
}

// Get returns the lease of a resource, or nil. The caller must not change it.
func (t *Table) Get(r ipam.Resource) *ipam.Lease {
	l, _, _ := t.leases.Get(r)
	return l
}

// Held returns the resources that a service holds. The caller may change the slice.
func (t *Table) Held(k vip.ServiceKey) []ipam.Resource { return slices.Collect(t.held.Of(k)) }

// Set replaces the lease of r; a nil l removes it. The caller must not change l afterwards.
func (t *Table) Set(r ipam.Resource, l *ipam.Lease) {
	t.held.Follow(held(t.Get(r)), held(l))
	if l == nil {
		t.leases.Delete(r)
	} else {
		t.leases.Set(l)
	}
}

// Watch returns a feed of the leases.
func (t *Table) Watch() ipam.Feed { return feed{t.leases.Watch()} }

type feed struct {
	*table.Feed[ipam.Resource, *ipam.Lease]
}

// TryNext implements ipam.Feed.
func (f feed) TryNext() ([]ipam.LeaseChange, <-chan struct{}) {
	batch, more := f.Feed.TryNext()
	changes := make([]ipam.LeaseChange, len(batch))
	for i, c := range batch {
		if changes[i].Resource = c.Value.Resource; !c.Deleted {
			changes[i].Lease = c.Value
		}
	}
	return changes, more
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
func Lost(old, now *ipam.Lease) iter.Seq[vip.ServiceKey] { return ipam.Lost(held(old), held(now)) }
