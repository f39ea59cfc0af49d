package spec

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// Pool is the part of a pool that services are checked against.
type Pool struct {
	Name       string
	CIDRs      []netip.Prefix
	Exclude    []netip.Prefix
	AutoAssign bool
	Namespaces []string // of services that may have its addresses; none: all
}

// Contains reports whether a is one of the pool's addresses: in its ranges and not excluded.
func (p *Pool) Contains(a netip.Addr) bool {
	in := func(r netip.Prefix) bool { return r.Contains(a) }
	return slices.ContainsFunc(p.CIDRs, in) && !slices.ContainsFunc(p.Exclude, in)
}

// CheckAgainstPools reports what depends on the configured pools. It reports a backend on an
// address of a pool, because packets for it would return to the balancer. It also reports a backend
// of a family that the service's pool has no addresses of. The allocator checks whether the pool
// exists and what it grants.
func CheckAgainstPools(s *Service, pools []Pool) []vip.Problem {
	b := builder{spec: s, service: s.Title()}
	backends := s.flat()
	for i, w := range backends {
		a, err := netip.ParseAddr(w.Address)
		if err != nil {
			continue
		}
		for _, p := range pools {
			if p.Contains(a.Unmap()) {
				b.bad(b.spec.pathOf(i)+".address", "use the server's own address, or exclude this one from the pool",
					"%s is in VIP pool %q", a, p.Name)
				break
			}
		}
	}
	forward := vip.ForwardNAT
	if s.Forward != "" && forward.UnmarshalText([]byte(s.Forward)) != nil {
		return b.problems.List() // Build reports it
	}
	if len(s.Families) == 0 && len(s.VIPs) == 0 {
		b.wrongFamily(backends, forward, PoolFamilies(s, pools))
	}
	return b.problems.List()
}

// PoolFamilies returns the families of a service's pool; nil if they are unknown: of the named one, else of the first with AutoAssign that serves its namespace.
func PoolFamilies(s *Service, pools []Pool) []vip.Family {
	serves := func(p *Pool) bool {
		return p.AutoAssign && (len(p.Namespaces) == 0 || slices.Contains(p.Namespaces, cmp.Or(s.Namespace, vip.DefaultNamespace)))
	}
	for i := range pools {
		p := &pools[i]
		if p.Name != s.Pool && (s.Pool != "" || !serves(p)) {
			continue
		}
		var out []vip.Family
		for _, c := range p.CIDRs {
			if f := vip.FamilyOf(c.Addr()); !slices.Contains(out, f) {
				out = append(out, f)
			}
		}
		slices.Sort(out)
		return out
	}
	return nil
}
