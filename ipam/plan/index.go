package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/vip"
)

// index finds leases without a scan. It has what is durable and nothing that is only planned.
type index struct {
	addrs map[vip.Family]*numbers.Set
	ports map[vip.Protocol]*numbers.Set

	owned  ipam.Holdings             // by service: what it holds and what is kept for it
	shares map[shareKey][]netip.Addr // held addresses that may be shared
	usage  map[string]usage          // by pool, addresses only
	spaces map[space]use             // of addresses
}

// shareKey is what services that may share an address have in common.
type shareKey struct {
	pool   string
	family vip.Family
	key    string
}

// protocols are those that node ports have.
var protocols = []vip.Protocol{vip.TCP, vip.UDP, vip.SCTP}

type usage struct{ held, cooling, reserved uint64 }

// String returns "2 are held, 0 cool down", and the reserved ones if there are any.
func (u usage) String() string {
	out := fmt.Sprintf("%d are held, %d cool down", u.held, u.cooling)
	if u.reserved > 0 {
		out += fmt.Sprintf(", %d are reserved", u.reserved)
	}
	return out
}

func newIndex() index {
	x := index{
		addrs:  map[vip.Family]*numbers.Set{vip.IPv4: numbers.NewSet(), vip.IPv6: numbers.NewSet()},
		ports:  make(map[vip.Protocol]*numbers.Set),
		owned:  ipam.NewHoldings(),
		shares: make(map[shareKey][]netip.Addr),
		usage:  make(map[string]usage),
		spaces: make(map[space]use),
	}
	for _, p := range protocols {
		x.ports[p] = numbers.NewSet()
	}
	return x
}

// set returns the set that has a resource's number while the resource has a lease.
func (x *index) set(r ipam.Resource) *numbers.Set {
	if r.Addr.IsValid() {
		return x.addrs[vip.FamilyOf(r.Addr)]
	}
	return x.ports[r.Protocol]
}

// update replaces the lease old by now; nil is none.
func (x *index) update(r ipam.Resource, old, now *ipam.Lease) {
	if now != nil {
		x.set(r).Add(numberOf(r))
	} else {
		x.set(r).Remove(numberOf(r))
	}
	x.owned.Follow(old, now)
	if old != nil {
		count(x.usage, old, ^uint64(0))
		countSpace(x.spaces, old, ^uint64(0))
	}
	if now != nil {
		count(x.usage, now, 1)
		countSpace(x.spaces, now, 1)
	}
	was, is := shareOf(old), shareOf(now)
	if was != is {
		if was.key != "" {
			x.shares[was] = slices.DeleteFunc(x.shares[was], func(a netip.Addr) bool { return a == r.Addr })
			if len(x.shares[was]) == 0 {
				delete(x.shares, was)
			}
		}
		if is.key != "" {
			x.shares[is] = append(x.shares[is], r.Addr)
		}
	}
}

// count adds by (modulo 2^64) to the usage of the lease's pool.
func count(of map[string]usage, l *ipam.Lease, by uint64) {
	if !l.Resource.Addr.IsValid() {
		return
	}
	u := of[l.Pool]
	switch l.State {
	case ipam.Cooling:
		u.cooling += by
	case ipam.Reserved:
		u.reserved += by
	default:
		u.held += by
	}
	of[l.Pool] = u
}

// shareOf returns the share key of an address; one without a key can't be shared.
func shareOf(l *ipam.Lease) shareKey {
	if l == nil || l.State != ipam.Held || l.ShareKey == "" || !l.Resource.Addr.IsValid() {
		return shareKey{}
	}
	return shareKey{l.Pool, vip.FamilyOf(l.Resource.Addr), l.ShareKey}
}
