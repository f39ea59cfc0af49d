package plan

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/ipam/pool"
	"github.com/ironvip/ironvip/vip"
)

// State is what plans are made from: the leases and the pools. Its one writer calls the methods that change
// it, with a lock that the other readers hold. Config, Pods and Host take effect with Rebuild. Create one with NewState.
type State struct {
	Node   string // "" if the store is this host's alone
	Config ipam.Config
	Pods   map[string][]netip.Prefix // ranges in use, by the source that reported them
	Host   hostnet.Snapshot

	leases *table.Table[ipam.Resource, *ipam.Lease] // shared with the store: nobody changes a lease
	index  index
	// unreadable are the resources that the store can't read, which have no lease;
	// unreadableOf are those of each service.
	unreadable   map[ipam.Resource]Unreadable
	unreadableOf ipam.Holdings
	// vanished are held leases that disappeared from the store, by service.
	vanished map[vip.ServiceKey][]ipam.Lease
	outside  map[string]uint64 // by pool: held addresses that no pool has any more
	services map[string]int    // by namespace: services with addresses

	guard *pool.Guard
	pools []*pool.Pool
	ports map[vip.Protocol]*pool.Ranges // of node ports
}

// NewState returns a state without leases and pools.
func NewState(node string, clock *table.Clock, cfg ipam.Config) *State {
	return &State{
		Node: node, Config: cfg, Pods: make(map[string][]netip.Prefix),
		leases: table.New(clock, func(l **ipam.Lease) ipam.Resource { return (*l).Resource },
			func(a, b *ipam.Lease) bool { return a == b || a.Equal(*b) }),
		index:        newIndex(),
		unreadable:   make(map[ipam.Resource]Unreadable),
		unreadableOf: ipam.NewHoldings(),
		vanished:     make(map[vip.ServiceKey][]ipam.Lease),
		outside:      make(map[string]uint64),
		services:     make(map[string]int),
		ports:        make(map[vip.Protocol]*pool.Ranges),
	}
}

// Leases returns the table of leases.
func (s *State) Leases() table.Reader[ipam.Resource, *ipam.Lease] { return s.leases }

// Lease returns the lease of a resource, or the zero Lease.
func (s *State) Lease(r ipam.Resource) (ipam.Lease, bool) {
	if l, _, ok := s.leases.Get(r); ok {
		return *l, true
	}
	return ipam.Lease{}, false
}

// Owned yields what a service holds and what is kept for it, oldest first. The loop body must not change the state.
func (s *State) Owned(k vip.ServiceKey) iter.Seq[ipam.Resource] { return s.index.owned.Of(k) }

// Owns reports whether a service holds anything, or something is kept for it.
func (s *State) Owns(k vip.ServiceKey) bool { return s.index.owned.Any(k) }

// InPool reports whether an address is in the ranges of a pool and not excluded. It costs O(ranges).
func (s *State) InPool(addr netip.Addr) bool {
	return slices.ContainsFunc(s.pools, func(p *pool.Pool) bool { return p.Owns(addr) })
}

// Vanished notes that a lease that a service held disappeared from the store.
func (s *State) Vanished(k vip.ServiceKey, l ipam.Lease) { s.vanished[k] = append(s.vanished[k], l) }

// ForgetVanished forgets what disappeared from the store that a service held.
func (s *State) ForgetVanished(k vip.ServiceKey) { delete(s.vanished, k) }

// pool returns the pool of that name, or nil.
func (s *State) pool(name string) *pool.Pool {
	if i := slices.IndexFunc(s.pools, func(p *pool.Pool) bool { return p.Name == name }); i >= 0 {
		return s.pools[i]
	}
	return nil
}

// poolOf returns the pool with a range that has the address, or nil.
func (s *State) poolOf(addr netip.Addr) *pool.Pool {
	if i := slices.IndexFunc(s.pools, func(p *pool.Pool) bool { return p.Covers(addr) }); i >= 0 {
		return s.pools[i]
	}
	return nil
}

// ContinueBehind has automatic allocation continue behind the address of a lease, if it may have found it.
func (s *State) ContinueBehind(l *ipam.Lease) {
	p := s.pool(l.Pool)
	if p == nil || !l.Resource.Addr.IsValid() {
		return
	}
	n := numbers.Of(l.Resource.Addr)
	if r := p.Ranges[vip.FamilyOf(l.Resource.Addr)]; r != nil && r.Dynamic.Contains(n) {
		r.Cursor = n.Plus(1)
	}
}

// numberOf returns a resource's number in the set of its kind.
func numberOf(r ipam.Resource) numbers.Number {
	if r.Addr.IsValid() {
		return numbers.Of(r.Addr)
	}
	return numbers.OfPort(r.NodePort)
}

// Record makes now the lease of r in memory, in place of old; nil is none.
func (s *State) Record(r ipam.Resource, old, now *ipam.Lease) {
	before, after := heldAddress(old), heldAddress(now)
	s.countServices(after, before, 1)
	defer s.countServices(before, after, -1)
	if now != nil && now.State == ipam.Blocked {
		s.markUnreadable(r, *now, old)
		s.countOutside(old, ^uint64(0))
		s.index.update(r, old, nil)
		s.index.set(r).Add(numberOf(r))
		s.leases.Delete(r)
		return
	}
	s.clearUnreadable(r)
	s.index.update(r, old, now)
	s.countOutside(old, ^uint64(0))
	s.countOutside(now, 1)
	if now != nil {
		s.leases.Set(now)
	} else {
		s.leases.Delete(r)
	}
}

// countOutside adds by (modulo 2^64) to the held addresses that no pool has any more if l is one; nil is none.
func (s *State) countOutside(l *ipam.Lease, by uint64) {
	if l != nil && l.State == ipam.Held && l.Resource.Addr.IsValid() && s.pool(l.Pool) != nil && !s.InPool(l.Resource.Addr) {
		s.outside[l.Pool] += by
	}
}

// Recount counts the held addresses that no pool has any more, after a change of the pools' ranges. It costs O(leases).
func (s *State) Recount() {
	clear(s.outside)
	for _, l := range s.leases.All() {
		s.countOutside(l, 1)
	}
}

// Rebuild makes the pools from the configuration and what they must keep clear of, and reports whether that has changed. Each pool
// keeps its position for automatic allocation. It costs O(ranges).
func (s *State) Rebuild() (changed bool) {
	former := s.guard
	s.guard = pool.NewGuard(s.Config.PodCIDRs, s.Pods, s.Host)
	pools := make([]*pool.Pool, 0, len(s.Config.Pools))
	for _, p := range s.Config.Pools {
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
		r := pool.NodePorts(s.Config.NodePorts.First, s.Config.NodePorts.Last)
		if former := s.ports[p]; former != nil {
			r.Cursor = former.Cursor
		}
		s.ports[p] = r
	}
	return former == nil || !s.guard.Same(former)
}

// Unreadable is a resource with a lease that the store can't read.
type Unreadable struct {
	Stored ipam.Lease // as the store reports it: Blocked
	Known  ipam.Lease // what is known all the same: held by the services that the store names, as they last held it
}

// Unreadable returns what is known of a resource with a lease that the store can't read.
func (s *State) Unreadable(r ipam.Resource) (u Unreadable, is bool) {
	u, is = s.unreadable[r]
	return u, is
}

// markUnreadable records that the store can't read the lease of r. old is the last lease that
// was known, or nil.
func (s *State) markUnreadable(r ipam.Resource, now ipam.Lease, old *ipam.Lease) {
	if former, was := s.unreadable[r]; was && old == nil {
		old = &former.Known
	}
	known := ipam.Lease{Resource: r, State: ipam.Held, Holders: slices.Clone(now.Holders)}
	for i := range known.Holders {
		if old == nil || old.HeldBy(known.Holders[i].Service) < 0 {
			continue
		}
		known.Holders[i] = *old.HolderOf(known.Holders[i].Service)
		known.Pool, known.ShareKey, known.Since, known.Reservation = old.Pool, old.ShareKey, old.Since, old.Reservation
	}
	s.clearUnreadable(r)
	s.unreadable[r] = Unreadable{now, known}
	s.unreadableOf.Follow(nil, &known)
}

func (s *State) clearUnreadable(r ipam.Resource) {
	if u, is := s.unreadable[r]; is {
		s.unreadableOf.Follow(&u.Known, nil)
		delete(s.unreadable, r)
	}
}

// Alarms returns what is wrong with each pool. It costs O(ranges and routes).
func (s *State) Alarms() map[string][]vip.Problem {
	out := make(map[string][]vip.Problem)
	for _, p := range s.pools {
		out[p.Name] = p.Alarms(s.holderOf)
	}
	return out
}

// holderOf returns the first holder of an address.
func (s *State) holderOf(addr netip.Addr) (vip.ServiceKey, bool) {
	l, _ := s.Lease(ipam.Resource{Addr: addr})
	if l.State != ipam.Held {
		return vip.ServiceKey{}, false
	}
	return l.Holders[0].Service, true
}

// maxHeldOutRanges bounds the ranges that the state of a pool lists.
const maxHeldOutRanges = 256

// Status returns the state of the pools in the order of the configuration, followed by those that
// are no longer in it but still have leases, with their alarms. It costs O(ranges), and a step for each word of
// 64 addresses with used ones.
func (s *State) Status(alarms map[string][]vip.Problem) []ipam.PoolStatus {
	usedBy := map[string]map[string]uint64{}
	for k, n := range s.index.spaces {
		if usedBy[k.pool] == nil {
			usedBy[k.pool] = map[string]uint64{}
		}
		usedBy[k.pool][k.namespace] = n.held
	}
	var out []ipam.PoolStatus
	for _, p := range s.pools {
		status := ipam.PoolStatus{Pool: p.Pool, Alarms: slices.Clone(alarms[p.Name]), UsedBy: usedBy[p.Name], HeldOutRanges: p.HeldOut(maxHeldOutRanges)}
		for f, r := range p.Ranges {
			status.Size = numbers.AddSaturating(status.Size, r.Usable.Size())
			status.HeldOut = numbers.AddSaturating(status.HeldOut, r.HeldOut)
			status.Free = numbers.AddSaturating(status.Free, r.Free(s.index.addrs[f]))
		}
		u := s.index.usage[p.Name]
		status.Used, status.Cooling, status.Reserved, status.Outside = u.held, u.cooling, u.reserved, s.outside[p.Name]
		if status.Outside > 0 {
			status.Alarms = append(status.Alarms, pool.Shrunk(p.Name, status.Outside))
		}
		out = append(out, status)
	}
	var removed []ipam.PoolStatus
	for name, u := range s.index.usage {
		if s.pool(name) == nil && u.held+u.cooling+u.reserved > 0 {
			removed = append(removed, ipam.PoolStatus{
				Pool: ipam.Pool{Name: name}, Removed: true, Used: u.held, UsedBy: usedBy[name], Cooling: u.cooling, Reserved: u.reserved,
				Alarms: []vip.Problem{removedNotice(name, u)},
			})
		}
	}
	slices.SortFunc(removed, func(a, b ipam.PoolStatus) int { return strings.Compare(a.Name, b.Name) })
	return append(out, removed...)
}

// removedNotice says what the addresses of a removed pool are used for.
func removedNotice(name string, u usage) vip.Problem {
	hint := "add the pool again"
	if u.held > 0 {
		hint += ", or name another pool in its services"
	}
	if u.reserved > 0 {
		hint += ", or end its reservations: ironvip vip release ADDRESS"
	}
	return vip.Problem{
		Code: pool.CodeNotice, Hint: hint,
		Message: fmt.Sprintf("pool %q is not in the configuration any more; of its addresses, %s", name, u),
	}
}
