package plan

import (
	"fmt"
	"slices"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// space is a namespace in a pool; in "", over all pools.
type space struct{ pool, namespace string }

// use is how many addresses a space has.
type use struct{ held, cooling uint64 }

// countSpace adds by (modulo 2^64) to the addresses of a lease's namespace. An address is shared within one only.
func countSpace(of map[space]use, l *ipam.Lease, by uint64) {
	if l.State == ipam.Reserved || !l.Resource.Addr.IsValid() || len(l.Holders) == 0 {
		return
	}
	keys := []space{{namespace: l.Holders[0].Service.Namespace}}
	if l.Pool != "" {
		keys = append(keys, space{l.Pool, keys[0].namespace})
	}
	for _, k := range keys {
		u := of[k]
		if l.State == ipam.Cooling {
			u.cooling += by
		} else {
			u.held += by
		}
		if of[k] = u; u == (use{}) {
			delete(of, k)
		}
	}
}

// heldAddress returns l if services hold it and it is an address, otherwise nil.
func heldAddress(l *ipam.Lease) *ipam.Lease {
	if l == nil || l.State != ipam.Held || !l.Resource.Addr.IsValid() {
		return nil
	}
	return l
}

// hasAddress reports whether a service holds an address.
func (s *State) hasAddress(k vip.ServiceKey) bool {
	for r := range s.index.owned.Of(k) {
		if l, _ := s.Lease(r); heldAddress(&l) != nil {
			return true
		}
	}
	return false
}

// countServices adds by to the services with addresses, for each that holds one address and not the other, nil being none, and
// has no address in the state.
func (s *State) countServices(one, other *ipam.Lease, by int) {
	for k := range ipam.Lost(one, other) {
		if s.hasAddress(k) {
			continue
		}
		if s.services[k.Namespace] += by; s.services[k.Namespace] == 0 {
			delete(s.services, k.Namespace)
		}
	}
}

// HasQuota reports whether a namespace has a quota.
func (s *State) HasQuota(namespace string) bool {
	return slices.ContainsFunc(s.Config.Quotas, func(q ipam.Quota) bool { return q.Namespace == namespace })
}

// isAlone reports whether a service is the only holder of an address, which its quota then counts for it.
func isAlone(l *ipam.Lease) bool { return l.Resource.Addr.IsValid() && len(l.Holders) == 1 }

// isNew reports whether the service in hand has no address yet, as planned.
func (p *Plan) isNew(w *Answer) bool { return len(w.addrs) == 0 && !p.state.hasAddress(w.Service.Key) }

// overQuota returns the problem that a service's namespace would have more services or addresses than it may have. The service
// holds these leases, of which it keeps or replaces one of each of the families that come later, and op gives it another one.
//
// As many addresses again may cool down. Otherwise a namespace could use up a pool by services that come and go.
func (p *Plan) overQuota(w *Answer, op *ipam.Op, held []ipam.Lease, later []vip.Family) vip.Problem {
	s, r := w.Service, op.New.Resource
	i := slices.IndexFunc(p.state.Config.Quotas, func(q ipam.Quota) bool { return q.Namespace == s.Key.Namespace })
	if i < 0 || s.Assigned || p.state.vanishedLease(s.Key, r) != nil {
		return vip.Problem{}
	}
	quota := &p.state.Config.Quotas[i]
	if n := p.state.services[s.Key.Namespace] + p.services[s.Key.Namespace]; n >= quota.Services && p.isNew(w) {
		return vip.Problem{Code: vip.CodeQuota, Field: "namespace", Message: fmt.Sprintf("namespace %q has %d of %d services with an address", s.Key.Namespace, n, quota.Services),
			Hint: "delete services of the namespace, or raise services in its [[quota]]"}
	}
	if !isAlone(op.New) {
		return vip.Problem{}
	}
	all := space{namespace: s.Key.Namespace}
	now, planned := p.state.index.spaces[all], p.spaces[all]
	used := use{now.held + planned.held, now.cooling + planned.cooling}
	others, need := used.held, uint64(1)
	for j := range held {
		if isAlone(&held[j]) {
			others--
			if slices.Contains(later, vip.FamilyOf(held[j].Resource.Addr)) {
				need++
			}
		}
	}
	for _, a := range w.addrs {
		if l, _ := p.Lease(a); isAlone(&l) {
			need++
			if slices.Contains(w.Gained, a) {
				others--
			}
		}
	}
	total := used.held + used.cooling + 1
	if was, there := p.Lease(r); there && was.State == ipam.Cooling && was.Holders[0].Service.Namespace == s.Key.Namespace {
		total--
	}
	most := quota.Addresses
	problem := vip.Problem{Code: vip.CodeQuota, Field: "namespace",
		Hint: "delete services of the namespace, share an address by share_key, or raise addresses in its [[quota]]"}
	switch {
	case others+need > most:
		problem.Message = fmt.Sprintf("namespace %q has %d of %d addresses", s.Key.Namespace, others+need-1, most)
	case total > 2*most:
		problem.Message = fmt.Sprintf("namespace %q has %d of %d addresses, and %d that it has released cool down", s.Key.Namespace, now.held, most, used.cooling)
		problem.Hint = "wait, or raise addresses in its [[quota]]"
	default:
		return vip.Problem{}
	}
	return problem
}

// planDrops counts what a service gives up when its ops are durable.
func (p *Plan) planDrops(w *Answer) {
	for _, r := range w.Drops {
		if l, _ := p.Lease(r); l.State == ipam.Held && isAlone(&l) {
			countSpace(p.spaces, &l, ^uint64(0))
			l.State = ipam.Cooling
			countSpace(p.spaces, &l, 1)
		}
	}
}
