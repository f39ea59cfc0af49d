package ipam

import (
	"container/heap"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// index finds leases without looking at all of them. It follows the table of
// leases; what is planned and not yet durable shows in addrs and ports only.
type index struct {
	addrs  map[vip.Family]*bitmap
	ports  map[vip.Protocol]*bitmap
	cursor map[vip.Protocol]*number // where automatic node ports go on

	owned   Holdings                  // held by a service, or cooling for it
	shares  map[shareKey][]netip.Addr // held and for sharing
	usage   map[string]*usage         // by pool, addresses only
	cooling coolingQueue
}

// shareKey is what services have in common that may share an address.
type shareKey struct {
	pool   string
	family vip.Family
	key    string
}

type usage struct{ held, cooling uint64 }

func newIndex() index {
	return index{
		addrs:  map[vip.Family]*bitmap{vip.IPv4: newBitmap(32), vip.IPv6: newBitmap(128)},
		ports:  make(map[vip.Protocol]*bitmap),
		cursor: make(map[vip.Protocol]*number),
		owned:  NewHoldings(),
		shares: make(map[shareKey][]netip.Addr),
		usage:  make(map[string]*usage),
	}
}

// set returns the bitmap that a resource is in, and its place there.
func (x *index) set(r Resource) (*bitmap, number) {
	if r.Addr.IsValid() {
		return x.addrs[vip.FamilyOf(r.Addr)], numberOf(r.Addr)
	}
	return x.portSet(r.Protocol), number{lo: uint64(r.NodePort)}
}

func (x *index) portSet(p vip.Protocol) *bitmap {
	if x.ports[p] == nil {
		x.ports[p] = newBitmap(16)
	}
	return x.ports[p]
}

// update follows one lease from old to new; nil is none.
func (x *index) update(r Resource, old, now *Lease) {
	set, k := x.set(r)
	if now != nil {
		set.add(k)
	} else {
		set.remove(k)
	}
	x.owned.Follow(old, now)
	if old != nil {
		x.count(old, ^uint64(0))
	}
	if now != nil {
		x.count(now, 1)
		if now.State == Cooling && (old == nil || old.State != Cooling || old.Until != now.Until) {
			heap.Push(&x.cooling, coolingLease{look: now.Until.Time(), until: now.Until, resource: r})
		}
	}
	was, is := shareOf(old), shareOf(now)
	if was != is {
		if was.key != "" {
			dropValue(x.shares, was, r.Addr)
		}
		if is.key != "" {
			x.shares[is] = append(x.shares[is], r.Addr)
		}
	}
}

// count adds by (modulo 2^64) to the usage of the lease's pool.
func (x *index) count(l *Lease, by uint64) {
	if !l.Resource.Addr.IsValid() {
		return
	}
	u := x.usage[l.Pool]
	if u == nil {
		u = &usage{}
		x.usage[l.Pool] = u
	}
	if l.State == Cooling {
		u.cooling += by
	} else {
		u.held += by
	}
}

func holds(l *Lease, k vip.ServiceKey) bool {
	return slices.ContainsFunc(l.Holders, func(h Holder) bool { return h.Service == k })
}

// shareOf returns under what an address may be shared; no key is not at all.
func shareOf(l *Lease) shareKey {
	if l == nil || l.State != Held || l.ShareKey == "" || !l.Resource.Addr.IsValid() {
		return shareKey{}
	}
	return shareKey{l.Pool, vip.FamilyOf(l.Resource.Addr), l.ShareKey}
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

// coolingQueue is a heap of cooling leases by when to look at them. An entry whose lease
// has moved on is passed over when its time comes.
type coolingQueue []coolingLease

type coolingLease struct {
	look     time.Time // their end, or later, to try once more
	until    vip.Instant
	resource Resource
}

func (q coolingQueue) Len() int           { return len(q) }
func (q coolingQueue) Less(i, j int) bool { return q[i].look.Before(q[j].look) }
func (q coolingQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *coolingQueue) Push(v any)        { *q = append(*q, v.(coolingLease)) }
func (q *coolingQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

func (x *index) portCursor(p vip.Protocol) *number {
	if x.cursor[p] == nil {
		x.cursor[p] = new(number)
	}
	return x.cursor[p]
}
