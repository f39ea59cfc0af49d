package ipam

import (
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/vip"
)

// index finds leases without a scan. It has what is durable and nothing that is only planned.
type index struct {
	addrs map[vip.Family]*numbers.Set
	ports map[vip.Protocol]*numbers.Set

	owned   Holdings                   // by service: what it holds and what cools down for it
	shares  map[shareKey][]netip.Addr  // held addresses that may be shared
	usage   map[string]*usage          // by pool, addresses only
	cooling delayqueue.Queue[Resource] // cooling leases by the time to end them: Until, or later for another try
}

// shareKey is what services that may share an address have in common.
type shareKey struct {
	pool   string
	family vip.Family
	key    string
}

// protocols are those that node ports have.
var protocols = []vip.Protocol{vip.TCP, vip.UDP, vip.SCTP}

type usage struct{ held, cooling uint64 }

func newIndex() index {
	x := index{
		addrs:  map[vip.Family]*numbers.Set{vip.IPv4: numbers.NewSet(32), vip.IPv6: numbers.NewSet(128)},
		ports:  make(map[vip.Protocol]*numbers.Set),
		owned:  NewHoldings(),
		shares: make(map[shareKey][]netip.Addr),
		usage:  make(map[string]*usage),
	}
	for _, p := range protocols {
		x.ports[p] = numbers.NewSet(16)
	}
	return x
}

// set returns the set that has a resource's number while the resource has a lease.
func (x *index) set(r Resource) *numbers.Set {
	if r.Addr.IsValid() {
		return x.addrs[vip.FamilyOf(r.Addr)]
	}
	return x.ports[r.Protocol]
}

// update replaces the lease old by now; nil is none.
func (x *index) update(r Resource, old, now *Lease) {
	if now != nil {
		x.set(r).Add(r.number())
	} else {
		x.set(r).Remove(r.number())
	}
	x.owned.Follow(old, now)
	if old != nil {
		x.count(old, ^uint64(0))
	}
	if now != nil {
		x.count(now, 1)
	}
	if until := coolingUntil(now); until == 0 {
		x.cooling.Drop(r)
	} else if until != coolingUntil(old) {
		x.cooling.Set(r, until.Time())
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

// coolingUntil returns the end of a cooling lease, and 0 for any other.
func coolingUntil(l *Lease) vip.Instant {
	if l == nil || l.State != Cooling {
		return 0
	}
	return l.Until
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

// shareOf returns the share key of an address; one without a key can't be shared.
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
