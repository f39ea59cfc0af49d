package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/ipam/internal/pool"
	"github.com/ironvip/ironvip/vip"
)

// state is what plans are made from: the leases and the pools. Only the holder of
// Allocator.write changes it, and holds Allocator.mu meanwhile. So the holder of either may read
// it, and a plan needs no lock of its own.
type state struct {
	node string // "" if the store is this host's alone

	leases *table.Table[Resource, *Lease] // shared with the store: nobody changes a lease
	index  index
	// unreadable are the resources that the store can't read, which have no lease;
	// unreadableOf are those of each service.
	unreadable   map[Resource]unreadableLease
	unreadableOf map[vip.ServiceKey][]Resource
	// vanished are held leases that disappeared from the store, by service.
	vanished map[vip.ServiceKey][]Lease

	cfg   Config
	pods  map[string][]netip.Prefix // ranges in use, by the source that reported them
	host  hostnet.Snapshot
	guard *pool.Guard
	pools []*pool.Pool
	ports map[vip.Protocol]*pool.Ranges // of node ports
}

// lease returns the lease of a resource, or the zero Lease.
func (s *state) lease(r Resource) (Lease, bool) {
	if l, _, ok := s.leases.Get(r); ok {
		return *l, true
	}
	return Lease{}, false
}

// pool returns the pool of that name, or nil.
func (s *state) pool(name string) *pool.Pool {
	if i := slices.IndexFunc(s.pools, func(p *pool.Pool) bool { return p.Name == name }); i >= 0 {
		return s.pools[i]
	}
	return nil
}

// dynamicOf returns the ranges in which automatic allocation may have found the lease's address,
// or nil.
func (s *state) dynamicOf(l *Lease) *pool.Ranges {
	if !l.Resource.Addr.IsValid() {
		return nil
	}
	p := s.pool(l.Pool)
	if p == nil {
		return nil
	}
	if r := p.Ranges[vip.FamilyOf(l.Resource.Addr)]; r != nil && r.Dynamic.Contains(l.Resource.number()) {
		return r
	}
	return nil
}

// record makes now the lease of r in memory; nil removes it.
func (s *state) record(r Resource, old, now *Lease) {
	if now != nil && now.State == Blocked {
		s.markUnreadable(r, *now, old)
		s.index.update(r, old, nil)
		s.index.set(r).Add(r.number())
		s.leases.Delete(r)
		return
	}
	s.clearUnreadable(r)
	s.index.update(r, old, now)
	if now != nil {
		s.leases.Set(now)
	} else {
		s.leases.Delete(r)
	}
}

// rebuildPools makes the pools from the configuration and what they must keep clear of. Each
// keeps its position for automatic allocation.
func (s *state) rebuildPools() {
	s.guard = pool.NewGuard(s.cfg.PodCIDRs, s.pods, s.host)
	pools := make([]*pool.Pool, 0, len(s.cfg.Pools))
	for _, p := range s.cfg.Pools {
		made := pool.New(p, s.guard)
		if former := s.pool(p.Name); former != nil {
			for f, r := range made.Ranges {
				if was := former.Ranges[f]; was != nil {
					r.Cursor = was.Cursor
				}
			}
		}
		pools = append(pools, made)
	}
	s.pools = pools
	for _, p := range protocols {
		r := pool.NodePorts(s.cfg.NodePorts.First, s.cfg.NodePorts.Last)
		if former := s.ports[p]; former != nil {
			r.Cursor = former.Cursor
		}
		s.ports[p] = r
	}
}

// unreadableLease is a resource with a lease that the store can't read.
type unreadableLease struct {
	stored Lease // as the store reports it: Blocked
	known  Lease // what is known all the same: held by the services that the store names, as they last held it
}

// markUnreadable records that the store can't read the lease of r. old is the last lease that
// was known, or nil.
func (s *state) markUnreadable(r Resource, now Lease, old *Lease) {
	if former, was := s.unreadable[r]; was && old == nil {
		old = &former.known
	}
	known := Lease{Resource: r, State: Held, Holders: slices.Clone(now.Holders)}
	for i := range known.Holders {
		if old == nil || old.HeldBy(known.Holders[i].Service) < 0 {
			continue
		}
		known.Holders[i] = *old.holder(known.Holders[i].Service)
		known.Pool, known.ShareKey, known.Since, known.Reservation = old.Pool, old.ShareKey, old.Since, old.Reservation
	}
	s.clearUnreadable(r)
	s.unreadable[r] = unreadableLease{now, known}
	for _, h := range known.Holders {
		s.unreadableOf[h.Service] = append(s.unreadableOf[h.Service], r)
	}
}

func (s *state) clearUnreadable(r Resource) {
	for _, h := range s.unreadable[r].known.Holders {
		dropValue(s.unreadableOf, h.Service, r)
	}
	delete(s.unreadable, r)
}

// index finds leases without a scan. It has what is durable and nothing that is only planned.
type index struct {
	addrs map[vip.Family]*numbers.Set
	ports map[vip.Protocol]*numbers.Set

	owned   Holdings                   // by service: what it holds and what is kept for it
	shares  map[shareKey][]netip.Addr  // held addresses that may be shared
	usage   map[string]usage           // by pool, addresses only
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
		addrs:  map[vip.Family]*numbers.Set{vip.IPv4: numbers.NewSet(32), vip.IPv6: numbers.NewSet(128)},
		ports:  make(map[vip.Protocol]*numbers.Set),
		owned:  NewHoldings(),
		shares: make(map[shareKey][]netip.Addr),
		usage:  make(map[string]usage),
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
		count(x.usage, old, ^uint64(0))
	}
	if now != nil {
		count(x.usage, now, 1)
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
func count(of map[string]usage, l *Lease, by uint64) {
	if !l.Resource.Addr.IsValid() {
		return
	}
	u := of[l.Pool]
	switch l.State {
	case Cooling:
		u.cooling += by
	case Reserved:
		u.reserved += by
	default:
		u.held += by
	}
	of[l.Pool] = u
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
