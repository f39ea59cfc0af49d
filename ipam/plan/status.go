package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/ipam/pool"
	"github.com/ironvip/ironvip/vip"
)

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
	var out []ipam.PoolStatus
	for _, p := range s.pools {
		status := ipam.PoolStatus{Pool: p.Pool, Alarms: slices.Clone(alarms[p.Name]), HeldOutRanges: p.HeldOut(maxHeldOutRanges)}
		for f, r := range p.Ranges {
			status.Size = numbers.AddSaturating(status.Size, r.Usable.Size())
			status.HeldOut = numbers.AddSaturating(status.HeldOut, r.HeldOut)
			status.Free = numbers.AddSaturating(status.Free, r.Free(s.index.addrs[f]))
		}
		u := s.index.usage[p.Name]
		status.Used, status.Cooling, status.Reserved = u.held, u.cooling, u.reserved
		out = append(out, status)
	}
	var removed []ipam.PoolStatus
	for name, u := range s.index.usage {
		if s.pool(name) == nil && u.held+u.cooling+u.reserved > 0 {
			removed = append(removed, ipam.PoolStatus{
				Pool: ipam.Pool{Name: name}, Removed: true, Used: u.held, Cooling: u.cooling, Reserved: u.reserved,
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
